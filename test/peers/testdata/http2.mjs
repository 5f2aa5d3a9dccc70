// Node's HTTP/2 client before the gateway: node http2.mjs URL CA-FILE. Writes "ok NAME" for each check that holds.
import assert from "node:assert";
import fs from "node:fs";
import http2 from "node:http2";

const [url, ca] = process.argv.slice(2);
const session = http2.connect(url, { ca: fs.readFileSync(ca), servername: "gateway.test" });
session.on("error", (err) => {
  console.error(err);
  process.exit(1);
});

// request sends one and returns what came of it.
function request(headers, body) {
  return new Promise((resolve, reject) => {
    const stream = session.request({ ":path": "/", ...headers }, { endStream: body === undefined });
    const got = { pieces: [], trailers: {}, interim: [] };
    stream.on("response", (h) => (got.headers = h));
    stream.on("headers", (h) => got.interim.push(h[":status"]));
    stream.on("trailers", (t) => (got.trailers = t));
    stream.on("data", (piece) => got.pieces.push(piece));
    stream.on("error", reject);
    stream.on("end", () => resolve({ ...got, body: Buffer.concat(got.pieces).toString("latin1") }));
    if (body !== undefined) stream.end(body);
  });
}

async function check(name, run) {
  await run();
  console.log(`ok ${name}`);
}

await check("get", async () => {
  const { headers, body } = await request({ ":path": "/a?b=c" });
  assert.equal(headers[":status"], 200);
  const saw = JSON.parse(body);
  assert.deepEqual([saw.Method, saw.URI, saw.Body], ["GET", "/a?b=c", ""]);
});
await check("upload", async () => {
  const sent = "0123456789abcdef".repeat(20_000);
  const saw = JSON.parse((await request({ ":method": "POST" }, sent)).body);
  assert.equal(saw.Method, "POST");
  assert.equal(saw.Body, sent);
});
await check("many at once", async () => {
  const all = await Promise.all([...Array(100).keys()].map((i) => request({ ":path": `/${i}`, ":method": "PUT" }, `${i}`)));
  all.forEach(({ body }, i) => assert.deepEqual([JSON.parse(body).URI, JSON.parse(body).Body], [`/${i}`, `${i}`]));
});
await check("head", async () => {
  const { headers, body } = await request({ ":method": "HEAD" });
  assert.equal(headers[":status"], 200);
  assert.equal(body, "");
});
await check("refused", async () => {
  const { headers } = await request({ ":method": "TRACE" });
  assert.equal(headers[":status"], 405);
});
await check("take back", async () => {
  const stream = session.request({ ":path": "/", ":method": "POST" });
  const closed = new Promise((resolve) => stream.on("close", resolve));
  stream.write("some");
  stream.close(http2.constants.NGHTTP2_CANCEL);
  await closed;
  assert.equal((await request({})).headers[":status"], 200);
});
await check("ping", () => new Promise((resolve, reject) => session.ping((err) => (err ? reject(err) : resolve()))));
await check("settings", async () => {
  await new Promise((resolve) => session.settings({ initialWindowSize: 1 << 20, headerTableSize: 0 }, resolve));
  assert.equal((await request({})).headers[":status"], 200);
});
await check("end", () => new Promise((resolve) => session.close(resolve)));
