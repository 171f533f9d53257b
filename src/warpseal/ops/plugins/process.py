"""One plugin's process: started with nothing of the daemon's environment, and ended with all that it started."""

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
_PASSED_ON: Final = ("GRPC_", "GODEBUG")
_FLOOD_PAUSE_S: Final = 0.02
_LAST_OUTPUT_S: Final = 0.5


def plugin_environment(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return all that a plugin's process may see: where to call, and the switches of Go and gRPC."""
    passed = {name: value for name, value in environ.items() if name.startswith(_PASSED_ON)}
    return {ENGINE_ADDRESS: address, **passed}


class PluginProcess:
    """A running process. ended: done when it is no more, whatever of its children lives on."""

    def __init__(self, started: subprocess.Popen[bytes]) -> None:
        self._started = started
        self._pipes: list[_Pipe] = []
        self.ended: asyncio.Future[int] = asyncio.ensure_future(asyncio.to_thread(started.wait))

    async def log(self, output: PluginOutput) -> None:
        """Log what the process prints from now on."""
        loop = asyncio.get_running_loop()
        for name, stream in (("stdout", self._started.stdout), ("stderr", self._started.stderr)):
            pipe = _Pipe(name, output)
            await loop.connect_read_pipe(lambda pipe=pipe: pipe, stream)  # type: ignore[misc]
            self._pipes.append(pipe)

    async def stop(self, stop_s: float) -> None:
        """Ask the process to end, and kill it where it has not after `stop_s`."""
        self._started.terminate()
        await asyncio.wait((self.ended,), timeout=stop_s)
        if not self.ended.done():
            log.warning("a plugin does not end and is killed", extra={"pid": self._started.pid})
        self.kill()
        last: list[asyncio.Future[Any]] = [self.ended, *(pipe.closed for pipe in self._pipes)]
        await asyncio.wait(last, timeout=_LAST_OUTPUT_S)

    def kill(self) -> None:
        """Kill the process and all that it has started: it leads a group of its own."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._started.pid, signal.SIGKILL)

    def close(self) -> None:
        """Leave nothing of the process."""
        self.kill()
        for pipe in self._pipes:
            pipe.close()


class _Pipe(asyncio.Protocol):
    """One stream of what the process prints; a flood is read slowly, so that it does not occupy the daemon."""

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
    """Hold a running process; on leaving it gets SIGTERM, and `stop_s` later, or at once when cancelled, SIGKILL.

    Raises NotStarted.
    """
    process = PluginProcess(_started(path, environment))
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


def _started(path: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the file itself: neither a search path nor a shell stands in. Raises NotStarted.

    An event loop would start it too, but libuv hands what it cannot run to a shell, and forks beside gRPC's threads.
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
