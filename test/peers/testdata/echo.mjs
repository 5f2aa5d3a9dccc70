// Answers every request with what was seen of it, and writes a line for each to standard output: id, status, request
// line. The parser is as strict as it comes.
import { createHash } from "node:crypto";
import http from "node:http";

const line = (req, status) =>
  console.log(`${req.headers["x-request-id"] ?? "-"} ${status} ${req.method} ${req.url} HTTP/${req.httpVersion}`);

const server = http.createServer({ insecureHTTPParser: false, requireHostHeader: true }, (req, res) => {
  const pieces = [];
  req.on("data", (piece) => pieces.push(piece));
  req.on("error", () => {});
  req.on("close", () => {
    if (!req.complete) line(req, 400);
  });
  req.on("end", () => {
    if (!req.complete) return;
    line(req, 200);
    const body = Buffer.concat(pieces).toString("latin1");
    res.setHeader("Content-Type", "application/json");
    res.end(JSON.stringify({ Method: req.method, URI: req.url, Host: req.headers.host ?? "", Body: body }));
  });
});
server.on("clientError", (err, socket) => {
  // The end of the connection inside a body is told by the request, too.
  if (err.code !== "ECONNRESET" && err.code !== "HPE_INVALID_EOF_STATE") console.log(`- 400 ${err.code}`);
  socket.end("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
});
server.on("upgrade", (req, socket) => {
  line(req, 101);
  const guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"; // RFC 6455 section 1.3
  const accept = createHash("sha1").update(req.headers["sec-websocket-key"] + guid).digest("base64");
  const head = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: websocket", `Sec-WebSocket-Accept: ${accept}`];
  socket.write(head.join("\r\n") + "\r\n\r\n");
  socket.pipe(socket);
  socket.on("error", () => {});
});
server.listen(0, "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
