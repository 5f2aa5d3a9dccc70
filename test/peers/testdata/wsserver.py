"""A WebSocket server on the library websockets. It does what wsserver.mjs does."""

import asyncio

from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

ended = {}  # how sessions ended, by the path that they asked for


async def fragments():
    yield "ab"
    yield ""
    yield "cdef"


async def obey(ws, message):
    verb, _, arg = message.partition(" ") if isinstance(message, str) else ("", "", "")
    match verb:
        case "!close":
            code, _, reason = arg.partition(" ")
            await ws.close(int(code), reason)
        case "!ping":
            await (await ws.ping(arg))
            await ws.send(f"pong {arg}")
        case "!fragments":
            await ws.ping("mid")
            await ws.send(fragments())
        case "!raw":
            ws.transport.write(bytes.fromhex(arg))
        case "!end":
            ws.transport.write_eof()
        case "!abort":
            ws.transport.abort()
        case "!ended":
            await ws.send(ended.get(arg, "open"))
        case _:
            await ws.send(message)


async def handler(ws):
    tasks = set()
    try:
        async for message in ws:
            if isinstance(message, str) and message.startswith("!ping"):  # the pong is read by this loop
                tasks.add(asyncio.create_task(obey(ws, message)))
            else:
                await obey(ws, message)
    except ConnectionClosed:
        pass
    received = ws.protocol.close_rcvd
    ended[ws.request.path] = f"{received.code} {received.reason}" if received else "1006 "


def choose(_, offered):
    return "v2" if "v2" in offered else None


async def main():
    async with serve(handler, "127.0.0.1", 0, select_subprotocol=choose, max_size=None) as server:
        print("listening on", server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().create_future()


asyncio.run(main())
