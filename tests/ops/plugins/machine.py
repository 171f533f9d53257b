"""The process of a plugin, with several behaviours; `machines.py` writes it as an executable.

It gets nothing but its environment, so `machines.py` replaces the two constants that select the
behaviour.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures

CHARACTER = "good"
PROTOCOL_VERSION = 47

if CHARACTER == "silent":
    time.sleep(600)
if CHARACTER == "ends early":
    os.write(2, b"nothing to do here\n")
    sys.exit(3)

import grpc  # noqa: E402
from google.protobuf.empty_pb2 import Empty  # noqa: E402

from warpseal.pb.plugin_runtime_pb2 import InitializeRequest  # noqa: E402
from warpseal.pb.plugin_vm_pb2 import VersionResponse  # noqa: E402

ended = threading.Event()


def write_event(line: str) -> None:
    """Append a line to the event file in the folder of the executable; the test reads it."""
    folder, name = os.path.split(__file__)
    with open(os.path.join(folder, f".{name}.events"), "a") as file:
        file.write(f"{line}\n")


def version(_request: Empty, context: grpc.ServicerContext) -> VersionResponse:
    """Answer VM/Version."""
    if CHARACTER == "refuses":
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "no version here")
    if CHARACTER == "dies when asked":
        os._exit(1)
    return VersionResponse(version="v1.2.3")


def shutdown(_request: Empty, _context: grpc.ServicerContext) -> Empty:
    """Answer VM/Shutdown."""
    write_event("shutdown")
    return Empty()


def terminated(_number: int, _frame: object) -> None:
    """Record SIGTERM, and end unless the behaviour is to ignore it."""
    write_event("sigterm")
    if CHARACTER != "ignores SIGTERM":
        ended.set()


def method(function: object) -> grpc.RpcMethodHandler:
    """Return the gRPC handler of a function without arguments."""
    return grpc.unary_unary_rpc_method_handler(
        function, Empty.FromString, lambda reply: reply.SerializeToString()
    )


def main() -> None:
    """Serve vm.VM, report the address, and wait for SIGTERM."""
    signal.signal(signal.SIGTERM, terminated)
    write_event(f"pid {os.getpid()}")
    names = sorted(name for name in os.environ if name != "LC_CTYPE")
    write_event(f"environment {' '.join(names)}")
    if CHARACTER == "floods":
        flood = b"x" * 100 + b"\n"
        for _ in range(5_000):
            os.write(1, flood)
    if CHARACTER == "has children":
        write_event(f"child {subprocess.Popen(['/bin/sleep', '60']).pid}")
    server = grpc.server(futures.ThreadPoolExecutor(2))
    methods = {"Version": method(version), "Shutdown": method(shutdown)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("vm.VM", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    host = "192.0.2.1" if CHARACTER == "elsewhere" else "127.0.0.1"
    os.write(1, f"a machine that is {CHARACTER}\n".encode())
    with grpc.insecure_channel(os.environ["AVALANCHE_VM_RUNTIME_ENGINE_ADDR"]) as channel:
        initialize = channel.unary_unary(
            "/vm.runtime.Runtime/Initialize",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=Empty.FromString,
        )
        try:
            initialize(
                InitializeRequest(protocol_version=PROTOCOL_VERSION, addr=f"{host}:{port}"),
                timeout=10,
            )
        except grpc.RpcError as error:
            write_event(f"refused {error.code().name}")
            sys.exit(1)
    while not ended.wait(0.05):
        pass
    server.stop(0)


main()
