"""Autobahn's test suite: `agent` serves the suite's echo, `client URL AUTHORITY CERTIFICATE` plays cases 1-7 and 10.

The cases are the suite's own, as it is published; they are written for Python 2 and read as such. What runs them is the
library that they are made for, with the suite's ways to wait and to give up. Prints what came of each case as JSON.
"""

import ast
import asyncio
import importlib.machinery
import importlib.util
import json
import re
import ssl
import sys
import types
from pathlib import Path

from autobahn.asyncio.websocket import (
    WebSocketClientFactory,
    WebSocketClientProtocol,
    WebSocketServerFactory,
    WebSocketServerProtocol,
)
from autobahn.websocket import protocol, utf8validator

# Cases at one time: most of them wait for most of their time.
AT_ONCE = 24
# A case gives up later than the suite has it, and its pauses are longer, because the machine may be busy.
PATIENCE, PAUSE = 30, 3
# Texts of Python 2 are octets: here each is a character of this coding.
OCTETS = "latin-1"


class Echo(WebSocketServerProtocol):
    def onMessage(self, payload, isBinary):
        self.sendMessage(payload, isBinary)


async def agent():
    factory = WebSocketServerFactory()
    factory.protocol = Echo
    factory.setProtocolOptions(failByDrop=False, openHandshakeTimeout=0, closeHandshakeTimeout=5)
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Python2(importlib.machinery.SourceFileLoader):
    """Reads a case."""

    def path_stats(self, path):
        raise OSError("what was compiled before was not read as this does")

    def source_to_code(self, data, path, *, _optimization=-1):
        text = data.decode(OCTETS)
        text = re.sub(r"^# coding=.*$", "", text, flags=re.M)
        text = re.sub(r"^(\s*)print\b.*$", r"\1pass", text, flags=re.M)
        text = text.replace("(object, Case, )", "(Case,)").replace("xrange", "range")
        return compile(WholeNumbers().visit(ast.parse(text)), path, "exec")


class WholeNumbers(ast.NodeTransformer):
    """A division of whole numbers gives a whole number."""

    def visit_Div(self, node):
        return ast.FloorDiv()


class Validator(utf8validator.Utf8Validator):
    def validate(self, text):
        return super().validate(text.encode(OCTETS))


def cases():
    """The classes of all cases that are asked for, by their numbers."""
    folder = Path(importlib.util.find_spec("autobahntestsuite").origin).parent / "case"
    sys.path.insert(0, str(folder))
    sys.path_importer_cache[str(folder)] = importlib.machinery.FileFinder(str(folder), (Python2, [".py"]))
    shown = types.ModuleType("binascii")
    shown.b2a_hex = lambda text: octets(text).hex()
    kept = sys.modules["binascii"]
    sys.modules["binascii"] = shown
    utf8validator.Utf8Validator = Validator
    found = {}
    for file in folder.glob("case*.py"):
        if not re.match(r"case([1-7]|10)_", file.name):
            continue
        for value in vars(importlib.import_module(file.stem)).values():
            for case in value if isinstance(value, list) else [value]:
                if re.match(r"Case\d", getattr(case, "__name__", "")):
                    found[tuple(map(int, case.__name__[4:].split("_")))] = case
    sys.modules["binascii"] = kept
    return dict(sorted(found.items()))


def octets(payload):
    return payload.encode(OCTETS) if isinstance(payload, str) else payload


class Fuzzer(WebSocketClientProtocol):
    """The peer that a case has: `case` is its class, `ended` is told what came of it."""

    def __init__(self, case, ended):
        super().__init__()
        self.case, self.ended = case, ended
        self.logFrames = True
        self.txFrameStats = {}
        self.connectionWasOpen = False

    def onOpen(self):
        self.connectionWasOpen = True
        self.run = self.case(self)
        self.run.onOpen()

    def onMessage(self, payload, isBinary):
        self.run.onMessage(payload.decode(OCTETS), isBinary)

    def onPong(self, payload):
        self.run.onPong(payload.decode(OCTETS))

    def onClose(self, wasClean, code, reason):
        if self.ended.done():
            return
        if not self.connectionWasOpen:
            self.ended.set_result({"behavior": f"never open: {reason}"})
            return
        self.run.onConnectionLost(self.failedByMe)
        self.ended.set_result(
            {
                "behavior": self.run.behavior,
                "close": self.run.behaviorClose,
                "code": self.remoteCloseCode,
                "clean": self.wasClean,
                "received": str(self.run.received),
            }
        )

    def logTxFrame(self, frameHeader, payload, repeatLength, chopsize, sync):
        self.txFrameStats[frameHeader.opcode] = self.txFrameStats.get(frameHeader.opcode, 0) + 1

    def logRxFrame(self, frameHeader, payload):
        pass

    # As cases call it.

    def sendFrame(self, opcode, payload="", **more):
        super().sendFrame(opcode=opcode, payload=octets(payload), **more)

    def sendMessage(self, payload, isBinary=False, **more):
        super().sendMessage(octets(payload), isBinary, **more)

    def sendMessageFrameData(self, payload, **more):
        super().sendMessageFrameData(octets(payload), **more)

    def sendCloseFrame(self, code=None, reasonUtf8=None, isReply=False):
        # A reason that is no text at all is for this side to send only.
        super().sendCloseFrame(code, reasonUtf8 and octets(reasonUtf8), isReply)

    def continueLater(self, delay, go_on, tag=None):
        self.later(delay * PAUSE, go_on)

    def closeAfter(self, delay):
        self.later(delay * PAUSE, self.sendClose)

    def killAfter(self, delay):
        self.later(PATIENCE, self._fail_connection)

    def later(self, delay, act):
        def unless_closed():
            if self.state != self.STATE_CLOSED:
                act()

        asyncio.get_running_loop().call_later(delay, unless_closed)


async def play(case, url, address, tls):
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    factory = WebSocketClientFactory(url)
    factory.protocol = lambda: Fuzzer(case, ended)
    factory.setProtocolOptions(
        failByDrop=False,
        openHandshakeTimeout=0,
        closeHandshakeTimeout=PATIENCE,
        serverConnectionDropTimeout=PATIENCE,
    )
    host, port = address.rsplit(":", 1)
    secured = {"ssl": tls, "server_hostname": "localhost"} if tls else {}
    await loop.create_connection(factory, host, int(port), **secured)
    return await asyncio.wait_for(ended, 3 * PATIENCE)


async def client(url, address, certificate=None):
    tls = ssl.create_default_context(cafile=certificate) if certificate else None
    turn = asyncio.Semaphore(AT_ONCE)

    async def in_turn(case):
        async with turn:
            return await play(case, url, address, tls)

    all_cases = cases()
    came = await asyncio.gather(*map(in_turn, all_cases.values()))
    print(json.dumps({".".join(map(str, number)): end for number, end in zip(all_cases, came)}))


asyncio.run(agent() if sys.argv[1] == "agent" else client(*sys.argv[2:]))
