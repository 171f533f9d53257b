"""A daemon's process that states when it leads, what it adds of a chain's index, and when its event
loop was idle. Its clock of the day is wrong, and it has the defects that a run plants.

`python -m tests.histories.daemon_process OPTIONS serve --config FILE` runs the command itself.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.histories.clock import install_clock
from tests.histories.operations import SENDER, Leadership, SourceWrite
from tests.histories.recorder import Recorder

_STATEMENTS: Final = {"acquired leadership": True, "lost leadership": False}

Serve = Callable[..., Coroutine[Any, Any, None]]


class LeadershipHandler(logging.Handler):
    """Records the leaderships that this process acquires and loses.

    The store logs both in the same step of the event loop in which they take effect.
    """

    def __init__(self, process: str, recorder: Recorder) -> None:
        super().__init__()
        self._process = process
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        """Record what a log record states of a leadership."""
        is_leader = _STATEMENTS.get(record.getMessage())
        job = getattr(record, "leadership", None)
        if is_leader is None or job is None:
            return
        now = time.monotonic()
        self._recorder.add(
            Leadership(process=self._process, begin=now, end=now, job=job, is_leader=is_leader)
        )


def watch(serve: Serve, process: str, recorder: Recorder) -> Serve:
    """Return the function that runs a daemon, with a watch over its event loop."""

    async def watched(*arguments: Any) -> None:
        watching = asyncio.create_task(recorder.watch_loop(process))
        try:
            await serve(*arguments)
        finally:
            watching.cancel()

    return watched


def mark_requests(process: str, webhooks: Any) -> None:
    """Let requests to webhooks name the process that sends them."""
    sign = webhooks._sign

    def sign_with_name(*arguments: Any) -> dict[str, str]:
        return {**sign(*arguments), SENDER: process}

    webhooks._sign = sign_with_name


def state_source_writes(process: str, recorder: Recorder, events: Any) -> None:
    """Record what this process adds of the indexes of chains."""
    add = events.EventLog.add_from_source

    async def add_and_state(
        self: Any, source: str, before: int | None, position: int, *more: Any
    ) -> bool:
        begin, is_added = time.monotonic(), False
        try:
            is_added = await add(self, source, before, position, *more)
        finally:
            recorder.add(
                SourceWrite(
                    process=process,
                    begin=begin,
                    end=time.monotonic(),
                    source=source,
                    before=before,
                    position=position,
                    is_added=is_added,
                )
            )
        return bool(is_added)

    events.EventLog.add_from_source = add_and_state


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--process", required=True)
    parser.add_argument("--statements", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--plant", action="append", default=[])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    install_clock(Random(args.seed))
    # Behind the clock, as its text says.
    from tests.histories.defects import DEFECTS
    from warpseal.cli.main import main as run_command
    from warpseal.daemon import app
    from warpseal.events import webhooks
    from warpseal.store import events as store_events

    for name in args.plant:
        DEFECTS[name].plant(args.process)
    recorder = Recorder(args.statements)
    logging.getLogger("warpseal.store.locks").addHandler(LeadershipHandler(args.process, recorder))
    mark_requests(args.process, webhooks)
    state_source_writes(args.process, recorder, store_events)
    app.serve = watch(app.serve, args.process, recorder)
    return run_command(args.command)


if __name__ == "__main__":
    sys.exit(main())
