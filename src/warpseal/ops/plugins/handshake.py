"""The gRPC between us and one plugin: it tells where it serves, we ask what it is and have it end.

Source of truth: avalanchego `vms/rpcchainvm/runtime` and `proto/vm`; api-clients notes 6.3.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import grpc
from google.protobuf.empty_pb2 import Empty

from warpseal.ops.plugins.errors import CallFailed, UnusableAddress
from warpseal.pb.plugin_runtime_pb2 import InitializeRequest
from warpseal.pb.plugin_vm_pb2 import VersionResponse

_SERVICE: Final = "vm.runtime.Runtime"
_MAX_MESSAGE_BYTES: Final = 64 * 1024
_LIMITS: Final = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
)
_SERVER_OPTIONS: Final = (*_LIMITS, ("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", 4))
_CLIENT_OPTIONS: Final = (*_LIMITS, ("grpc.enable_http_proxy", 0))
_MAX_VERSION_LENGTH: Final = 128


@dataclass(frozen=True, slots=True)
class Told:
    """What a plugin said first: the version of the protocol that it speaks, and where it serves."""

    protocol_version: int
    address: str


@dataclass(frozen=True, slots=True)
class Engine:
    """The server that a plugin calls. told: set by the first call; later ones change nothing."""

    address: str
    told: asyncio.Future[Told]


@asynccontextmanager
async def engine(protocol_version: int) -> AsyncIterator[Engine]:
    """Serve Runtime/Initialize on a free port of this machine; a plugin of another version is refused."""
    told: asyncio.Future[Told] = asyncio.get_running_loop().create_future()

    async def initialize(request: InitializeRequest, context: grpc.aio.ServicerContext[Any, Any]) -> Empty:
        if not told.done():
            told.set_result(Told(request.protocol_version, request.addr))
        if request.protocol_version != protocol_version:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"the version of the protocol here is {protocol_version}"
            )
        return Empty()

    method = grpc.unary_unary_rpc_method_handler(
        initialize, InitializeRequest.FromString, lambda reply: reply.SerializeToString()
    )
    server = grpc.aio.server(options=_SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Initialize": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Engine(f"127.0.0.1:{port}", told)
    finally:
        await server.stop(None)


async def version_of(address: str, call_s: float) -> str:
    """Return the version of the virtual machine that serves at `address`, after asking it to end.

    Each of the two calls takes `call_s` at most. Raises UnusableAddress, CallFailed.
    """
    async with grpc.aio.insecure_channel(_target(address), options=_CLIENT_OPTIONS) as channel:
        version = channel.unary_unary(
            "/vm.VM/Version",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=VersionResponse.FromString,
        )
        shutdown = channel.unary_unary(
            "/vm.VM/Shutdown",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=Empty.FromString,
        )
        try:
            answer = await version(Empty(), timeout=call_s, wait_for_ready=True)
            await shutdown(Empty(), timeout=call_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise CallFailed(_code_of(error), error.details() or "") from error
    return str(answer.version)[:_MAX_VERSION_LENGTH]


def _target(address: str) -> str:
    """Return the target of a channel: only this machine's addresses, never a name or another scheme."""
    host, _, port = address.rpartition(":")
    try:
        ip = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise UnusableAddress(address) from None
    if not (ip.is_loopback and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UnusableAddress(address)
    return f"ipv{ip.version}:{f'[{ip}]' if ip.version == 6 else ip}:{port}"


def _code_of(error: grpc.aio.AioRpcError) -> str:
    """Return the status as Go writes it: `DeadlineExceeded`."""
    return "".join(word.capitalize() for word in error.code().name.split("_"))
