"""One trial of one plugin: started, asked for its version, asked to end, and ended."""

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

# For an answer that is on its way as the process ends.
_LAST_ANSWER_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class PluginProbe:
    """How plugins are tried. protocol_version: the one that theirs has to be."""

    settings: PluginSettings
    protocol_version: int

    async def of(self, path: Path) -> str | PluginFailed:
        """Return what a plugin says its version is, or why it cannot be used. Nothing of it is left running."""
        output = PluginOutput(path.name, self.settings.output)
        async with serve_runtime(self.protocol_version) as serving:
            environment = plugin_environment(serving.address, os.environ)
            try:
                async with run_plugin(path, environment, output, stop_s=self.settings.stop_s) as process:
                    return await self._asked(path, process, serving)
            except PluginFailed as failure:
                return failure

    async def _asked(self, path: Path, process: PluginProcess, serving: RuntimeServer) -> str:
        info = await self._wait_for_handshake(process, serving)
        if info.protocol_version != self.protocol_version:
            raise WrongProtocol(path, self.protocol_version, info.protocol_version)
        return await self._version(info.address, process)

    async def _wait_for_handshake(self, process: PluginProcess, serving: RuntimeServer) -> RuntimeInfo:
        """Wait for the plugin's first word, no longer than its process lives. Raises NoHandshake."""
        first = (serving.runtime_info, process.ended)
        await asyncio.wait(first, timeout=self.settings.handshake_s, return_when=asyncio.FIRST_COMPLETED)
        if not serving.runtime_info.done():
            raise NoHandshake
        return serving.runtime_info.result()

    async def _version(self, address: str, process: PluginProcess) -> str:
        """Ask the plugin, which may end as it answers. Raises UnusableAddress, CallFailed, NoHandshake."""
        asking = asyncio.ensure_future(ask_version(address, self.settings.call_s))
        try:
            await asyncio.wait((asking, process.ended), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((asking,), timeout=_LAST_ANSWER_S if process.ended.done() else None)
            if not asking.done():
                raise NoHandshake
            return asking.result()
        finally:
            asking.cancel()


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
    """What a plugin said first: the version of the protocol that it speaks, and where it serves."""

    protocol_version: int
    address: str


@dataclass(frozen=True, slots=True)
class RuntimeServer:
    """The server that a plugin calls. runtime_info: set by the first call; later calls have no effect."""

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
