// Answers with what it saw of a request, as JSON, over HTTP/2 without TLS.
import http2 from "node:http2";

const server = http2.createServer({ settings: { maxConcurrentStreams: 10 } });
server.on("stream", (stream, headers) => {
  const chunks = [];
  stream.on("data", (c) => chunks.push(c));
  stream.on("error", () => {});
  stream.on("end", () => {
    stream.respond({ ":status": 200, "content-type": "application/json" });
    stream.end(
      JSON.stringify({
        Method: headers[":method"],
        URI: headers[":path"],
        Host: headers[":authority"],
        Body: Buffer.concat(chunks).toString("latin1"),
      }),
    );
  });
});
server.listen(0, "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
