// A WebSocket server on the library ws: node wsserver.mjs FOLDER. It sends back what it gets, but does what messages that
// begin with an exclamation mark say; see client.
import { createRequire } from "node:module";

const { WebSocketServer } = createRequire(process.argv[2] + "/")("ws");
const ended = new Map(); // how sessions ended, by the path that they asked for

const server = new WebSocketServer({
  host: "127.0.0.1",
  port: 0,
  perMessageDeflate: { threshold: 0 },
  handleProtocols: (offered) => (offered.has("v2") ? "v2" : false),
});
server.on("listening", () => console.log(`listening on ${server.address().port}`));
server.on("connection", (ws, req) => {
  ws.on("error", () => {});
  ws.on("close", (code, reason) => ended.set(req.url, `${code} ${reason}`));
  ws.on("message", (data, isBinary) => {
    const [verb, ...rest] = isBinary ? [] : data.toString().split(" ");
    const arg = rest.join(" ");
    switch (verb) {
      case "!close":
        return ws.close(Number(rest[0]), rest[1]);
      case "!ping":
        ws.once("pong", (p) => ws.send(`pong ${p}`));
        return ws.ping(arg);
      case "!fragments":
        ws.send("ab", { fin: false, compress: false });
        ws.ping("mid");
        ws.send("", { fin: false, compress: false });
        return ws.send("cdef", { fin: true, compress: false });
      case "!raw":
        return ws._socket.write(Buffer.from(arg, "hex"));
      case "!end":
        return ws._socket.end();
      case "!abort":
        return ws._socket.resetAndDestroy();
      case "!ended":
        return ws.send(ended.get(arg) ?? "open");
    }
    ws.send(data, { binary: isBinary });
  });
});
