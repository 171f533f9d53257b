"""The process of a plugin: a minimal environment at its start, and the end of its whole process group."""

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

from warpseal.ops.plugins.errors import NotStarted
from warpseal.ops.plugins.output import PluginOutput

log = logging.getLogger(__name__)

ENGINE_ADDRESS: Final = "AVALANCHE_VM_RUNTIME_ENGINE_ADDR"
_INHERITED_PREFIXES: Final = ("GRPC_", "GODEBUG")
_FLOOD_PAUSE_S: Final = 0.02
_LAST_OUTPUT_S: Final = 0.5


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

    Raises NotStarted.
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
    """Start the file without a search path and without a shell. Raises NotStarted.

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
        raise NotStarted(path, error) from error
