"""Drives a demo gateway through the official Python client, as an application would.

usage: client.py http://ADDRESS
"""

import sys
import time
import urllib.request
import json

import openai

base = sys.argv[1]
client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=20)
ask = dict(model="demo-small", messages=[{"role": "user", "content": "hello river"}])
fast = {"benchmark": {"first_token_delay_ms": 0, "token_interval_ms": 0}}
checks = []


def check(f):
    checks.append(f)
    return f


def backends():
    """The counters of both backends by name, each asked through the gateway until it has answered."""
    found = {}
    for _ in range(20):
        with urllib.request.urlopen(base + "/demo/stats", timeout=5) as r:
            found[r.headers["X-Demo-Backend"]] = json.load(r)
        if len(found) == 2:
            return found
    raise AssertionError(f"only {list(found)} answered in 20 turns")


def cancelled():
    return sum(s["cancelled"] for s in backends().values())


def expect_close(before, left):
    """Fails unless a backend noticed within a second that its client had gone at the time left."""
    while time.time() - left < 1:
        if cancelled() > before:
            return f"noticed within {time.time() - left:.3f} s"
        time.sleep(0.02)
    raise AssertionError("no backend noticed the departure within a second")


@check
def models_list():
    got = [m.id for m in client.models.list()]
    assert got == ["demo-small", "demo-large"], got


@check
def model_retrieve():
    assert client.models.retrieve("demo-large").owned_by == "sluice-demo"


@check
def chat():
    whole = client.chat.completions.create(extra_body=fast, **ask)
    assert "hello river" in whole.choices[0].message.content and whole.choices[0].finish_reason == "stop", whole
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 10, whole.usage


@check
def chat_streamed_with_usage():
    parts, usage, finish, after = [], None, None, 0
    for chunk in client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, max_tokens=12, extra_body=fast, **ask
    ):
        after += usage is not None
        if chunk.usage:
            assert chunk.choices == [], chunk
            usage = chunk.usage
            continue
        parts.append(chunk.choices[0].delta.content or "")
        finish = chunk.choices[0].finish_reason or finish
    text = "".join(parts)
    assert text.startswith("This is backend ") and "hello river" in text and finish == "length", (text, finish)
    assert usage.completion_tokens == 12 and usage.prompt_tokens == 2 and after == 0, (usage, after)


@check
def stream_ends_with_done():
    with client.chat.completions.with_streaming_response.create(stream=True, extra_body=fast, **ask) as r:
        assert r.headers["content-type"].startswith("text/event-stream"), r.headers
        assert "content-length" not in r.headers and r.headers["x-request-id"], r.headers
        lines = [line for line in r.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: {") for line in lines[:-1]), lines[-2:]


@check
def tokens_arrive_one_by_one():
    pace = {"benchmark": {"first_token_delay_ms": 100, "token_interval_ms": 60, "token_count": 12}}
    began, at = time.monotonic(), []
    for chunk in client.chat.completions.create(stream=True, extra_body=pace, **ask):
        if chunk.choices[0].delta.content:
            at.append(time.monotonic())
    gaps = sorted(b - a for a, b in zip(at, at[1:]))
    assert len(at) == 12, at
    assert at[0] - began < 1, f"first token after {at[0] - began:.3f} s"
    # Tokens that had waited for each other would come in lumps: most gaps near zero.
    assert gaps[len(gaps) // 2] > 0.03, gaps
    assert at[-1] - at[0] > 0.5, at[-1] - at[0]
    return f"gaps of {gaps[0] * 1000:.0f} to {gaps[-1] * 1000:.0f} ms, sent every 60 ms"


@check
def completion_whole_and_streamed():
    prompt = dict(model="demo-large", prompt="hello river", max_tokens=20, extra_body=fast)
    done = client.completions.create(**prompt)
    assert "hello river" in done.choices[0].text and done.usage.completion_tokens == 20, done
    streamed = [c.choices[0].text for c in client.completions.create(stream=True, **prompt)]
    # The two may come from different backends, whose names have three letters both.
    assert len("".join(streamed)) == len(done.choices[0].text) and len(streamed) > 20, streamed


@check
def embeddings():
    packed = client.embeddings.create(model="demo-small", input=["one", "two words"])  # base64 on the wire
    plain = client.embeddings.create(model="demo-small", input=["one", "two words"], encoding_format="float")
    assert [d.index for d in packed.data] == [0, 1], packed
    for a, b in zip(packed.data, plain.data):
        assert len(a.embedding) == 256
        assert max(abs(x - y) for x, y in zip(a.embedding, b.embedding)) < 1e-6


@check
def both_backends_answer():
    seen = [client.models.with_raw_response.list().headers["x-demo-backend"] for _ in range(6)]
    assert seen.count("one") == 3 and seen.count("two") == 3, seen
    return "turns: " + " ".join(seen)


@check
def early_cancel():
    before = cancelled()
    slow = {"benchmark": {"first_token_delay_ms": 0, "token_interval_ms": 20000}}
    stream = client.chat.completions.create(stream=True, extra_body=slow, **ask)
    next(iter(stream))
    left = time.time()
    stream.close()
    return expect_close(before, left)


@check
def timeout_before_the_answer():
    before = cancelled()
    slow = {"benchmark": {"first_token_delay_ms": 20000}}
    try:
        client.with_options(timeout=0.4).chat.completions.create(extra_body=slow, **ask)
    except openai.APITimeoutError:
        return expect_close(before, time.time())
    raise AssertionError("no timeout")


@check
def timeout_between_tokens():
    before = cancelled()
    slow = {"benchmark": {"first_token_delay_ms": 0, "token_interval_ms": 20000}}
    stream = client.with_options(timeout=0.4).chat.completions.create(stream=True, extra_body=slow, **ask)
    try:
        for _ in stream:
            pass
    except Exception as e:  # the library passes its transport's error on
        assert "timed out" in str(e), repr(e)
        left = time.time()
        stream.close()
        return expect_close(before, left)
    raise AssertionError("no timeout")


@check
def typed_errors():
    try:
        client.chat.completions.create(model="demo-small", messages=[])
        raise AssertionError("an empty conversation was accepted")
    except openai.BadRequestError as e:
        assert e.status_code == 400 and e.param == "messages" and e.type == "invalid_request_error" and e.request_id, e
    try:
        client.chat.completions.create(model="no-such-model", messages=ask["messages"])
        raise AssertionError("an unknown model was accepted")
    except openai.NotFoundError as e:
        assert e.code == "model_not_found" and e.param == "model", e


failed = 0
for f in checks:
    began = time.monotonic()
    try:
        note = f()
    except Exception as e:
        failed += 1
        print(f"FAILED {f.__name__}: {type(e).__name__}: {e}")
    else:
        print(f"ok {f.__name__} ({time.monotonic() - began:.2f} s)" + (f": {note}" if note else ""))
sys.exit(failed > 0)
