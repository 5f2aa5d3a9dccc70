"""Frame cases of RFC 6455 through the gateway, on the library websockets: wsclient.py URL CA-FILE. The server is one that
obeys messages: see wsserver.mjs. Writes "ok NAME" for each case that holds."""

import asyncio
import ssl
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

url, ca = sys.argv[1].replace("http", "ws", 1), sys.argv[2]
context = ssl.create_default_context(cafile=ca) if url.startswith("wss") else None
more = {"server_hostname": "gateway.test"} if context else {}
paths = 0


def same(got, want):
    if got != want:
        sys.exit(f"{case}: {got!r}, want {want!r}")


def session(path=None, **options):
    global paths
    paths += 1
    return connect(f"{url}/py/{path or paths}", ssl=context, max_size=None, compression=options.pop("compression", None), **more, **options)


async def closed(ws):
    """How the other side has ended a session."""
    await asyncio.wait_for(ws.wait_closed(), 20)
    received = ws.protocol.close_rcvd
    return (received.code, received.reason) if received else (1006, "")


async def ended(path, want):
    """Waits until the server has seen a session end, and checks how."""
    async with session() as ws:
        for _ in range(500):
            await ws.send(f"!ended /py/{path}")
            got = await ws.recv()
            if got != "open":
                return same(got, want)
            await asyncio.sleep(0.02)
    sys.exit(f"{case}: still open")


async def sizes(ws):
    for size in (0, 1, 125, 126, 65535, 65536, 1 << 20):
        for message in ("x" * size, bytes(i & 255 for i in range(size))):
            await ws.send(message)
            same(await ws.recv(), message)


async def fragments(ws):
    async def pieces():
        yield "ab"
        await ws.ping()
        yield "cdef"

    await ws.send(pieces())
    same(await ws.recv(), "abcdef")
    await ws.send("!fragments")
    same(await ws.recv(), "abcdef")


async def pings(ws):
    await asyncio.wait_for(await ws.ping(b"p" * 125), 20)
    await ws.send("!ping hello")
    same(await ws.recv(), "pong hello")


def close_here(code):
    async def run(ws):
        await ws.close(code, "over")
        same((await closed(ws))[0], code)
        await ended(ws.request.path.removeprefix("/py/"), f"{code} over")

    return run


def close_there(code):
    async def run(ws):
        await ws.send(f"!close {code} over")
        same(await closed(ws), (code, "over"))

    return run


def raw(data, code):
    async def run(ws):
        ws.transport.write(bytes.fromhex(data))
        same((await closed(ws))[0], code)

    return run


async def deflate(ws):
    same([e.name for e in ws.protocol.extensions], ["permessage-deflate"])
    for text in ("x" * (1 << 20), "short", ""):
        await ws.send(text)
        same(await ws.recv(), text)


async def subprotocol(ws):
    same(ws.subprotocol, "v2")


async def abort_there(ws):
    await ws.send("!abort")
    same(await closed(ws), (1006, ""))


async def abort_here(ws):
    ws.transport.abort()
    await ended(ws.request.path.removeprefix("/py/"), "1006 ")


cases = [
    ("sizes", sizes, {}), ("fragments", fragments, {}), ("pings", pings, {}),
    ("unmasked", raw("810161", 1002), {}), ("reserved opcode", raw("838000000000", 1002), {}), ("no text", raw("818100000000ff", 1007), {}),
    ("deflate", deflate, {"compression": "deflate"}), ("subprotocol", subprotocol, {"subprotocols": ["v3", "v2", "v1"]}),
    ("abrupt end there", abort_there, {}), ("abrupt end here", abort_here, {}),
]
for code in (1000, 1001, 1008, 1011, 3000, 4000, 4999):
    cases += [(f"close {code} here", close_here(code), {}), (f"close {code} there", close_there(code), {})]


async def main():
    global case
    for case, run, options in cases:
        try:
            async with session(**options) as ws:
                await run(ws)
        except ConnectionClosed as e:
            sys.exit(f"{case}: {e!r}")
        print("ok", case)


asyncio.run(main())
