"""Events sent to 1,000 listeners of `/v1/events`: CPU of an event for one of them, alone and in batches.

python -m benchmarks.event_listeners --folder PATH serves a store there, and adds as many events as a client says.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import selectors
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from benchmarks.index_made_up import PARAMS
from benchmarks.index_server import KnownKeys, QuietNode, serve_data_api
from benchmarks.load import RECEIVE_BYTES, STALLED_S, LoadFailed
from benchmarks.process import Process, allow_many_sockets, running
from benchmarks.report import Aim, Figure, Report, quantile
from warpseal.api.data.event_endpoints import MAX_LISTENERS, MAX_LISTENERS_PER_CLIENT
from warpseal.api.data.services import DataServices
from warpseal.cli.serve import GC_THRESHOLDS
from warpseal.events.feed import EventFeed
from warpseal.resources.chains import PrimaryChains
from warpseal.store.event_rows import NewEvent, event_name
from warpseal.store.settings import StoreSettings
from warpseal.store.store import open_store
from warpseal.store.values import Event, EventType

QUICK_LISTENERS = 50
# Events of one commit, and how many commits.
BATCHES = ((1, 40), (10, 20), (50, 8))
QUICK_BATCHES = ((1, 5), (10, 2))
CPU_AIM = Aim(10.0)
_CONTROL = "control"
_GET = b"GET /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
# Lines of an event; a count of single bytes does not depend on how they arrive.
_LINES = 3
_ID = "2Z5HX5qLftGqXR4eXQezZ6VkK1MQNaxbmJH7EeVwfFiVgWToib"


def run(quick: bool) -> Report:
    """Connect the listeners, add events, and wait until all have them."""
    allow_many_sockets()
    listeners, batches = (QUICK_LISTENERS, QUICK_BATCHES) if quick else (MAX_LISTENERS, BATCHES)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="warpseal-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        arguments = ("--folder", name)
        process = stack.enter_context(running(arguments, folder / "log", module="benchmarks.event_listeners"))
        control = stack.enter_context(socket.socket(socket.AF_UNIX))
        control.connect(str(folder / _CONTROL))
        selector = stack.enter_context(_listening(process.ready_line, listeners))
        for size, rounds in batches:
            cpu_us, delays_s = _send(process, control, selector, size, rounds)
            title = "alone" if size == 1 else f"in batches of {size}"
            figures.append(Figure(f"CPU of an event for one listener, {title}", cpu_us, "us", CPU_AIM))
            figures.append(Figure(f"until the last listener has them, p50, {title}", quantile(delays_s, 0.5), "s"))
    return Report("event_listeners", quick, tuple(figures), (f"{listeners} listeners, events of about 300 bytes",))


def _send(
    process: Process, control: socket.socket, selector: selectors.BaseSelector, size: int, rounds: int
) -> tuple[float, list[float]]:
    """Add events; return the server's microseconds for an event and listener, and the seconds of each round."""
    listeners, delays_s = len(selector.get_map()), []
    cpu_s = process.cpu_s()
    for _ in range(rounds):
        # A listener that waited for long has got a heartbeat, which has as many lines.
        for key, _ in selector.select(0):
            key.fileobj.recv(RECEIVE_BYTES)  # type: ignore[union-attr]
        started, missing = time.perf_counter(), size * listeners * _LINES
        control.sendall(b"%d\n" % size)
        while missing > 0:
            if not (ready := selector.select(STALLED_S)):
                raise LoadFailed(f"{missing} lines did not arrive")
            for key, _ in ready:
                missing -= key.fileobj.recv(RECEIVE_BYTES).count(b"\n")  # type: ignore[union-attr]
        delays_s.append(time.perf_counter() - started)
    return (process.cpu_s() - cpu_s) / (rounds * size * listeners) * 1e6, delays_s


@contextmanager
def _listening(url: str, count: int) -> Iterator[selectors.BaseSelector]:
    """Open listeners, each with a connection; no client address has more than it may."""
    port = int(url.rpartition(":")[2])
    with selectors.DefaultSelector() as selector, ExitStack() as stack:
        for number in range(count):
            source = f"127.0.1.{1 + number // MAX_LISTENERS_PER_CLIENT}"
            stream = socket.create_connection(("127.0.0.1", port), STALLED_S, (source, 0))
            stack.enter_context(stream)
            stream.sendall(_GET)
            head = b""
            while b"\nid: " not in head:
                head += stream.recv(RECEIVE_BYTES)
            selector.register(stream, selectors.EVENT_READ)
        yield selector


async def _serve(folder: Path) -> None:
    """Serve a new store until SIGTERM."""
    async with open_store(StoreSettings(), folder) as store:
        added = 0

        async def add(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal added
            while line := await reader.readline():
                events = [_new_event(added + number) for number in range(int(line))]
                added += len(events)
                store.events.add(events)
            writer.close()

        await asyncio.start_unix_server(add, folder / _CONTROL)
        chains = PrimaryChains(PARAMS.x_chain_id, PARAMS.c_chain_id)
        feed = EventFeed(store.events)
        await serve_data_api(
            DataServices(PARAMS.network_id, chains, None, QuietNode(), KnownKeys(), events=feed),
        )


def _new_event(number: int) -> NewEvent:
    event = Event(
        type=EventType.MESSAGE_SIGNED,
        time=int(time.time()),
        source_blockchain_id=_ID,
        subnet_id=_ID,
        message_id=f"0x{number:064x}",
        data={"signers": 67},
    )
    return NewEvent.of(event_name(EventType.MESSAGE_SIGNED, b"%d" % number), event)


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, type=Path)
    gc.set_threshold(*GC_THRESHOLDS)
    uvloop.run(_serve(parser.parse_args().folder))


if __name__ == "__main__":
    main()
