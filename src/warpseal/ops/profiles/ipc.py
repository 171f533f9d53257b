"""The profilers of the daemon and of its other processes as one; their files lie beside the daemon's.

If another process fails or is too slow, both processes log it; the call to the daemon still succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from warpseal.ops.ipc.client import CommandHandler
from warpseal.ops.ipc.server import ControlServer
from warpseal.ops.profiles.profiler import AlreadyRunning, NotRunning, Profiler

CPU: Final = "cpu profile"
MEMORY: Final = "memory profile"
LOCKS: Final = "lock profile"
STACKS: Final = "stacks"
# A profile of memory takes seconds for each million objects.
_TIMEOUT_S: Final = 30.0


class ProfilerControl(Protocol):
    """A profiler of one or more processes; every method raises CallRefused."""

    async def start_cpu(self) -> None:
        """Start sampling the CPU."""
        ...

    async def stop_cpu(self) -> None:
        """Stop sampling and write the samples."""
        ...

    async def write_memory(self) -> None:
        """Write the use of memory."""
        ...

    async def write_locks(self) -> None:
        """Write the contention of locks."""
        ...

    async def write_stacks(self) -> None:
        """Write the stack of every thread and every task."""
        ...


class ClusterProfiler:
    """The daemon's profiler first, then those of its other processes. Every method raises CallRefused.

    A process that connects while the CPU is sampled starts sampling as well.
    """

    def __init__(self, own: Profiler, control_server: ControlServer) -> None:
        self._own = own
        self._control_server = control_server
        self._is_sampling = False
        control_server.set_initial(CPU, lambda: self._is_sampling)

    async def start_cpu(self) -> None:
        """Start sampling the CPU. Raises AlreadyRunning."""
        await self._own.start_cpu()
        self._is_sampling = True
        await self._broadcast(CPU, True)

    async def stop_cpu(self) -> None:
        """Stop sampling and write the samples. Raises NotRunning."""
        was_sampling, self._is_sampling = self._is_sampling, False
        try:
            await self._own.stop_cpu()
        finally:
            if was_sampling:
                await self._broadcast(CPU, False)

    async def write_memory(self) -> None:
        """Write the use of memory."""
        await self._own.write_memory()
        await self._broadcast(MEMORY)

    async def write_locks(self) -> None:
        """Write the contention of locks."""
        await self._own.write_locks()
        await self._broadcast(LOCKS)

    async def write_stacks(self) -> None:
        """Write the stack of every thread and every task."""
        await self._own.write_stacks()
        await self._broadcast(STACKS)

    async def _broadcast(self, topic: str, value: bool | None = None) -> None:
        await self._control_server.broadcast(topic, value, _TIMEOUT_S)


def profile_handlers(profiler: ProfilerControl) -> Mapping[str, CommandHandler]:
    """Return the handlers by which another process writes its profiles."""

    async def cpu(is_sampling: Any) -> None:
        with suppress(AlreadyRunning, NotRunning):
            await (profiler.start_cpu() if is_sampling else profiler.stop_cpu())

    async def memory(_: Any) -> None:
        await profiler.write_memory()

    async def locks(_: Any) -> None:
        await profiler.write_locks()

    async def stacks(_: Any) -> None:
        await profiler.write_stacks()

    return {CPU: cpu, MEMORY: memory, LOCKS: locks, STACKS: stacks}
