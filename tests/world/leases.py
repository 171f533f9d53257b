"""Which process of a world believes that it holds which lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.world.threads import active_simulation

if TYPE_CHECKING:
    from tests.world.simulation import Process, Simulation

# A request that was sent by a leader arrives a moment later.
_ON_ITS_WAY_S: Final = 0.5


class Leases:
    """The beliefs of all processes; two of them are never leaders of one job at the same time."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._holders: dict[str, Process] = {}
        self._lost_at: dict[tuple[str, Process], float] = {}

    def holder(self, name: str) -> Process | None:
        """Return the process that believes that it holds a lease, if it is alive."""
        process = self._holders.get(name)
        return process if process is not None and process.is_alive else None

    def acquire(self, name: str, process: Process) -> None:
        """Note that a process holds a lease from now on."""
        other = self.holder(name)
        if other is not None and other is not process:
            both = f"{other.name} and {process.name}"
            self._simulation.unhandled(process, {"message": f"{both} hold the lease {name!r}"})
        self._simulation.note(f"{process.name} leads: {name}")
        self._simulation.reach(f"server: lease {name} acquired")
        self._holders[name] = process

    def lose(self, name: str, process: Process) -> None:
        """Note that a process does not hold a lease any more."""
        if self._holders.get(name) is process:
            self._simulation.note(f"{process.name} does not lead any more: {name}")
            self._lost_at[name, process] = self._simulation.now
            del self._holders[name]

    def may_act(self, name: str, process: Process) -> bool:
        """Return whether what a process did as the leader of a job may arrive now."""
        lost_at = self._lost_at.get((name, process), float("-inf"))
        is_holder = self._holders.get(name) is process or not process.is_alive
        return is_holder or self._simulation.now < lost_at + _ON_ITS_WAY_S


def watch() -> None:
    """Let the elections of the product tell the world what their processes believe."""
    from warpseal.store.locks import ServerLeadership

    begin, end = ServerLeadership._acquire, ServerLeadership._lose

    def acquire(self: ServerLeadership) -> None:
        simulation = active_simulation()
        if simulation is not None and simulation.current is not None:
            simulation.leases.acquire(self._name, simulation.current)
        begin(self)

    def lose(self: ServerLeadership) -> None:
        simulation = active_simulation()
        if simulation is not None and simulation.current is not None:
            simulation.leases.lose(self._name, simulation.current)
        end(self)

    ServerLeadership._acquire = acquire  # type: ignore[assignment, method-assign]
    ServerLeadership._lose = lose  # type: ignore[assignment, method-assign]
