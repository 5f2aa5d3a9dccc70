// Node's HTTP/2 client opening tunnels: node connect.mjs URL CA-FILE ECHO-ADDRESS. Writes "ok NAME" for each check that holds.
import assert from "node:assert";
import fs from "node:fs";
import http2 from "node:http2";
import { once } from "node:events";

const [url, ca, echo] = process.argv.slice(2);
const session = http2.connect(url, { ca: fs.readFileSync(ca), servername: "gateway.test", maxSessionMemory: 1000, settings: { initialWindowSize: 65535 } });
session.on("error", (err) => {
  console.error(err);
  process.exit(1);
});
session.setMaxListeners(0);
await once(session, "remoteSettings");

// open asks for a tunnel and returns the stream with the status.
async function open(authority, fields = {}) {
  const stream = session.request({ ":method": "CONNECT", ":authority": authority, ...fields }, { endStream: false });
  const [headers] = await once(stream, "response");
  return { stream, status: headers[":status"], headers };
}

async function whole(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces).toString("latin1");
}

async function check(name, run) {
  await run();
  console.log(`ok ${name}`);
}

await check("extended CONNECT is announced", async () => {
  assert.equal(session.remoteSettings.enableConnectProtocol, true);
});
await check("echo and half-close", async () => {
  const { stream, status, headers } = await open(echo, { "proxy-authorization": "Basic eDp5" });
  assert.equal(status, 200);
  assert.equal(headers["content-length"], undefined);
  stream.end("hello");
  assert.equal(await whole(stream), "hello");
});
await check("refused", async () => {
  const { stream, status } = await open("nobody.test:443");
  assert.equal(status, 403);
  const body = JSON.parse(await whole(stream));
  assert.equal(body.code, "connect_not_allowed");
  stream.close();
});
await check("bytes before the answer", async () => {
  const stream = session.request({ ":method": "CONNECT", ":authority": echo }, { endStream: false });
  stream.end("early");
  assert.equal(await whole(stream), "early");
});
await check("reset", async () => {
  const { stream } = await open(echo);
  stream.close(http2.constants.NGHTTP2_CANCEL);
  await once(stream, "close");
});
await check("half of 200 tunnels unread", async () => {
  const idle = [];
  for (let i = 0; i < 100; i++) {
    const { stream, status } = await open(echo);
    assert.equal(status, 200);
    stream.write(Buffer.alloc(256 << 10, 1)); // which comes back, and is not read
    idle.push(stream);
  }
  const sent = "0123456789abcdef".repeat(8 << 10);
  await Promise.all(
    Array.from({ length: 100 }, async () => {
      const { stream } = await open(echo);
      stream.end(sent);
      assert.equal((await whole(stream)).length, sent.length);
    }),
  );
  for (const stream of idle) stream.close(http2.constants.NGHTTP2_CANCEL);
});
session.destroy();
