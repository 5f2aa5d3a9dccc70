// Frame cases of RFC 6455 through the gateway, on the library ws: node wsclient.mjs FOLDER VERSION URL CA-FILE. VERSION is h1
// or h2, where a session is opened by extended CONNECT (RFC 8441). The server is one that obeys messages: see wsserver.mjs.
// Writes "ok NAME" for each case that holds.
import assert from "node:assert";
import fs from "node:fs";
import http2 from "node:http2";
import { createRequire } from "node:module";

const [folder, version, url, caFile] = process.argv.slice(2);
const { WebSocket, PerMessageDeflate, extension } = createRequire(folder + "/")("ws");
const ca = fs.readFileSync(caFile);
const servername = "gateway.test";
const wsURL = url.replace(/^http/, "ws");
let paths = 0;
const session = version === "h2" ? http2.connect(url, { ca, servername }) : null;

// open returns an open session; it notes what arrives.
async function open({ protocols = [], deflate = false } = {}) {
  const path = `/${version}/${++paths}`;
  const ws = session ? await open2(path, protocols, deflate) : new WebSocket(wsURL + path, protocols, { ca, servername, perMessageDeflate: deflate });
  const got = { path, ws, messages: [], pings: [], pongs: [], waiting: [] };
  const wake = () => got.waiting.splice(0).forEach((f) => f());
  ws.on("message", (data, isBinary) => (got.messages.push({ data, isBinary }), wake()));
  ws.on("ping", (p) => (got.pings.push(p.toString()), wake()));
  ws.on("pong", (p) => (got.pongs.push(p.toString()), wake()));
  ws.on("error", (err) => ((got.error = err), wake()));
  got.closed = new Promise((resolve) => ws.on("close", (code, reason) => resolve(`${code} ${reason}`)));
  got.until = async (f) => {
    while (!f()) await new Promise((resolve) => got.waiting.push(resolve));
    return f();
  };
  got.next = async () => {
    await got.until(() => got.messages.length > 0);
    return got.messages.shift();
  };
  if (ws.readyState !== WebSocket.OPEN) await new Promise((resolve, reject) => (ws.on("open", resolve), ws.on("error", reject)));
  return got;
}

// open2 makes a session of the library out of an HTTP/2 stream.
async function open2(path, protocols, deflate) {
  const headers = { ":method": "CONNECT", ":protocol": "websocket", ":path": path, "sec-websocket-version": "13" };
  if (protocols.length) headers["sec-websocket-protocol"] = protocols.join(", ");
  const pmd = deflate ? new PerMessageDeflate({ ...deflate, isServer: false }) : null;
  if (pmd) headers["sec-websocket-extensions"] = extension.format({ [PerMessageDeflate.extensionName]: pmd.offer() });
  if (!session.remoteSettings?.enableConnectProtocol) await new Promise((resolve) => session.once("remoteSettings", resolve));
  const stream = session.request(headers, { endStream: false });
  const head = await new Promise((resolve, reject) => (stream.on("response", resolve), stream.on("error", reject)));
  assert.equal(head[":status"], 200);
  assert.equal(head["sec-websocket-accept"], undefined);
  const ws = new WebSocket(null, undefined, { autoPong: true, closeTimeout: 20000 });
  ws._isServer = false;
  ws._protocol = head["sec-websocket-protocol"] ?? "";
  const chosen = head["sec-websocket-extensions"];
  if (chosen) {
    pmd.accept(extension.parse(chosen)[PerMessageDeflate.extensionName]);
    ws._extensions[PerMessageDeflate.extensionName] = pmd;
  }
  ws.setSocket(stream, Buffer.alloc(0), { maxPayload: 0, skipUTF8Validation: false, allowSynchronousEvents: true });
  return ws;
}

// ended waits until the server has seen a session end, and returns how.
async function ended(path) {
  const asker = await open();
  for (;;) {
    asker.ws.send(`!ended ${path}`);
    const answer = (await asker.next()).data.toString();
    if (answer !== "open") {
      asker.ws.terminate();
      return answer;
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function check(name, run, options) {
  const late = setTimeout(() => (console.error(`${name}: too late`), process.exit(1)), 20000);
  const s = await open(options);
  await run(s);
  s.ws.terminate();
  clearTimeout(late);
  console.log(`ok ${name}`);
}

for (const size of [0, 1, 125, 126, 65535, 65536, 1 << 20]) {
  await check(`text of ${size}`, async (s) => {
    s.ws.send("ä".repeat(size >> 1) + "x".repeat(size & 1));
    const { data, isBinary } = await s.next();
    assert.deepEqual([data.length, isBinary], [size, false]);
  });
  await check(`binary of ${size}`, async (s) => {
    const sent = Buffer.from([...Array(size).keys()]);
    s.ws.send(sent);
    const { data, isBinary } = await s.next();
    assert.ok(data.equals(sent) && isBinary);
  });
}
await check("fragments with a ping between them", async (s) => {
  s.ws.send("ab", { fin: false });
  s.ws.ping("mid");
  s.ws.send("", { fin: false });
  s.ws.send("cdef", { fin: true });
  assert.equal((await s.next()).data.toString(), "abcdef");
  await s.until(() => s.pongs.length > 0);
  assert.deepEqual(s.pongs, ["mid"]);
});
await check("fragments of the server with a ping", async (s) => {
  s.ws.send("!fragments");
  assert.equal((await s.next()).data.toString(), "abcdef");
  assert.deepEqual(s.pings, ["mid"]);
});
await check("ping and pong", async (s) => {
  s.ws.ping("p".repeat(125));
  await s.until(() => s.pongs.length > 0);
  assert.deepEqual(s.pongs, ["p".repeat(125)]); // once
  s.ws.send("!ping hello");
  assert.equal((await s.next()).data.toString(), "pong hello");
  assert.deepEqual(s.pings, ["hello"]);
});
for (const code of [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999]) {
  await check(`close ${code} by the client`, async (s) => {
    s.ws.close(code, "over");
    assert.match(await s.closed, new RegExp(`^${code} `));
    assert.equal(await ended(s.path), `${code} over`);
  });
  await check(`close ${code} by the server`, async (s) => {
    s.ws.send(`!close ${code} over`);
    assert.equal(await s.closed, `${code} over`);
  });
}
await check("close without a code", async (s) => {
  s.ws.close();
  assert.equal(await s.closed, "1005 ");
  assert.equal(await ended(s.path), "1005 ");
});
for (const [name, hex, code] of [
  ["frame without a mask", "810161", 1002],
  ["reserved opcode", "838000000000", 1002],
  ["reserved bit", "a18000000000", 1002],
  ["text that is none", "818100000000ff", 1007],
  ["fragmented ping", "098000000000", 1002],
  ["continuation of nothing", "808000000000", 1002],
  ["close with code 1005", "88820000000003ed", 1002],
]) {
  await check(`${name} by the client`, async (s) => {
    s.ws._socket.write(Buffer.from(hex, "hex"));
    assert.match(await s.closed, new RegExp(`^${code} `)); // the server's verdict
  });
}
for (const [name, hex, code] of [
  ["frame with a mask", "818100000000ff", 1002],
  ["reserved opcode", "8300", 1002],
  ["text that is none", "8101ff", 1007],
]) {
  await check(`${name} by the server`, async (s) => {
    s.ws.send(`!raw ${hex}`);
    await s.closed;
    assert.ok(s.error);
    assert.match(await ended(s.path), new RegExp(`^${code} `)); // ours
  });
}
await check("subprotocol", async (s) => assert.equal(s.ws.protocol, "v2"), { protocols: ["v3", "v2", "v1"] });
await check("no subprotocol", async (s) => assert.equal(s.ws.protocol, ""), {});
await check(
  "permessage-deflate",
  async (s) => {
    assert.match(s.ws.extensions, /permessage-deflate/);
    for (const text of ["x".repeat(1 << 20), "short", ""]) {
      s.ws.send(text);
      assert.equal((await s.next()).data.toString(), text);
    }
  },
  { deflate: { threshold: 0 } },
);
await check("end of the server's sending", async (s) => {
  s.ws.send("!end");
  assert.equal(await s.closed, "1006 ");
});
await check("end of the client's sending", async (s) => {
  s.ws._socket.end();
  assert.equal(await s.closed, "1006 ");
  assert.equal(await ended(s.path), "1006 ");
});
await check("abrupt end of the server", async (s) => {
  s.ws.send("!abort");
  assert.equal(await s.closed, "1006 ");
});
await check("abrupt end of the client", async (s) => {
  s.ws.terminate();
  assert.equal(await ended(s.path), "1006 ");
});
session?.destroy();
process.exit(0);
