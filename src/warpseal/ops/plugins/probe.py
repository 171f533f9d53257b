"""Probes a plugin: starts its process, waits for its handshake, calls Version, and stops it.

The process has a minimal environment, and its output goes to the log within bounds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from json import dumps
from pathlib import Path
from typing import IO, Any, Final

import grpc
from google.protobuf.empty_pb2 import Empty

from warpseal.ops.settings import PLUGIN_VERSIONS, OutputBounds, PluginSettings
from warpseal.pb.plugin_runtime_pb2 import InitializeRequest
from warpseal.pb.plugin_vm_pb2 import VersionResponse
from warpseal.runtime.process import os_error_text

# Time for a reply that is in transit when the process ends.
_LAST_REPLY_S: Final = 0.5
_SERVICE: Final = "vm.runtime.Runtime"
_MAX_MESSAGE_BYTES: Final = 64 * 1024
_LIMITS: Final = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
)
_SERVER_OPTIONS: Final = (*_LIMITS, ("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", 4))
_CLIENT_OPTIONS: Final = (*_LIMITS, ("grpc.enable_http_proxy", 0))
_MAX_VERSION_LENGTH: Final = 128
_MAX_DETAILS_LENGTH: Final = 512
_NO_HANDSHAKE: Final = "handshake failed: vm process not found"


async def probe_plugin(
    path: Path, settings: PluginSettings, protocol_version: int
) -> str | PluginFailed:
    """Return the version that a plugin reports, or the failure. All its processes are stopped.

    protocol_version: the version that the plugin must speak.
    """
    output = PluginOutput(path.name, settings.output)
    async with _serve_runtime(protocol_version) as (server_address, handshake):
        environment = {ENGINE_ADDRESS: server_address}
        for name, value in os.environ.items():
            if name.startswith(_INHERITED_PREFIXES):
                environment[name] = value
        try:
            async with run_plugin(path, environment, output, stop_s=settings.stop_s) as ended:
                await asyncio.wait(
                    (handshake, ended),
                    timeout=settings.handshake_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not handshake.done():
                    raise PluginFailed(_NO_HANDSHAKE)
                request = handshake.result()
                if request.protocol_version != protocol_version:
                    raise _wrong_version(path, protocol_version, request.protocol_version)
                return await _call_version(request.addr, ended, settings.call_s)
        except PluginFailed as failure:
            return failure


def _wrong_version(path: Path, expected: int, actual: int) -> PluginFailed:
    return PluginFailed(
        "handshake failed: RPCChainVM protocol version mismatch between AvalancheGo and Virtual"
        f" Machine plugin. Expected is version {_version_text(expected)}, and {path} has version"
        f" {_version_text(actual)}: the two must be equal"
    )


def _version_text(protocol_version: int) -> str:
    """Return a version, with the release of avalanchego that speaks it if there is an entry."""
    release = PLUGIN_VERSIONS.get(protocol_version)
    suffix = "" if release is None else f" (avalanchego {release})"
    return f"{protocol_version}{suffix}"


async def _call_version(address: str, ended: asyncio.Future[int], call_s: float) -> str:
    """Return the version; a reply in transit counts if the process ends. Raises PluginFailed."""
    call = asyncio.ensure_future(_fetch_version(address, call_s))
    try:
        await asyncio.wait((call, ended), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((call,), timeout=_LAST_REPLY_S if ended.done() else None)
        if not call.done():
            raise PluginFailed(_NO_HANDSHAKE)
        return call.result()
    finally:
        call.cancel()


@asynccontextmanager
async def _serve_runtime(
    protocol_version: int,
) -> AsyncIterator[tuple[str, asyncio.Future[InitializeRequest]]]:
    """Serve Runtime/Initialize on a free port of this machine.

    Yield the address, and the handshake of the plugin: its first call. Later calls are ignored, and
    a plugin of another version is refused.
    """
    handshake: asyncio.Future[InitializeRequest] = asyncio.get_running_loop().create_future()

    async def initialize(
        request: InitializeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Empty:
        if not handshake.done():
            handshake.set_result(request)
        if request.protocol_version != protocol_version:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the version of the protocol here is {protocol_version}",
            )
        return Empty()

    method = grpc.unary_unary_rpc_method_handler(
        initialize, InitializeRequest.FromString, lambda reply: reply.SerializeToString()
    )
    server = grpc.aio.server(options=_SERVER_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, {"Initialize": method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", handshake
    finally:
        await server.stop(None)


async def _fetch_version(address: str, call_s: float) -> str:
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
            details = (error.details() or "")[:_MAX_DETAILS_LENGTH]
            raise PluginFailed(f"rpc error: code = {code} desc = {details}") from error
    return str(replies["Version"].version)[:_MAX_VERSION_LENGTH]


def _target(address: str) -> str:
    """Return the gRPC target of a loopback address; names and other schemes are refused.

    Raises PluginFailed.
    """
    host, _, port = address.rpartition(":")
    with suppress(ValueError):
        ip = ip_address(host.removeprefix("[").removesuffix("]"))
        if ip.is_loopback and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
            return f"ipv6:[{ip}]:{port}" if ip.version == 6 else f"ipv4:{ip}:{port}"
    raise PluginFailed(
        f"handshake failed: no address of this machine with a port: {dumps(address[:64])}"
    )


log = logging.getLogger(__name__)
output_log: Final = logging.getLogger("vm-factory")

ENGINE_ADDRESS: Final = "AVALANCHE_VM_RUNTIME_ENGINE_ADDR"
_INHERITED_PREFIXES: Final = ("GRPC_", "GODEBUG")
_READ_BYTES: Final = 64 * 1024
_FLOOD_PAUSE_S: Final = 0.02
_LAST_OUTPUT_S: Final = 0.5


class PluginFailed(Exception):
    """A plugin could not be loaded; the text, which is the node's, is its entry in `failedVMs`."""


@asynccontextmanager
async def run_plugin(
    path: Path, environment: Mapping[str, str], output: PluginOutput, *, stop_s: float
) -> AsyncIterator[asyncio.Future[int]]:
    """Run a plugin; the exit sends SIGTERM, and SIGKILL after `stop_s`, or SIGKILL at once if the
    block is cancelled.

    Yield a future that is done when the process itself has ended; its children may still run.
    Raises PluginFailed.
    """
    process = _spawn(path, environment)
    ended = asyncio.ensure_future(asyncio.to_thread(process.wait))
    streams = (("stdout", process.stdout), ("stderr", process.stderr))
    readers = [asyncio.create_task(_log_stream(name, stream, output)) for name, stream in streams]
    is_cancelled = False
    try:
        yield ended
    except asyncio.CancelledError:
        is_cancelled = True
        raise
    finally:
        try:
            if not is_cancelled:
                process.terminate()
                await asyncio.wait((ended,), timeout=stop_s)
                if not ended.done():
                    log.warning("plugin ignored SIGTERM, killing it", extra={"pid": process.pid})
                _kill_group(process)
                await asyncio.wait((ended, *readers), timeout=_LAST_OUTPUT_S)
        finally:
            _kill_group(process)
            for reader in readers:
                reader.cancel()
            output.end()
            # The pipes are closed then.
            await asyncio.gather(*readers, return_exceptions=True)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group, which contains the children of the process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _log_stream(name: str, stream: IO[bytes] | None, output: PluginOutput) -> None:
    """Log an output stream of a process; reading pauses during a flood, which would occupy the
    daemon.
    """
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), stream
    )
    try:
        while chunk := await reader.read(_READ_BYTES):
            if not output.feed(name, chunk):
                await asyncio.sleep(_FLOOD_PAUSE_S)
    finally:
        transport.close()


def _spawn(path: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the file without a search path and without a shell. Raises PluginFailed.

    The event loop is not used: libuv passes a file that it cannot run to a shell, and forks while
    gRPC has threads.
    """
    try:
        return subprocess.Popen(
            [path],
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        reason = os_error_text(error)
        raise PluginFailed(f"failed to start process: fork/exec {path}: {reason}") from error


class PluginOutput:
    """Logs the output of a process; standard output and standard error share the bounds."""

    def __init__(self, plugin: str, bounds: OutputBounds) -> None:
        self._plugin = plugin
        self._line_bytes = bounds.line_bytes
        self._left_bytes = bounds.bytes
        self._left_lines = bounds.lines
        self._dropped_bytes = 0
        self._unfinished: dict[str, bytes] = {}

    def feed(self, stream: str, chunk: bytes) -> bool:
        """Log the lines that a chunk of a stream completes; return False at the bounds."""
        if self.is_full:
            self._dropped_bytes += len(chunk)
            return False
        *lines, unfinished = (self._unfinished.pop(stream, b"") + chunk).split(b"\n")
        for line in lines:
            self._log_line(stream, line)
        if len(unfinished) > self._line_bytes:
            self._log_line(stream, unfinished)
        else:
            self._unfinished[stream] = unfinished
        return not self.is_full

    @property
    def is_full(self) -> bool:
        """Whether the bounds are reached."""
        return self._left_bytes <= 0 or self._left_lines <= 0

    def end(self) -> None:
        """Log the unfinished lines and the number of dropped bytes."""
        for stream, line in self._unfinished.items():
            self._log_line(stream, line)
        self._unfinished.clear()
        if self._dropped_bytes:
            fields = {"plugin": self._plugin, "dropped_bytes": self._dropped_bytes}
            output_log.warning("plugin output truncated", extra=fields)

    def _log_line(self, stream: str, line: bytes) -> None:
        logged = b"" if self.is_full else line[: min(self._line_bytes, self._left_bytes)]
        self._dropped_bytes += len(line) - len(logged)
        if not logged:
            return
        self._left_bytes -= len(logged)
        self._left_lines -= 1
        output_log.info(
            "%s",
            logged.decode(errors="replace").rstrip("\r"),
            extra={"plugin": self._plugin, "stream": stream},
        )
