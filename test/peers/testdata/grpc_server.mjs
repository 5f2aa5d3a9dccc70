// A gRPC server of grpc-js. Usage: node grpc_server.mjs FOLDER [CERT KEY], FOLDER the one that @grpc/grpc-js is installed in.
// Messages are bytes; the first of a call says what is to become of it. Prints its port, and each call that was cancelled.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [folder, cert, key] = process.argv.slice(2);
const grpc = createRequire(folder + "/")("@grpc/grpc-js");

const bytes = (b) => b;
const method = (name, requestStream, responseStream) => ({
  path: "/peers.Echo/" + name,
  requestStream,
  responseStream,
  requestSerialize: bytes,
  requestDeserialize: bytes,
  responseSerialize: bytes,
  responseDeserialize: bytes,
});
const service = {
  unary: method("Unary", false, false),
  upload: method("Upload", true, false),
  download: method("Download", false, true),
  both: method("Both", true, true),
};

// metadata returns what the client has sent under this name, in head and trailers.
function returned(call) {
  const md = new grpc.Metadata();
  for (const v of call.metadata.get("data-bin")) md.add("data-bin", v);
  return md;
}

// watch sends the head, and tells when the client leaves before the handler has answered: the library says cancelled also
// of calls that are over.
function watch(call, name) {
  call.on("cancelled", () => call.answered || console.log("cancelled " + name));
  call.sendMetadata(returned(call));
}

const server = new grpc.Server({ "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 });
server.addService(service, {
  unary(call, done) {
    watch(call, "unary");
    const text = call.request.subarray(0, 100).toString();
    if (text === "sleep") return;
    call.answered = true;
    const fault = /^status (\d+) (.*)$/s.exec(text);
    if (fault) return done({ code: Number(fault[1]), details: fault[2], metadata: returned(call) });
    done(null, call.request, returned(call));
  },
  upload(call, done) {
    watch(call, "upload");
    let count = 0;
    let size = 0;
    call.on("data", (b) => {
      count++;
      size += b.length;
    });
    call.on("end", () => {
      call.answered = true;
      done(null, Buffer.from(count + " " + size), returned(call));
    });
  },
  download(call) {
    watch(call, "download");
    const [count, size] = call.request.toString().split(" ").map(Number);
    for (let i = 0; i < count; i++) call.write(Buffer.alloc(size, i));
    call.answered = true;
    call.end(returned(call));
  },
  both(call) {
    watch(call, "both");
    call.on("data", (b) => call.write(b));
    const end = () => {
      if (call.cancelled) return;
      call.answered = true;
      call.end(returned(call));
    };
    call.on("end", () => setTimeout(end, 100)); // a reset is an end, too, and only then a cancellation
  },
});

const creds = cert
  ? grpc.ServerCredentials.createSsl(null, [{ cert_chain: readFileSync(cert), private_key: readFileSync(key) }])
  : grpc.ServerCredentials.createInsecure();
server.bindAsync("127.0.0.1:0", creds, (err, port) => {
  if (err) throw err;
  console.log("port " + port);
});
