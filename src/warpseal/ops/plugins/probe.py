"""Probe a plugin: start its process, wait for its handshake, ask for its version, and stop it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from json import dumps
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.empty_pb2 import Empty

from warpseal.ops.plugins.process import PluginFailed, PluginOutput, PluginProcess, plugin_environment, run_plugin
from warpseal.ops.settings import PluginSettings
from warpseal.pb.plugin_runtime_pb2 import InitializeRequest
from warpseal.pb.plugin_vm_pb2 import VersionResponse

# Time for a reply that is in transit when the process ends.
_LAST_ANSWER_S: Final = 0.5
_SERVICE: Final = "vm.runtime.Runtime"
_MAX_MESSAGE_BYTES: Final = 64 * 1024
_LIMITS: Final = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
)
_SERVER_OPTIONS: Final = (*_LIMITS, ("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", 4))
_CLIENT_OPTIONS: Final = (*_LIMITS, ("grpc.enable_http_proxy", 0))
_MAX_VERSION_LENGTH: Final = 128
_NO_HANDSHAKE: Final = "handshake failed: vm process not found"


async def probe_plugin(path: Path, settings: PluginSettings, protocol_version: int) -> str | PluginFailed:
    """Return the version that a plugin reports, or the failure. All its processes are stopped.

    protocol_version: the version that the plugin must speak.
    """
    output = PluginOutput(path.name, settings.output)
    async with _serve_runtime(protocol_version) as (server_address, handshake):
        environment = plugin_environment(server_address, os.environ)
        try:
            async with run_plugin(path, environment, output, stop_s=settings.stop_s) as process:
                handshake_or_end = (handshake, process.ended)
                await asyncio.wait(handshake_or_end, timeout=settings.handshake_s, return_when=asyncio.FIRST_COMPLETED)
                if not handshake.done():
                    raise PluginFailed(_NO_HANDSHAKE)
                theirs, address = handshake.result().protocol_version, handshake.result().addr
                if theirs != protocol_version:
                    raise PluginFailed(
                        "handshake failed: RPCChainVM protocol version mismatch between AvalancheGo and Virtual "
                        f"Machine plugin. Expected is version {protocol_version}, and {path} has version {theirs}: "
                        "the two must be equal"
                    )
                return await _call_version(address, process, settings.call_s)
        except PluginFailed as failure:
            return failure


async def _call_version(address: str, process: PluginProcess, call_s: float) -> str:
    """Ask for the version, even if the process ends. Raises PluginFailed."""
    call = asyncio.ensure_future(_ask_version(address, call_s))
    try:
        await asyncio.wait((call, process.ended), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((call,), timeout=_LAST_ANSWER_S if process.ended.done() else None)
        if not call.done():
            raise PluginFailed(_NO_HANDSHAKE)
        return call.result()
    finally:
        call.cancel()


@asynccontextmanager
async def _serve_runtime(protocol_version: int) -> AsyncIterator[tuple[str, asyncio.Future[InitializeRequest]]]:
    """Serve Runtime/Initialize on a free port of this machine; a plugin of another version is refused.

    Yield the address, and the handshake of the plugin: its first call; later calls are ignored.
    """
    handshake: asyncio.Future[InitializeRequest] = asyncio.get_running_loop().create_future()

    async def initialize(request: InitializeRequest, context: grpc.aio.ServicerContext[Any, Any]) -> Empty:
        if not handshake.done():
            handshake.set_result(request)
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
        yield f"127.0.0.1:{port}", handshake
    finally:
        await server.stop(None)


async def _ask_version(address: str, call_s: float) -> str:
    """Return the version of the virtual machine at `address`, then call Shutdown.

    Each call has the timeout `call_s`. Raises PluginFailed.
    """
    async with grpc.aio.insecure_channel(_target(address), options=_CLIENT_OPTIONS) as channel:
        decoders = {"Version": VersionResponse.FromString, "Shutdown": Empty.FromString}
        replies: dict[str, Any] = {}
        try:
            for method, decode in decoders.items():
                call = channel.unary_unary(f"/vm.VM/{method}", Empty.SerializeToString, decode)
                replies[method] = await call(Empty(), timeout=call_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            # Go formats the code as `DeadlineExceeded`.
            code = "".join(word.capitalize() for word in error.code().name.split("_"))
            raise PluginFailed(f"rpc error: code = {code} desc = {(error.details() or '')[:512]}") from error
    return str(replies["Version"].version)[:_MAX_VERSION_LENGTH]


def _target(address: str) -> str:
    """Return the gRPC target of a loopback address; names and other schemes are refused. Raises PluginFailed."""
    host, _, port = address.rpartition(":")
    with suppress(ValueError):
        ip = ip_address(host.removeprefix("[").removesuffix("]"))
        if ip.is_loopback and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
            return f"ipv{ip.version}:{f'[{ip}]' if ip.version == 6 else ip}:{port}"
    raise PluginFailed(f"handshake failed: no address of this machine with a port: {dumps(address[:64])}")
