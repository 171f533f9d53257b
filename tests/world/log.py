"""The log of a world: what a process logs of an error in its own code is an error of the world."""

from __future__ import annotations

import logging

from tests.world.threads import active_simulation


class InternalErrors(logging.Handler):
    """Notes each record that has a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        simulation = active_simulation()
        if simulation is None or simulation.current is None or not record.exc_info:
            return
        fields = {"message": f"logged {record.getMessage()!r}", "exception": record.exc_info[1]}
        simulation.unhandled(simulation.current, fields)


def watch() -> None:
    """Let the world see records of ERROR and above; the others are off, which makes them cheap."""
    logging.disable(logging.WARNING)
    logging.getLogger().addHandler(InternalErrors(logging.ERROR))
