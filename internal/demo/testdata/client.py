"""Drives the demo backend through the official Python client."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
ask = dict(model="demo-small", messages=[{"role": "user", "content": "hello river"}])

models = [m.id for m in client.models.list()]
assert models == ["demo-small", "demo-large"], models

whole = client.chat.completions.create(**ask)
text = whole.choices[0].message.content
assert "hello river" in text and whole.choices[0].finish_reason == "stop", whole
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

parts, usage, finish = [], None, None
for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **ask):
    if chunk.usage:
        assert chunk.choices == [], chunk
        usage = chunk.usage
        continue
    parts.append(chunk.choices[0].delta.content or "")
    finish = chunk.choices[0].finish_reason or finish
assert "".join(parts) == text, parts
assert usage == whole.usage and finish == "stop", (usage, finish)

done = client.completions.create(model="demo-large", prompt="hello river")
assert "hello river" in done.choices[0].text, done
streamed = "".join(c.choices[0].text for c in client.completions.create(model="demo-large", prompt="hello river", stream=True))
assert streamed == done.choices[0].text, streamed

packed = client.embeddings.create(model="demo-small", input=["one", "two words"])
plain = client.embeddings.create(model="demo-small", input=["one", "two words"], encoding_format="float")
assert [d.index for d in packed.data] == [0, 1], packed
for a, b in zip(packed.data, plain.data):
    assert len(a.embedding) == 256
    assert max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-6

try:
    client.chat.completions.create(model="no-such-model", messages=ask["messages"])
    raise AssertionError("an unknown model was accepted")
except openai.NotFoundError as e:
    assert e.code == "model_not_found" and e.param == "model", e

slow = client.chat.completions.create(stream=True, extra_body={"benchmark": {"token_interval_ms": 60000}}, **ask)
next(iter(slow))
slow.close()

print("all checks passed")
