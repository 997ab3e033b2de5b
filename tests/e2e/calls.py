"""gRPC as its own library speaks it: `agent` serves, `client ADDRESS [CERTIFICATE]` calls in every way there is.

Prints what came of the calls as JSON.
"""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

SERVICE = "shop.Calls"
LARGE = 3 << 20
# For a call that is answered; a busy machine takes its time.
PATIENCE = 60

cancelled = threading.Event()


def echo(request, context):
    context.send_initial_metadata((("x-begun", "yes"),))
    context.set_trailing_metadata((("x-length", str(len(request))), ("x-bytes-bin", b"\x00\xff")))
    return request


def count(request, context):
    for number in range(int(request)):
        yield b"%d " % number * 1000
    context.set_trailing_metadata((("x-counted", request.decode()),))


def add(requests, context):
    return b"%d" % sum(map(len, requests))


def chat(requests, context):
    for request in requests:
        yield b"heard " + request


def refuse(request, context):
    context.set_trailing_metadata((("x-why", "because"),))
    context.abort(grpc.StatusCode.NOT_FOUND, "no such article: \u00fc")


def break_off(request, context):
    yield b"one"
    yield b"two"
    context.abort(grpc.StatusCode.DATA_LOSS, "no more")


def dream(request, context):
    cancelled.clear()
    context.add_callback(cancelled.set)
    cancelled.wait(PATIENCE)
    return b"awake"


def was_cancelled(request, context):
    return b"yes" if cancelled.wait(PATIENCE) else b"no"


KINDS = {
    echo: grpc.unary_unary_rpc_method_handler,
    count: grpc.unary_stream_rpc_method_handler,
    add: grpc.stream_unary_rpc_method_handler,
    chat: grpc.stream_stream_rpc_method_handler,
    refuse: grpc.unary_unary_rpc_method_handler,
    break_off: grpc.unary_stream_rpc_method_handler,
    dream: grpc.unary_unary_rpc_method_handler,
    was_cancelled: grpc.unary_unary_rpc_method_handler,
}


def agent():
    server = grpc.server(ThreadPoolExecutor(32))
    handlers = {answer.__name__: kind(answer) for answer, kind in KINDS.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


def metadata(pairs):
    """What the application said: the library and gateways have fields of their own."""
    return {key: str(value) for key, value in pairs or () if key.startswith("x-") and "forward" not in key}


def fault(call):
    """How a call ended that did not end well."""
    return [call.code().name, call.details(), metadata(call.trailing_metadata())]


def calls(channel):
    def method(kind, name):
        return getattr(channel, kind)(f"/{SERVICE}/{name}")

    came = {}
    answer, call = method("unary_unary", "echo").with_call(b"hello", timeout=PATIENCE)
    came["unary"] = [
        answer.decode(),
        call.code().name,
        metadata(call.initial_metadata()),
        metadata(call.trailing_metadata()),
    ]
    large = bytes(range(256)) * (LARGE >> 8)
    came["large"] = method("unary_unary", "echo")(large, timeout=PATIENCE) == large
    came["empty"] = method("unary_unary", "echo")(b"", timeout=PATIENCE) == b""

    call = method("unary_stream", "count")(b"200", timeout=PATIENCE)
    came["server streams"] = [[int(part.split()[0]) for part in call] == list(range(200)), call.code().name]
    came["server streams"].append(metadata(call.trailing_metadata()))
    came["client streams"] = method("stream_unary", "add")(iter([b"x" * 5000] * 100), timeout=PATIENCE).decode()

    # Each word waits for the answer to the one before.
    heard = threading.Semaphore(1)

    def words():
        for number in range(100):
            heard.acquire()
            yield b"%d" % number

    call = method("stream_stream", "chat")(words(), timeout=PATIENCE)
    answers = []
    for answer in call:
        answers.append(answer)
        heard.release()
    came["both stream"] = [answers == [b"heard %d" % number for number in range(100)], call.code().name]

    try:
        method("unary_unary", "refuse")(b"", timeout=PATIENCE)
    except grpc.RpcError as call:
        came["refused"] = fault(call)
    parts = []
    try:
        for part in method("unary_stream", "break_off")(b"", timeout=PATIENCE):
            parts.append(part.decode())
    except grpc.RpcError as call:
        came["broken off"] = [parts, *fault(call)]
    try:
        method("unary_unary", "no_such_method")(b"", timeout=PATIENCE)
    except grpc.RpcError as call:
        came["unknown"] = call.code().name
    try:
        method("unary_unary", "dream")(b"", timeout=1)
    except grpc.RpcError as call:
        came["given up"] = call.code().name
    came["is told"] = method("unary_unary", "was_cancelled")(b"", timeout=PATIENCE).decode()

    with ThreadPoolExecutor(50) as pool:
        echoes = pool.map(lambda n: method("unary_unary", "echo")(b"%d" % n, timeout=PATIENCE), range(500))
        came["side by side"] = list(echoes) == [b"%d" % n for n in range(500)]
    return came


def client(address, certificate=None):
    if certificate is None:
        channel = grpc.insecure_channel(address)
    else:
        with open(certificate, "rb") as file:
            trusted = grpc.ssl_channel_credentials(file.read())
        names = (("grpc.ssl_target_name_override", "localhost"), ("grpc.default_authority", "shop.test"))
        channel = grpc.secure_channel(address, trusted, names)
    with channel:
        print(json.dumps(calls(channel)))


if sys.argv[1] == "agent":
    agent()
else:
    client(*sys.argv[2:])
