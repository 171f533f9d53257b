"""Probe a plugin: start its process, wait for its handshake, ask for its version, and stop it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.empty_pb2 import Empty

from warpseal.ops.plugins.errors import CallFailed, NoHandshake, PluginFailed, UnusableAddress, WrongProtocol
from warpseal.ops.plugins.output import PluginOutput
from warpseal.ops.plugins.process import PluginProcess, plugin_environment, run_plugin
from warpseal.ops.plugins.settings import PluginSettings
from warpseal.pb.plugin_runtime_pb2 import InitializeRequest
from warpseal.pb.plugin_vm_pb2 import VersionResponse

# Time for a reply that is in transit when the process ends.
_LAST_ANSWER_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class PluginProbe:
    """Probe plugins. protocol_version: the version that a plugin must speak."""

    settings: PluginSettings
    protocol_version: int

    async def probe(self, path: Path) -> str | PluginFailed:
        """Return the version that a plugin reports, or the failure. All its processes are stopped."""
        output = PluginOutput(path.name, self.settings.output)
        async with serve_runtime(self.protocol_version) as server:
            environment = plugin_environment(server.address, os.environ)
            try:
                async with run_plugin(path, environment, output, stop_s=self.settings.stop_s) as process:
                    return await self._read_version(path, process, server)
            except PluginFailed as failure:
                return failure

    async def _read_version(self, path: Path, process: PluginProcess, server: RuntimeServer) -> str:
        runtime_info = await self._wait_for_handshake(process, server)
        if runtime_info.protocol_version != self.protocol_version:
            raise WrongProtocol(path, self.protocol_version, runtime_info.protocol_version)
        return await self._call_version(runtime_info.address, process)

    async def _wait_for_handshake(self, process: PluginProcess, server: RuntimeServer) -> RuntimeInfo:
        """Wait for the handshake or for the end of the process. Raises NoHandshake."""
        handshake_or_end = (server.runtime_info, process.ended)
        await asyncio.wait(handshake_or_end, timeout=self.settings.handshake_s, return_when=asyncio.FIRST_COMPLETED)
        if not server.runtime_info.done():
            raise NoHandshake
        return server.runtime_info.result()

    async def _call_version(self, address: str, process: PluginProcess) -> str:
        """Ask for the version, even if the process ends. Raises UnusableAddress, CallFailed, NoHandshake."""
        call = asyncio.ensure_future(ask_version(address, self.settings.call_s))
        try:
            await asyncio.wait((call, process.ended), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((call,), timeout=_LAST_ANSWER_S if process.ended.done() else None)
            if not call.done():
                raise NoHandshake
            return call.result()
        finally:
            call.cancel()


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
class RuntimeInfo:
    """The handshake of a plugin: its protocol version and the address of its gRPC server."""

    protocol_version: int
    address: str


@dataclass(frozen=True, slots=True)
class RuntimeServer:
    """The gRPC server for the handshake of a plugin. runtime_info: set by the first call; later calls are ignored."""

    address: str
    runtime_info: asyncio.Future[RuntimeInfo]


@asynccontextmanager
async def serve_runtime(protocol_version: int) -> AsyncIterator[RuntimeServer]:
    """Serve Runtime/Initialize on a free port of this machine; a plugin of another version is refused."""
    runtime_info: asyncio.Future[RuntimeInfo] = asyncio.get_running_loop().create_future()

    async def initialize(request: InitializeRequest, context: grpc.aio.ServicerContext[Any, Any]) -> Empty:
        if not runtime_info.done():
            runtime_info.set_result(RuntimeInfo(request.protocol_version, request.addr))
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
        yield RuntimeServer(f"127.0.0.1:{port}", runtime_info)
    finally:
        await server.stop(None)


async def ask_version(address: str, call_s: float) -> str:
    """Return the version of the virtual machine at `address`, then call Shutdown.

    Each call has the timeout `call_s`. Raises UnusableAddress, CallFailed.
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
            reply = await version(Empty(), timeout=call_s, wait_for_ready=True)
            await shutdown(Empty(), timeout=call_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise CallFailed(_code_of(error), error.details() or "") from error
    return str(reply.version)[:_MAX_VERSION_LENGTH]


def _target(address: str) -> str:
    """Return the gRPC target of a loopback address; names and other schemes are refused. Raises UnusableAddress."""
    host, _, port = address.rpartition(":")
    try:
        ip = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise UnusableAddress(address) from None
    if not (ip.is_loopback and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UnusableAddress(address)
    return f"ipv{ip.version}:{f'[{ip}]' if ip.version == 6 else ip}:{port}"


def _code_of(error: grpc.aio.AioRpcError) -> str:
    """Return the status code as Go formats it: `DeadlineExceeded`."""
    return "".join(word.capitalize() for word in error.code().name.split("_"))
