// Drives the demo backend through the official JavaScript client, which lies in
// the folder given as the second argument.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const [baseURL, folder] = process.argv.slice(2);
const OpenAI = createRequire(folder + '/')('openai');
const client = new OpenAI({ baseURL, apiKey: 'none', maxRetries: 0 });
const ask = { model: 'demo-small', messages: [{ role: 'user', content: 'hello river' }] };

const models = [];
for await (const m of client.models.list()) models.push(m.id);
assert.deepEqual(models, ['demo-small', 'demo-large']);

const whole = await client.chat.completions.create(ask);
const text = whole.choices[0].message.content;
assert.match(text, /hello river/);
assert.equal(whole.choices[0].finish_reason, 'stop');

let streamed = '';
let usage = null;
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
  if (chunk.usage) {
    assert.deepEqual(chunk.choices, []);
    usage = chunk.usage;
  } else {
    streamed += chunk.choices[0].delta.content ?? '';
  }
}
assert.equal(streamed, text);
assert.deepEqual(usage, whole.usage);

const prompt = { model: 'demo-large', prompt: 'hello river' };
const done = await client.completions.create(prompt);
let again = '';
for await (const chunk of await client.completions.create({ ...prompt, stream: true })) again += chunk.choices[0].text;
assert.equal(again, done.choices[0].text);

const input = ['one', 'two words'];
const packed = await client.embeddings.create({ model: 'demo-small', input });
const plain = await client.embeddings.create({ model: 'demo-small', input, encoding_format: 'float' });
packed.data.forEach((d, i) => {
  assert.equal(d.embedding.length, 256);
  d.embedding.forEach((x, j) => assert.ok(Math.abs(x - plain.data[i].embedding[j]) < 1e-6));
});

await assert.rejects(client.chat.completions.create({ ...ask, model: 'no-such-model' }), (e) => {
  assert.equal(e.status, 404);
  assert.equal(e.code, 'model_not_found');
  return true;
});

const slow = await client.chat.completions.create({ ...ask, stream: true, benchmark: { token_interval_ms: 60000 } });
for await (const chunk of slow) {
  assert.ok(chunk.id);
  break;
}

console.log('all checks passed');
