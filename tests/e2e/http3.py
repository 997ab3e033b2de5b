"""A browser of another make (aioquic) over HTTP/3: one request of each kind, on one connection.

    http3.py HOST PORT CA AUTHORITY

What was answered is written to standard output as one JSON object.
"""

import asyncio
import hashlib
import json
import random
import ssl
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamReset


class Browser(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.streams = {}

    def quic_event_received(self, event):
        if isinstance(event, StreamReset) and event.stream_id in self.streams:
            self.streams[event.stream_id].put_nowait(event)
        if isinstance(event, ConnectionTerminated):
            for queue in self.streams.values():
                queue.put_nowait(event)
        for found in self.http.handle_event(event):
            if found.stream_id in self.streams:
                self.streams[found.stream_id].put_nowait(found)

    async def ask(self, authority, method, path, body=None, fields=(), trailers=None):
        stream = self._quic.get_next_available_stream_id()
        self.streams[stream] = asyncio.Queue()
        head = [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":authority", authority.encode()),
            (b":path", path.encode()),
            *fields,
        ]
        self.http.send_headers(stream, head, end_stream=body is None and trailers is None)
        if body is not None:
            self.http.send_data(stream, body, end_stream=trailers is None)
        if trailers is not None:
            self.http.send_headers(stream, trailers, end_stream=True)
        self.transmit()
        sections, digest, length = [], hashlib.sha256(), 0
        while True:
            event = await asyncio.wait_for(self.streams[stream].get(), 20)
            if isinstance(event, HeadersReceived):
                sections.append({name.decode(): value.decode() for name, value in event.headers})
            elif isinstance(event, DataReceived):
                digest.update(event.data)
                length += len(event.data)
            else:
                raise RuntimeError(f"{path}: the other side gave up: {event}")
            if event.stream_ended:
                return {"sections": sections, "sha256": digest.hexdigest(), "length": length}


async def main(host, port, ca, authority):
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=H3_ALPN, server_name="localhost", verify_mode=ssl.CERT_REQUIRED
    )
    configuration.load_verify_locations(ca)
    body = random.Random(1).randbytes(1024 * 1024)
    async with connect(host, int(port), configuration=configuration, create_protocol=Browser) as browser:
        found = {
            "sent": hashlib.sha256(body).hexdigest(),
            "get": await browser.ask(authority, "GET", "/a/../b?c"),
            "head": await browser.ask(authority, "HEAD", "/head"),
            "post": await browser.ask(authority, "POST", "/echo", body, [(b"content-length", str(len(body)).encode())]),
            "trailers": await browser.ask(
                authority, "POST", "/trailers", body, [(b"te", b"trailers")], [(b"x-sum", b"42")]
            ),
            "many": await asyncio.gather(
                *(browser.ask(authority, "POST", f"/echo?{number}", body[: number * 1000]) for number in range(50))
            ),
        }
    print(json.dumps(found), flush=True)


asyncio.run(main(*sys.argv[1:]))
