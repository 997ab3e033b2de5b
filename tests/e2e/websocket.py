"""A WebSocket peer of another make: `agent` serves, `client URL CERTIFICATE` plays scenarios through a gateway."""

import asyncio
import os
import ssl
import sys
import time

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed, InvalidStatus


async def answer(connection):
    """Echoes messages as they are; some words ask for something else."""
    path = connection.request.path
    if not path.startswith("/d/"):
        await connection.close(4000, "another path: " + path)
        return
    async for message in connection:
        if message == "path":
            await connection.send(path)
        elif message == "close 4001":
            await connection.close(4001, "as you wish")
        elif message == "half":
            # The rest of a question may still come after our last word.
            await connection.send("bye")
            await connection.close(1000, "done")
        else:
            await connection.send(message)


async def agent():
    async with serve(
        answer, "127.0.0.1", 0, subprotocols=["vmware-vvc", "binary"], max_size=None, ping_interval=None
    ) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


def through(url, tls, **options):
    options.setdefault("subprotocols", ["binary"])
    return connect(url, ssl=tls, server_hostname="localhost", max_size=None, ping_interval=None, **options)


async def messages(url, tls):
    """Text, binary, ping, and a mebibyte, with compression and without."""
    for compression in ("deflate", None):
        async with through(url, tls, subprotocols=["binary", "vmware-vvc"], compression=compression) as ws:
            chosen = [extension.name for extension in ws.protocol.extensions]
            assert chosen == (["permessage-deflate"] if compression else []), chosen
            assert ws.subprotocol in ("vmware-vvc", "binary"), ws.subprotocol
            for message in ("", "text", "ä" * 1000, b"", b"\x00\xff" * 100, os.urandom(1 << 20), "x" * (1 << 20)):
                await ws.send(message)
                heard = await ws.recv()
                assert heard == message, (type(heard), len(heard))
            await (await ws.ping(b"are you there?"))
            # Many at once, so that frames share packets and packets split frames.
            pieces = [os.urandom(n * 37 % 9000) for n in range(500)]
            send = asyncio.create_task(send_all(ws, pieces))
            for piece in pieces:
                assert await ws.recv() == piece
            await send
            await ws.send("path")
            assert (await ws.recv()).startswith("/d/"), "the agent's own path"


async def send_all(ws, pieces):
    for piece in pieces:
        await ws.send(piece)


async def closes(url, tls):
    """Close codes pass both ways, and either side may be the first."""
    async with through(url, tls) as ws:
        await ws.send("close 4001")
        await expect_close(ws, 4001, "as you wish")
    async with through(url, tls) as ws:
        await ws.close(4002, "enough")
        assert ws.close_code == 4002, ws.close_code
    async with through(url, tls) as ws:
        await ws.send("half")
        assert await ws.recv() == "bye"
        await expect_close(ws, 1000, "done")


async def expect_close(ws, code, reason):
    try:
        await asyncio.wait_for(ws.recv(), 20)
    except ConnectionClosed as end:
        assert end.rcvd is not None, "no closing frame"
        assert (end.rcvd.code, end.rcvd.reason) == (code, reason), end.rcvd
        return
    raise AssertionError("not closed")


async def idle(url, tls):
    """Silence beyond every limit of HTTP, then a word."""
    async with through(url, tls) as ws:
        await asyncio.sleep(4)
        await ws.send("still there?")
        assert await ws.recv() == "still there?"


async def ended(url, tls):
    """Waits for the end of the session, which comes with a closing frame."""
    async with through(url, tls) as ws:
        await ws.send("ready")
        assert await ws.recv() == "ready"
        print("ready", flush=True)
        try:
            await asyncio.wait_for(ws.recv(), 20)
        except ConnectionClosed as end:
            assert end.rcvd is not None and end.rcvd.code == 1001, end
            return
        raise AssertionError("not closed")


async def refused(url, tls):
    """A token that opens nothing."""
    try:
        async with through(url, tls):
            raise AssertionError("admitted")
    except InvalidStatus as status:
        assert status.response.status_code == 403, status


def main():
    if sys.argv[1] == "agent":
        asyncio.run(agent())
        return
    scenario, url, certificate = sys.argv[1:4]
    tls = ssl.create_default_context(cafile=certificate)
    started = time.monotonic()
    asyncio.run(globals()[scenario](url, tls))
    print(f"{scenario}: {time.monotonic() - started:.2f} s", flush=True)


main()
