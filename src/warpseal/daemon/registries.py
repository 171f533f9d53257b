"""Where subsystems register what others read: health checks, samples, sections of the status,
fields of `/ready`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from math import isfinite
from typing import Any, Final

from msgspec import Struct

from warpseal.api.http.startup_gate import StartupGate
from warpseal.api.status.document import (
    StatusDocument,
    StatusSection,
    extend_document,
    utc_text,
)
from warpseal.api.status.probe_bodies import ReadyFields
from warpseal.config.keys import Config
from warpseal.metrics.registry import Metrics
from warpseal.metrics.samples import Sample, metric
from warpseal.ops.health.registry import HealthRegistry
from warpseal.ops.logs.loggers import DaemonLoggers
from warpseal.runtime.background import BackgroundWork

# Beyond this the wall clock was set.
_CLOCK_STEP_S: Final = 1.0


class StatusRequest(Struct, frozen=True):
    """A request for the status document.

    with_addresses: whether the document has the addresses of validators and of upstream nodes.
    offset_s: Unix time minus the time of the event loop's clock.
    """

    with_addresses: bool
    offset_s: float

    def moment(self, loop_time: float | None) -> str | None:
        """Return the text of a time of the loop's clock."""
        return (
            utc_text(loop_time + self.offset_s)
            if loop_time is not None and isfinite(loop_time)
            else None
        )


ReadSection = Callable[[StatusRequest], Awaitable[Mapping[str, Any]]]
"""Returns fields of the status document by their names.

The chains of several sections are listed together.
"""


class StatusSections:
    """The sections of the status document.

    document_class: class of the document, with the fields that parts of the daemon declare.
    unix_clock: function that returns Unix seconds.
    """

    def __init__(self, unix_clock: Callable[[], float] = time.time) -> None:
        self.document_class = StatusDocument
        self._sections: list[ReadSection] = []
        self._declared: list[type[StatusSection]] = []
        self._unix_clock = unix_clock
        self._offset_s = 0.0

    def register(self, read: ReadSection, declared: type[StatusSection] | None = None) -> None:
        """Add a section.

        declared: fields of the section that StatusDocument lacks.
        """
        self._sections.append(read)
        if declared is not None:
            self._declared.append(declared)
            self.document_class = extend_document(self._declared)

    async def read(self, *, with_addresses: bool) -> dict[str, Any]:
        """Return the fields of all sections."""
        self._update_offset()
        request = StatusRequest(with_addresses, self._offset_s)
        fields, chains = dict[str, Any](), list[Any]()
        for read in tuple(self._sections):
            part = dict(await read(request))
            chains += part.pop("chains", ())
            fields |= part
        return {**fields, "chains": chains}

    def _update_offset(self) -> None:
        """Keep the difference between the wall clock and the loop's clock, so that equal moments
        have equal texts.
        """
        offset_s = self._unix_clock() - asyncio.get_running_loop().time()
        if abs(offset_s - self._offset_s) > _CLOCK_STEP_S:
            self._offset_s = offset_s


class HealthSample(Sample, frozen=True):
    """The health checks.

    passes: whether each check passed when it last ran, by its name.
    """

    passes: Mapping[str, bool] = metric(
        {},
        "warpseal_health_check_passes",
        "1 if a check of /ext/health passed when it last ran, else 0",
        by="check",
    )


class Registries:
    """Where subsystems register what others read. They exist before the network is known.

    refreshers: functions that are called before metrics, status and `/ready` are read.
    started_at: start of the process, Unix seconds.
    starting_gates: gates where requests wait for the network; they get the error if no node
        answers.
    """

    def __init__(self, config: Config, loggers: DaemonLoggers) -> None:
        self.config = config
        self.loggers = loggers
        self.metrics = Metrics()
        self.health = HealthRegistry(config.health)
        self.background = BackgroundWork(self.metrics.count_background_failure)
        self.status = StatusSections()
        self.ready = ReadyFields()
        self.refreshers: list[Callable[[], Awaitable[None]]] = []
        self.metrics.refresh = self.refresh
        self.ready.refresh = self.refresh
        self.metrics.samples.register(HealthSample, lambda: [HealthSample(self.health.results())])
        self.started_at = time.time()
        self.starting_gates: list[StartupGate[Any]] = []
        self._runs: list[tuple[str, Callable[[], Awaitable[object]]]] = []

    def uptime_s(self) -> float:
        """Return the seconds since the start."""
        return time.time() - self.started_at

    def run_in_background(self, part: str, run: Callable[[], Awaitable[object]]) -> None:
        """Let a part that signing does not need run as soon as the ports answer."""
        self._runs.append((part, run))

    def start(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Start the parts, and return their tasks. After an error a part starts again."""
        return [
            tasks.create_task(self.background.keep_running(part, run)) for part, run in self._runs
        ]

    async def refresh(self) -> None:
        """Read old values again that are not read all the time."""
        for refresh in self.refreshers:
            await refresh()
