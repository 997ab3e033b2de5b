"""A client of another make (aioquic): CONNECT and CONNECT-UDP through a gateway, over a network that misbehaves.

    masque.py SCENARIO HOST PORT CA TOKEN PLACE

Between client and gateway is a relay of this program, which can change its own port or lose datagrams. What was found is
written to standard output as one JSON object.
"""

import asyncio
import hashlib
import json
import random
import ssl
import sys
import time

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.buffer import Buffer, BufferReadError
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DatagramReceived, DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.congestion.base import QuicCongestionControl, register_congestion_control
from aioquic.quic.events import ConnectionTerminated, StreamReset


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic, enable_webtransport=True)
        self.events = asyncio.Queue()

    def quic_event_received(self, event):
        if isinstance(event, (StreamReset, ConnectionTerminated)):
            self.events.put_nowait(event)
        for found in self.http.handle_event(event):
            self.events.put_nowait(found)

    def open(self, headers):
        stream = self._quic.get_next_available_stream_id()
        self.http.send_headers(stream, headers)
        self.transmit()
        return stream

    def send(self, stream, data, end=False):
        self.http.send_data(stream, data, end)
        self.transmit()

    def send_payload(self, stream, payload):
        self.http.send_datagram(stream, b"\0" + payload)
        self.transmit()

    async def next(self, within=10):
        event = await asyncio.wait_for(self.events.get(), within)
        if isinstance(event, (StreamReset, ConnectionTerminated)):
            raise RuntimeError(f"the other side gave up: {event}")
        return event

    async def admitted(self):
        while True:
            event = await self.next()
            if isinstance(event, HeadersReceived):
                return dict(event.headers)[b":status"].decode()


class Side(asyncio.DatagramProtocol):
    def __init__(self, take):
        self.take = take

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.take(data, address)

    def error_received(self, error):
        pass


class Relay:
    """Passes datagrams between one client and the gateway."""

    def __init__(self, gateway, loss=0.0):
        self.gateway, self.loss, self.client = gateway, loss, None
        self.dice = random.Random(7)
        self.ports = []

    async def start(self):
        loop = asyncio.get_running_loop()
        self.outside, _ = await loop.create_datagram_endpoint(
            lambda: Side(self.from_client), local_addr=("127.0.0.1", 0)
        )
        await self.change_port()
        return self.outside.get_extra_info("sockname")[1]

    async def change_port(self):
        loop = asyncio.get_running_loop()
        old = getattr(self, "inside", None)
        self.inside, _ = await loop.create_datagram_endpoint(
            lambda: Side(self.from_gateway), local_addr=("127.0.0.1", 0)
        )
        self.ports.append(self.inside.get_extra_info("sockname")[1])
        if old:
            # What still comes to the old port is lost, as behind a router that has forgotten it.
            old.close()

    def from_client(self, data, address):
        self.client = address
        if self.dice.random() >= self.loss:
            self.inside.sendto(data, self.gateway)

    def from_gateway(self, data, address):
        if self.client and self.dice.random() >= self.loss:
            self.outside.sendto(data, self.client)


class Capsules:
    """Takes payloads out of a stream (RFC 9297 section 3.2)."""

    def __init__(self):
        self.octets = b""

    def read(self, octets):
        self.octets += octets
        while True:
            buffer = Buffer(data=self.octets)
            try:
                kind = buffer.pull_uint_var()
                value = buffer.pull_bytes(buffer.pull_uint_var())
            except BufferReadError:
                return
            self.octets = self.octets[buffer.tell() :]
            if kind == 0 and value[:1] == b"\0":
                yield value[1:]


class Steady(QuicCongestionControl):
    """Sends on whatever is lost, as those do that send at a rate of their own.

    This client's own congestion control takes each loss for congestion; with 12 % it would send less than it is asked to, and
    be what is measured.
    """

    def on_packet_acked(self, *, now, packet):
        self.bytes_in_flight -= packet.sent_bytes

    def on_packet_sent(self, *, packet):
        self.bytes_in_flight += packet.sent_bytes

    def on_packets_expired(self, *, packets):
        self.bytes_in_flight -= sum(packet.sent_bytes for packet in packets)

    def on_packets_lost(self, *, now, packets):
        self.on_packets_expired(packets=packets)

    def on_persistent_congestion(self):
        pass

    def on_rtt_measurement(self, *, now, rtt):
        pass


register_congestion_control("steady", Steady)


def connect_headers(place, token):
    return [
        (b":method", b"CONNECT"),
        (b":authority", place.encode()),
        (b"authorization", b"Bearer " + token.encode()),
    ]


def udp_headers(place, token):
    name, port = place.split(":")
    return [
        (b":method", b"CONNECT"),
        (b":protocol", b"connect-udp"),
        (b":scheme", b"https"),
        (b":authority", b"localhost"),
        (b":path", f"/.well-known/masque/udp/{name}/{port}/".encode()),
        (b"capsule-protocol", b"?1"),
        (b"authorization", b"Bearer " + token.encode()),
    ]


async def read_to_the_end(client):
    digest, length, longest, last = hashlib.sha256(), 0, 0.0, time.monotonic()
    while True:
        event = await client.next()
        if isinstance(event, DataReceived):
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            digest.update(event.data)
            length += len(event.data)
            if event.stream_ended:
                return {"sha256": digest.hexdigest(), "length": length, "longest_pause": longest}


async def bytes_both_ways(client, relay, place, token):
    """Asks, says that this was all, and reads the answer."""
    stream = client.open(connect_headers(place, token))
    status = await client.admitted()
    question = random.Random(1).randbytes(1_000_000)
    client.send(stream, question, end=True)
    found = await read_to_the_end(client)
    return {"status": status, "asked": hashlib.sha256(question).hexdigest(), **found}


async def refused(client, relay, place, token):
    client.open(connect_headers(place, token + "x"))
    return {"status": await client.admitted()}


async def rebinding(client, relay, place, token):
    """A download in the middle of which the client's address changes.

    The gateway learns the new address from what comes from there: so the client keeps the way alive, as clients do that
    only listen. Nothing else obliges it to send.
    """
    stream = client.open(connect_headers(place, token))
    status = await client.admitted()

    async def keep_alive():
        while True:
            await asyncio.sleep(0.5)
            await client.ping()

    async def change():
        await asyncio.sleep(1)
        await relay.change_port()

    changing, living = asyncio.ensure_future(change()), asyncio.ensure_future(keep_alive())
    client.send(stream, b"go")
    found = await read_to_the_end(client)
    await changing
    living.cancel()
    return {"status": status, "ports": len(relay.ports), **found}


async def datagrams(client, relay, place, token):
    """Sends datagrams one by one, each answered."""
    stream = client.open(udp_headers(place, token))
    status = await client.admitted()
    count, began = 500, time.monotonic()
    for number in range(count):
        payload = number.to_bytes(4, "big") + bytes(1000)
        client.send_payload(stream, payload)
        while True:
            event = await client.next()
            if isinstance(event, DatagramReceived):
                assert event.data == b"\0" + payload and event.stream_id == stream, "another datagram"
                break
    return {"status": status, "answered": count, "seconds": time.monotonic() - began}


async def loss(client, relay, place, token):
    """Large datagrams at a steady pace over a network that loses some, each way: how many arrive, and is there a pause?"""
    stream = client.open(udp_headers(place, token))
    status = await client.admitted()
    seconds, rate, size = 30, 100, 1300
    # The path is to be known as wide before it is judged.
    await asyncio.sleep(1)
    relay.loss = 0.12
    seen, in_stream, longest, last = set(), 0, 0.0, None
    capsules = Capsules()

    async def listen():
        nonlocal in_stream, longest, last
        while True:
            event = await client.next(30)
            if isinstance(event, DatagramReceived):
                payloads = [event.data[1:]]
            elif isinstance(event, DataReceived):
                # It did not fit at that moment.
                payloads = list(capsules.read(event.data))
                in_stream += len(payloads)
            else:
                continue
            for payload in payloads:
                assert len(payload) == size, f"{len(payload)} bytes"
                seen.add(payload[:4])
                now = time.monotonic()
                longest, last = max(longest, now - (last or now)), now

    listening = asyncio.ensure_future(listen())
    late, before = 0.0, time.monotonic()
    for number in range(seconds * rate):
        client.send_payload(stream, number.to_bytes(4, "big") + bytes(size - 4))
        await asyncio.sleep(1 / rate)
        now = time.monotonic()
        late, before = max(late, now - before), now
    await asyncio.sleep(1)
    if listening.done():
        listening.result()
    listening.cancel()
    return {
        "status": status,
        "sent": seconds * rate,
        "echoed": len(seen),
        "in_stream": in_stream,
        "longest_pause": longest,
        # A machine that is busy holds this program up too.
        "held_up": late,
    }


SCENARIOS = {
    "bytes": bytes_both_ways,
    "refused": refused,
    "rebinding": rebinding,
    "datagrams": datagrams,
    "loss": loss,
}


async def main(scenario, host, port, ca, token, place):
    relay = Relay((host, int(port)))
    outside = await relay.start()
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=H3_ALPN,
        max_datagram_frame_size=65536,
        max_datagram_size=1400,
        server_name="localhost",
        verify_mode=ssl.CERT_REQUIRED,
        congestion_control_algorithm="steady" if scenario == "loss" else "reno",
    )
    configuration.load_verify_locations(ca)
    async with connect(
        "127.0.0.1", outside, configuration=configuration, create_protocol=Client
    ) as client:
        print(json.dumps(await SCENARIOS[scenario](client, relay, place, token)), flush=True)


asyncio.run(main(*sys.argv[1:]))
