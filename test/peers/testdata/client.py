"""Talks to the gateway with Python's own HTTP client, and with a WebSocket handshake by hand. Prints what it checked."""

import base64
import hashlib
import http.client
import json
import os
import socket
import sys

host, port = sys.argv[1].split(":")


def check(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r}, want {want!r}")
    print("ok", what)


def ask(conn, method, path, body=None, **more):
    conn.request(method, path, body, **more)
    res = conn.getresponse()
    return res.status, json.loads(res.read() or b"{}")


# One connection for many requests.
conn = http.client.HTTPConnection(host, int(port), timeout=20)
conn.connect()
sock = conn.sock
for i in range(5):
    status, saw = ask(conn, "GET", f"/keep/{i}?q")
    check(f"keep-alive {i}", (status, saw["URI"], conn.sock is sock), (200, f"/keep/{i}?q", True))

# Uploads: with a length, in chunks of many sizes, empty.
status, saw = ask(conn, "POST", "/length", b"x" * 100_000)
check("length", (status, len(saw["Body"])), (200, 100_000))
pieces = [b"a" * n for n in (1, 15, 16, 4096, 65_536, 100_000)]
status, saw = ask(conn, "PUT", "/chunks", iter(pieces), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
check("chunks", (status, len(saw["Body"])), (200, sum(map(len, pieces))))
status, saw = ask(conn, "POST", "/empty", b"")
check("empty", (status, saw["Method"], saw["Body"]), (200, "POST", ""))

# An answer without a body does not disturb the next one.
conn.request("HEAD", "/head")
res = conn.getresponse()
check("head", (res.status, res.read()), (200, b""))
status, saw = ask(conn, "DELETE", "/last")
check("last", (status, saw["Method"], conn.sock is sock), (200, "DELETE", True))
conn.close()

# A WebSocket handshake, the first bytes right behind it, and the relay in both directions to its end.
key = base64.b64encode(os.urandom(16))
s = socket.create_connection((host, int(port)), timeout=20)
s.sendall(
    b"GET /chat HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n"
)
f = s.makefile("rb")
check("101", f.readline(), b"HTTP/1.1 101 Switching Protocols\r\n")
fields = {}
while (line := f.readline()) != b"\r\n":
    name, value = line.decode().strip().split(": ", 1)
    fields[name.lower()] = value
want = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
check("accept", fields["sec-websocket-accept"], want)
check("upgrade", (fields["upgrade"].lower(), fields["connection"].lower()), ("websocket", "upgrade"))
for size in (2, 1000, 200_000):
    data = os.urandom(size)
    s.sendall(data)
    check(f"relay of {size}", f.read(size), data)
s.shutdown(socket.SHUT_WR)
check("end", f.read(), b"")
