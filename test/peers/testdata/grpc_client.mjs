// A gRPC client of grpc-js before grpc_server.mjs. Usage: node grpc_client.mjs FOLDER ADDRESS [CA]. Prints a line for each
// check, and ends with an error at the first that fails.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [folder, address, ca] = process.argv.slice(2);
const grpc = createRequire(folder + "/")("@grpc/grpc-js");

const creds = ca ? grpc.credentials.createSsl(readFileSync(ca)) : grpc.credentials.createInsecure();
const client = new grpc.Client(address, creds, {
  "grpc.max_receive_message_length": -1,
  "grpc.max_send_message_length": -1,
  "grpc.enable_retries": 0,
  ...(ca && { "grpc.ssl_target_name_override": "gateway.test" }),
});
const bytes = (b) => b;
const path = (name) => "/peers.Echo/" + name;
const binary = Buffer.from([...Array(256).keys()]);

function metadata() {
  const md = new grpc.Metadata();
  md.add("data-bin", binary);
  md.add("data-bin", Buffer.from([0]));
  md.set("x-plain", "word");
  return md;
}

// ended is how a call has ended: its head, its messages and its status.
function ended(call) {
  return new Promise((resolve) => {
    const all = { head: null, messages: [] };
    call.on("metadata", (md) => (all.head = md));
    call.on("data", (b) => all.messages.push(b));
    call.on("error", () => {});
    call.on("status", (status) => resolve({ ...all, status }));
  });
}

// once is ended for a call with one answer.
function once(start) {
  return new Promise((resolve) => {
    const all = { head: null };
    const call = start((_, answer) => (all.answer = answer));
    call.on("metadata", (md) => (all.head = md));
    call.on("status", (status) => resolve({ ...all, status }));
  });
}

const unary = (message, options = {}, md = metadata()) =>
  once((done) => client.makeUnaryRequest(path("Unary"), bytes, bytes, Buffer.from(message), md, options, done));

function good(result) {
  assert.equal(result.status.code, grpc.status.OK, result.status.details);
  for (const md of [result.head, result.status.metadata]) {
    assert.deepEqual(md.get("data-bin"), [binary, Buffer.from([0])]);
  }
}

const checks = {
  async unary() {
    const r = await unary("hello");
    good(r);
    assert.equal(r.answer.toString(), "hello");
  },
  async "empty message"() {
    const r = await unary("");
    good(r);
    assert.equal(r.answer.length, 0);
  },
  async "big messages"() {
    const big = Buffer.alloc(8 << 20, "0123456789abcdef");
    const r = await unary(big);
    good(r);
    assert.ok(r.answer.equals(big));
  },
  async "many at once"() {
    const all = await Promise.all([...Array(200).keys()].map((i) => unary("call " + i)));
    all.forEach((r, i) => {
      good(r);
      assert.equal(r.answer.toString(), "call " + i);
    });
  },
  async upload() {
    const r = await once((done) => {
      const call = client.makeClientStreamRequest(path("Upload"), bytes, bytes, metadata(), done);
      for (let i = 0; i < 100; i++) call.write(Buffer.alloc(i * 1000));
      call.end();
      return call;
    });
    good(r);
    assert.equal(r.answer.toString(), "100 4950000");
  },
  async download() {
    const call = client.makeServerStreamRequest(path("Download"), bytes, bytes, Buffer.from("100 50000"), metadata());
    const r = await ended(call);
    good(r);
    assert.equal(r.messages.length, 100);
    r.messages.forEach((m, i) => assert.ok(m.equals(Buffer.alloc(50000, i))));
  },
  async "both ways, one after the other"() {
    const call = client.makeBidiStreamRequest(path("Both"), bytes, bytes, metadata());
    const end = ended(call);
    for (let i = 0; i < 50; i++) {
      const back = new Promise((resolve) => call.once("data", resolve));
      call.write(Buffer.from("message " + i));
      assert.equal((await back).toString(), "message " + i);
    }
    call.end();
    good(await end);
  },
  async "both ways without a message"() {
    const call = client.makeBidiStreamRequest(path("Both"), bytes, bytes, metadata());
    call.end();
    const r = await ended(call);
    good(r);
    assert.equal(r.messages.length, 0);
  },
  async "a status with a text"() {
    const text = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈 100%\t\n";
    const r = await unary("status 9 " + text);
    assert.equal(r.status.code, grpc.status.FAILED_PRECONDITION);
    assert.equal(r.status.details, text);
    assert.deepEqual(r.status.metadata.get("data-bin"), [binary, Buffer.from([0])]);
  },
  async "a method that is not there"() {
    const r = await once((done) => client.makeUnaryRequest(path("Nothing"), bytes, bytes, Buffer.alloc(0), done));
    assert.equal(r.status.code, grpc.status.UNIMPLEMENTED);
  },
  async deadline() {
    const r = await unary("sleep", { deadline: Date.now() + 300 });
    assert.equal(r.status.code, grpc.status.DEADLINE_EXCEEDED);
  },
  async "cancelled in a stream"() {
    const call = client.makeBidiStreamRequest(path("Both"), bytes, bytes, metadata());
    const end = ended(call);
    const first = new Promise((resolve) => call.once("data", resolve));
    call.write(Buffer.from("one"));
    await first;
    call.cancel();
    assert.equal((await end).status.code, grpc.status.CANCELLED);
  },
  async "cancelled before an answer"() {
    const r = await once((done) => {
      const call = client.makeUnaryRequest(path("Unary"), bytes, bytes, Buffer.from("sleep"), metadata(), done);
      call.on("metadata", () => call.cancel());
      return call;
    });
    assert.equal(r.status.code, grpc.status.CANCELLED);
  },
  async "an error of the gateway's"() {
    const r = await once((done) => client.makeUnaryRequest("/peers.Gone/Any", bytes, bytes, Buffer.alloc(0), done));
    assert.equal(r.status.code, grpc.status.UNAVAILABLE);
    assert.equal(r.status.details, "Bad gateway");
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log("ok " + name);
}
client.close();
