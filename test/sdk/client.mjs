// Drives a demo gateway through the official JavaScript client, as an application would.
//
// usage: node client.mjs http://ADDRESS FOLDER    (the client lies in FOLDER)
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';

const [base, folder] = process.argv.slice(2);
const OpenAI = createRequire(folder + '/')('openai');
const client = new OpenAI({ baseURL: base + '/v1', apiKey: 'none', maxRetries: 0, timeout: 20000 });
const chat = client.chat.completions;
const ask = { model: 'demo-small', messages: [{ role: 'user', content: 'hello river' }] };
const fast = { benchmark: { first_token_delay_ms: 0, token_interval_ms: 0 } };

// The counters of both backends by name, each asked through the gateway until it has answered.
async function backends() {
  const found = {};
  for (let i = 0; i < 20; i++) {
    const r = await fetch(base + '/demo/stats');
    found[r.headers.get('x-demo-backend')] = await r.json();
    if (Object.keys(found).length === 2) return found;
  }
  assert.fail(`only ${Object.keys(found)} answered in 20 turns`);
}

const cancelled = async () => Object.values(await backends()).reduce((n, s) => n + s.cancelled, 0);

// Fails unless a backend noticed within a second that its client had gone at the time left.
async function expectClose(before, left) {
  while (Date.now() - left < 1000) {
    if ((await cancelled()) > before) return `noticed within ${((Date.now() - left) / 1000).toFixed(3)} s`;
    await sleep(20);
  }
  assert.fail('no backend noticed the departure within a second');
}

const checks = {
  async models_list() {
    const got = [];
    for await (const m of client.models.list()) got.push(m.id);
    assert.deepEqual(got, ['demo-small', 'demo-large']);
  },

  async model_retrieve() {
    assert.equal((await client.models.retrieve('demo-large')).owned_by, 'sluice-demo');
  },

  async chat() {
    const whole = await chat.create({ ...ask, ...fast });
    assert.match(whole.choices[0].message.content, /hello river/);
    assert.equal(whole.choices[0].finish_reason, 'stop');
    assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  },

  async chat_streamed_with_usage() {
    let text = '', usage = null, finish = null, after = 0;
    const stream = await chat.create({ ...ask, ...fast, max_tokens: 12, stream: true, stream_options: { include_usage: true } });
    for await (const chunk of stream) {
      if (usage) after++;
      if (chunk.usage) {
        assert.deepEqual(chunk.choices, []);
        usage = chunk.usage;
        continue;
      }
      text += chunk.choices[0].delta.content ?? '';
      finish = chunk.choices[0].finish_reason ?? finish;
    }
    assert.match(text, /^This is backend .*hello river/);
    assert.deepEqual([finish, usage.prompt_tokens, usage.completion_tokens, after], ['length', 2, 12, 0]);
  },

  async stream_ends_with_done() {
    const r = await chat.create({ ...ask, ...fast, stream: true }).asResponse();
    assert.match(r.headers.get('content-type'), /^text\/event-stream/);
    assert.equal(r.headers.get('content-length'), null);
    assert.ok(r.headers.get('x-request-id'));
    const lines = (await r.text()).split('\n').filter((l) => l !== '');
    assert.equal(lines.pop(), 'data: [DONE]');
    for (const l of lines) assert.match(l, /^data: \{/);
  },

  async tokens_arrive_one_by_one() {
    const pace = { benchmark: { first_token_delay_ms: 100, token_interval_ms: 60, token_count: 12 } };
    const began = performance.now();
    const at = [];
    for await (const chunk of await chat.create({ ...ask, ...pace, stream: true })) {
      if (chunk.choices[0].delta.content) at.push(performance.now());
    }
    const gaps = at.slice(1).map((t, i) => t - at[i]).sort((a, b) => a - b);
    assert.equal(at.length, 12);
    assert.ok(at[0] - began < 1000, `first token after ${at[0] - began} ms`);
    // Tokens that had waited for each other would come in lumps: most gaps near zero.
    assert.ok(gaps[gaps.length >> 1] > 30, `gaps ${gaps}`);
    assert.ok(at.at(-1) - at[0] > 500, `all within ${at.at(-1) - at[0]} ms`);
    return `gaps of ${gaps[0].toFixed(0)} to ${gaps.at(-1).toFixed(0)} ms, sent every 60 ms`;
  },

  async completion_whole_and_streamed() {
    const prompt = { model: 'demo-large', prompt: 'hello river', max_tokens: 20, ...fast };
    const done = await client.completions.create(prompt);
    assert.match(done.choices[0].text, /hello river/);
    assert.equal(done.usage.completion_tokens, 20);
    const streamed = [];
    for await (const c of await client.completions.create({ ...prompt, stream: true })) streamed.push(c.choices[0].text);
    // The two may come from different backends, whose names have three letters both.
    assert.equal(streamed.join('').length, done.choices[0].text.length);
    assert.ok(streamed.length > 20);
  },

  async embeddings() {
    const input = ['one', 'two words'];
    const packed = await client.embeddings.create({ model: 'demo-small', input }); // base64 on the wire
    const plain = await client.embeddings.create({ model: 'demo-small', input, encoding_format: 'float' });
    assert.deepEqual(packed.data.map((d) => d.index), [0, 1]);
    packed.data.forEach((d, i) => {
      assert.equal(d.embedding.length, 256);
      d.embedding.forEach((x, j) => assert.ok(Math.abs(x - plain.data[i].embedding[j]) < 1e-6));
    });
  },

  async both_backends_answer() {
    const seen = [];
    for (let i = 0; i < 6; i++) seen.push((await client.models.list().withResponse()).response.headers.get('x-demo-backend'));
    assert.deepEqual([...seen].sort(), ['one', 'one', 'one', 'two', 'two', 'two']);
    return `turns: ${seen.join(' ')}`;
  },

  async early_cancel() {
    const before = await cancelled();
    const stream = await chat.create({ ...ask, stream: true, benchmark: { first_token_delay_ms: 0, token_interval_ms: 20000 } });
    let left;
    for await (const chunk of stream) {
      assert.ok(chunk.id);
      left = Date.now();
      break; // the client aborts the request
    }
    return expectClose(before, left);
  },

  async abort_before_the_answer() {
    const before = await cancelled();
    const abort = new AbortController();
    const call = chat.create({ ...ask, benchmark: { first_token_delay_ms: 20000 } }, { signal: abort.signal });
    setTimeout(() => abort.abort(), 300);
    await assert.rejects(call, OpenAI.APIUserAbortError);
    return expectClose(before, Date.now());
  },

  async timeout_before_the_answer() {
    const before = await cancelled();
    const call = chat.create({ ...ask, benchmark: { first_token_delay_ms: 20000 } }, { timeout: 400 });
    await assert.rejects(call, OpenAI.APIConnectionTimeoutError);
    return expectClose(before, Date.now());
  },

  async typed_errors() {
    await assert.rejects(chat.create({ model: 'demo-small', messages: [] }), (e) => {
      assert.ok(e instanceof OpenAI.BadRequestError);
      assert.deepEqual([e.status, e.param, e.type], [400, 'messages', 'invalid_request_error']);
      assert.ok(e.requestID);
      return true;
    });
    await assert.rejects(chat.create({ ...ask, model: 'no-such-model' }), (e) => {
      assert.ok(e instanceof OpenAI.NotFoundError);
      assert.deepEqual([e.status, e.code, e.param], [404, 'model_not_found', 'model']);
      return true;
    });
  },
};

for (const [name, f] of Object.entries(checks)) {
  const began = performance.now();
  try {
    const note = await f();
    console.log(`ok ${name} (${((performance.now() - began) / 1000).toFixed(2)} s)${note ? ': ' + note : ''}`);
  } catch (e) {
    process.exitCode = 1;
    console.log(`FAILED ${name}: ${e.name}: ${e.message}`);
  }
}
