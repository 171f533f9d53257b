"""The profilers of the daemon and of its other processes as one; their files lie beside the daemon's.

If another process fails or is too slow, both processes log it; the call to the daemon still succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from warpseal.ops.ipc import CommandHandler, ControlServer
from warpseal.ops.profiles.profiler import AlreadyRunning, NotRunning, Profiler, ProfileStep, TakeStep

TOPIC: Final = "profile"
# A profile of memory takes seconds for each million objects.
_TIMEOUT_S: Final = 30.0


class ClusterProfiler:
    """The daemon's profiler first, then those of its other processes.

    A process that connects while the CPU is sampled starts sampling as well.
    """

    def __init__(self, own: Profiler, control_server: ControlServer) -> None:
        self._own = own
        self._control_server = control_server
        self._is_sampling = False
        control_server.set_initial(TOPIC, lambda: ProfileStep.START_CPU if self._is_sampling else ProfileStep.STOP_CPU)

    async def take(self, step: ProfileStep) -> None:
        """Take a step in every process. Raises CallRefused if the daemon's own profiler fails.

        The other processes do not take it then, but they always stop sampling together with the daemon.
        """
        is_shared = self._is_sampling and step is ProfileStep.STOP_CPU
        self._is_sampling = self._is_sampling and not is_shared
        try:
            await self._own.take(step)
            self._is_sampling = self._is_sampling or step is ProfileStep.START_CPU
            is_shared = True
        finally:
            if is_shared:
                await self._control_server.broadcast(TOPIC, step, _TIMEOUT_S)


def profile_handlers(take: TakeStep) -> Mapping[str, CommandHandler]:
    """Return the handler by which another process writes its profiles."""

    async def take_step(value: Any) -> None:
        with suppress(AlreadyRunning, NotRunning):
            await take(ProfileStep(value))

    return {TOPIC: take_step}
