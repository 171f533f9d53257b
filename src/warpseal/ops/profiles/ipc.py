"""The profilers of the daemon and of its other processes, as one: whose files stand beside the daemon's.

What another process cannot do, or does not do in time, is logged there and here, and is no fault of the call.
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
_PATIENCE_S: Final = 30.0


class ClusterProfiler:
    """The daemon's profiler first, then those of its other processes. Every method raises CallRefused.

    A process that comes while the CPU is sampled samples too, from then on.
    """

    def __init__(self, own: Profiler, control_server: ControlServer) -> None:
        self._own = own
        self._control_server = control_server
        self._is_sampling = False
        control_server.set_initial(CPU, lambda: self._is_sampling)

    async def start_cpu(self) -> None:
        """Begin to sample the CPU. Raises AlreadyRunning."""
        await self._own.start_cpu()
        self._is_sampling = True
        await self._control_server.broadcast(CPU, True, _PATIENCE_S)

    async def stop_cpu(self) -> None:
        """End sampling and write what was found. Raises NotRunning."""
        was_sampling, self._is_sampling = self._is_sampling, False
        try:
            await self._own.stop_cpu()
        finally:
            if was_sampling:
                await self._control_server.broadcast(CPU, False, _PATIENCE_S)

    async def write_memory(self) -> None:
        """Write what holds memory."""
        await self._own.write_memory()
        await self._control_server.broadcast(MEMORY, None, _PATIENCE_S)

    async def write_locks(self) -> None:
        """Write what was waited for."""
        await self._own.write_locks()
        await self._control_server.broadcast(LOCKS, None, _PATIENCE_S)

    async def write_stacks(self) -> None:
        """Write what every thread and every task is doing."""
        await self._own.write_stacks()
        await self._control_server.broadcast(STACKS, None, _PATIENCE_S)


class ProfilerControl(Protocol):
    """What another process writes its profiles by; each raises CallRefused."""

    async def start_cpu(self) -> None:
        """Begin to sample the CPU."""
        ...

    async def stop_cpu(self) -> None:
        """End sampling and write what was found."""
        ...

    async def write_memory(self) -> None:
        """Write what holds memory."""
        ...

    async def write_locks(self) -> None:
        """Write what was waited for."""
        ...

    async def write_stacks(self) -> None:
        """Write what every thread and every task is doing."""
        ...


def profile_handlers(profiler: ProfilerControl) -> Mapping[str, CommandHandler]:
    """Return what another process does when it is told to profile itself."""

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
