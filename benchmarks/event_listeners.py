"""Events sent to 1,000 listeners, by `/v1/events` and by gRPC: CPU of an event for one of them,
alone and in batches.

A process with a store serves 1,000 listeners of `/v1/events`, each with a connection of its own,
and nothing else. Events of 300 bytes are added alone, then 10 and 50 in one commit. CPU of the
process counts from before they are added until the last listener has them, commits and heartbeats
included. Then 1,000 listeners of gRPC, each with a connection of its own, get the same.

python -m benchmarks.event_listeners --folder PATH serves a store there, and adds as many events as
a client says.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import selectors
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import uvloop
from grpc import aio
from msgspec.structs import replace

from benchmarks.index_server import build_needs, serve_data_api
from benchmarks.load import RECEIVE_BYTES, STALLED_S, LoadFailed
from benchmarks.process import Process, allow_many_sockets, running
from benchmarks.report import Aim, Figure, Report, quantile
from warpseal.api.data.routes import MAX_LISTENERS, MAX_LISTENERS_PER_CLIENT
from warpseal.cli.serve import GC_THRESHOLDS
from warpseal.events.feed import EventFeed
from warpseal.pb import warpseal_pb2 as pb
from warpseal.pb.warpseal_pb2_grpc import WarpsealStub
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
        process = stack.enter_context(
            running(arguments, folder / "log", module="benchmarks.event_listeners")
        )
        control = stack.enter_context(socket.socket(socket.AF_UNIX))
        control.connect(str(folder / _CONTROL))
        url, grpc_address = process.ready_line.split()
        with _listening(url, listeners) as selector:
            for size, rounds in batches:
                figures += _figures("", size, *_send(process, control, selector, size, rounds))
        asyncio.run(_send_by_grpc(process, control, grpc_address, listeners, batches, figures))
    return Report(
        "event_listeners",
        quick,
        tuple(figures),
        (f"{listeners} listeners, events of about 300 bytes",),
    )


def _figures(protocol: str, size: int, cpu_us: float, delays_s: list[float]) -> list[Figure]:
    title = "alone" if size == 1 else f"in batches of {size}"
    return [
        Figure(f"{protocol}CPU of an event for one listener, {title}", cpu_us, "us", CPU_AIM),
        Figure(
            f"{protocol}until the last listener has them, p50, {title}",
            quantile(delays_s, 0.5),
            "s",
        ),
    ]


def _send(
    process: Process,
    control: socket.socket,
    selector: selectors.BaseSelector,
    size: int,
    rounds: int,
) -> tuple[float, list[float]]:
    """Add events; return the server's microseconds for an event and listener, and the seconds of
    each round.
    """
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


async def _send_by_grpc(
    process: Process,
    control: socket.socket,
    address: str,
    count: int,
    batches: Sequence[tuple[int, int]],
    figures: list[Figure],
) -> None:
    """Open listeners, each with a connection, and add figures of the same events."""
    missing, is_done = 0, asyncio.Event()

    async def listen(number: int, stack: AsyncExitStack) -> asyncio.Task[None]:
        # Otherwise all channels of a process share one connection.
        options = (("grpc.use_local_subchannel_pool", 1),)
        channel = await stack.enter_async_context(aio.insecure_channel(address, options))
        metadata = (("x-forwarded-for", f"10.0.0.{1 + number // MAX_LISTENERS_PER_CLIENT}"),)
        stub = WarpsealStub(channel)  # type: ignore[no-untyped-call]
        request = pb.ListenEventsRequest()
        stream = stub.ListenEvents(request, metadata=metadata, wait_for_ready=True)
        await stream.read()

        async def count_events() -> None:
            nonlocal missing
            while (batch := await stream.read()) is not aio.EOF:
                missing -= len(batch.events)
                if missing <= 0:
                    is_done.set()

        return asyncio.create_task(count_events())

    async with AsyncExitStack() as stack:
        tasks = [await listen(number, stack) for number in range(count)]
        for size, rounds in batches:
            delays_s: list[float] = []
            cpu_s = process.cpu_s()
            for _ in range(rounds):
                started, missing = time.perf_counter(), size * count
                is_done.clear()
                control.sendall(b"%d\n" % size)
                async with asyncio.timeout(STALLED_S):
                    await is_done.wait()
                delays_s.append(time.perf_counter() - started)
            cpu_us = (process.cpu_s() - cpu_s) / (rounds * size * count) * 1e6
            figures += _figures("gRPC: ", size, cpu_us, delays_s)
        for task in tasks:
            task.cancel()


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
        needs = replace(build_needs(), feed=EventFeed(store.events))
        await serve_data_api(needs, has_grpc=True)


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
