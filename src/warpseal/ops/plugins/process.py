"""The process of a plugin: a minimal environment, output within bounds to the log, and the end of its process group."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

from warpseal.ops.settings import OutputBounds
from warpseal.runtime.process import os_error_text

log = logging.getLogger(__name__)
output_log: Final = logging.getLogger("vm-factory")

ENGINE_ADDRESS: Final = "AVALANCHE_VM_RUNTIME_ENGINE_ADDR"
_INHERITED_PREFIXES: Final = ("GRPC_", "GODEBUG")
_FLOOD_PAUSE_S: Final = 0.02
_LAST_OUTPUT_S: Final = 0.5


class PluginFailed(Exception):
    """A plugin could not be loaded; the text, which is the node's, is its entry in `failedVMs`."""


def plugin_environment(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a plugin: the address of the engine, and the variables of Go and gRPC."""
    inherited = {name: value for name, value in environ.items() if name.startswith(_INHERITED_PREFIXES)}
    return {ENGINE_ADDRESS: address, **inherited}


class PluginProcess:
    """A running process. ended: done when the process itself has ended; its children may still run."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._pipes: list[_Pipe] = []
        self.ended: asyncio.Future[int] = asyncio.ensure_future(asyncio.to_thread(process.wait))

    async def log(self, output: PluginOutput) -> None:
        """Start to log the output of the process."""
        loop = asyncio.get_running_loop()
        for name, stream in (("stdout", self._process.stdout), ("stderr", self._process.stderr)):
            pipe = _Pipe(name, output)
            await loop.connect_read_pipe(lambda pipe=pipe: pipe, stream)  # type: ignore[misc]
            self._pipes.append(pipe)

    async def stop(self, stop_s: float) -> None:
        """Send SIGTERM, and kill the process group if the process runs for longer than `stop_s`."""
        self._process.terminate()
        await asyncio.wait((self.ended,), timeout=stop_s)
        if not self.ended.done():
            log.warning("plugin ignored SIGTERM, killing it", extra={"pid": self._process.pid})
        self.kill()
        remaining: list[asyncio.Future[Any]] = [self.ended, *(pipe.closed for pipe in self._pipes)]
        await asyncio.wait(remaining, timeout=_LAST_OUTPUT_S)

    def kill(self) -> None:
        """Kill the process group, which contains the children of the process."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process group and close the pipes."""
        self.kill()
        for pipe in self._pipes:
            pipe.close()


class _Pipe(asyncio.Protocol):
    """An output stream of the process; reading pauses during a flood, so that it does not occupy the daemon."""

    def __init__(self, name: str, output: PluginOutput) -> None:
        self._name = name
        self._output = output
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._output.feed(self._name, data):
            self._transport.pause_reading()
            self._loop.call_later(_FLOOD_PAUSE_S, self._resume)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        self._transport.close()

    def _resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()


@asynccontextmanager
async def run_plugin(
    path: Path, environment: Mapping[str, str], output: PluginOutput, *, stop_s: float
) -> AsyncIterator[PluginProcess]:
    """Run a plugin; the exit sends SIGTERM, and SIGKILL after `stop_s`, or SIGKILL at once if cancelled.

    Raises PluginFailed.
    """
    process = PluginProcess(_spawn(path, environment))
    try:
        await process.log(output)
        yield process
    except asyncio.CancelledError:
        raise
    except BaseException:
        await process.stop(stop_s)
        raise
    else:
        await process.stop(stop_s)
    finally:
        process.close()
        output.end()


def _spawn(path: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the file without a search path and without a shell. Raises PluginFailed.

    The event loop is not used: libuv passes a file that it cannot run to a shell, and forks beside the threads of gRPC.
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
        raise PluginFailed(f"failed to start process: fork/exec {path}: {os_error_text(error)}") from error


class PluginOutput:
    """Log the output of one process; standard output and standard error share the bounds."""

    def __init__(self, plugin: str, bounds: OutputBounds) -> None:
        self._plugin = plugin
        self._line_bytes = bounds.line_bytes
        self._left_bytes = bounds.bytes
        self._left_lines = bounds.lines
        self._dropped_bytes = 0
        self._unfinished: dict[str, bytes] = {}

    def feed(self, stream: str, chunk: bytes) -> bool:
        """Log the lines that a chunk of a stream completes; return False once the bounds are reached."""
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
            "%s", logged.decode(errors="replace").rstrip("\r"), extra={"plugin": self._plugin, "stream": stream}
        )
