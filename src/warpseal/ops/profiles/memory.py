"""What memory is used for: live objects by type, or by the stack that allocated them where that was kept."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from warpseal.runtime.stack_samples import Frame, StackTotal

NATIVE: Final = "[native]"
PROFILER: Final = "[profiler]"

_STATM: Final = Path("/proc/self/statm")
# Objects that are looked at before the event loop has its turn: a few milliseconds.
_OBJECTS_A_TURN: Final = 2000
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_HEAP_TYPE: Final = 1 << 9
_PAGE_BITS: Final = 16
_SLOT_BITS: Final = 4
_SLOTS_A_PAGE: Final = 1 << (_PAGE_BITS - _SLOT_BITS)


async def memory_by_type() -> list[StackTotal]:
    """Return count and bytes of live objects by type, after a collection, and what else the process holds.

    The loop has its turn in between, so the picture is not of one moment. Everything happens in its thread: an object
    that dies meanwhile must do so where it would have died.
    """
    gc.collect()
    resident = resident_bytes()
    census = HeapWalk()
    for _ in census.walk(gc.get_objects()):
        await asyncio.sleep(0)
    return [*census.totals(), _rest(resident, census.bytes)]


def memory_by_stack() -> list[StackTotal]:
    """Return count and bytes of what Python has allocated since the start, by stack, and what else the process holds.

    tracemalloc has to be tracing. For any thread; the interpreter is held while the traces are copied.
    """
    resident = resident_bytes()
    own = tracemalloc.get_tracemalloc_memory()
    totals = list(_by_stack(tracemalloc.take_snapshot()))
    traced = sum(total.amount for total in totals)
    return [*totals, StackTotal((Frame(PROFILER),), 0, own), _rest(resident, traced + own)]


def _by_stack(snapshot: tracemalloc.Snapshot) -> Iterator[StackTotal]:
    """Yield the traces by stack.

    Snapshot.statistics() does the same many times as slowly, because what it allocates meanwhile is traced, too. So the
    tuples behind it are read (the same in Python 3.11 and 3.12), and nothing is allocated for each of them.
    """
    traces: Any = snapshot.traces
    sizes: defaultdict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for trace in traces._traces:
        sizes[trace[2]].append(trace[1])
    for stack, found in sizes.items():
        yield StackTotal(tuple(_frames(stack)), len(found), sum(found))


def resident_bytes() -> int:
    """Return what the process holds of the machine's memory; where the system does not say, the most it ever held."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class HeapWalk:
    """Objects and bytes by type. What the collector does not know of is found through what refers to it."""

    def __init__(self) -> None:
        self.bytes = 0
        self._by_type: dict[type, list[int]] = {}
        # A set of a million addresses takes a hundred megabytes; objects lie 16 bytes apart at least.
        self._seen: dict[int, bytearray] = {}

    def walk(self, objects: list[Any]) -> Iterator[None]:
        """Count objects that the collector knows, each given once, and what only they refer to; empties the list.

        Yields after every _OBJECTS_A_TURN looks.
        """
        looks = 0
        while objects:
            one = objects.pop()
            self._add(one)
            pending = _contents(one)
            while pending:
                inner = pending.pop()
                if not gc.is_tracked(inner) and self._is_new(id(inner)):
                    self._add(inner)
                    pending += _contents(inner)
                looks += 1
                if looks % _OBJECTS_A_TURN == 0:
                    yield

    def totals(self) -> Iterator[StackTotal]:
        """Yield what was counted, by type."""
        for kind, (count, size) in self._by_type.items():
            yield StackTotal((Frame(f"{kind.__module__}.{kind.__qualname__}"),), count, size)

    def _add(self, one: Any) -> None:
        size = _size_of(one)
        total = self._by_type.setdefault(type(one), [0, 0])
        total[0] += 1
        total[1] += size
        self.bytes += size

    def _is_new(self, address: int) -> bool:
        page = self._seen.get(address >> _PAGE_BITS)
        if page is None:
            page = self._seen[address >> _PAGE_BITS] = bytearray(_SLOTS_A_PAGE)
        slot = address >> _SLOT_BITS & _SLOTS_A_PAGE - 1
        is_new = not page[slot]
        page[slot] = 1
        return is_new


def _contents(one: Any) -> list[Any]:
    """Return what a container or an instance of a class refers to.

    The interpreter's own objects, such as frames and functions, are left alone: to ask all of them has made the
    collector of Python 3.12.1 run for ever.
    """
    is_safe = isinstance(one, _CONTAINERS) or type(one).__flags__ & _HEAP_TYPE
    return gc.get_referents(one) if is_safe else []


def _size_of(one: Any) -> int:
    try:
        return sys.getsizeof(one, 0)
    except Exception:  # noqa: BLE001 - a type of some library whose __sizeof__ fails
        return 0


def _frames(stack: Sequence[tuple[str, int]]) -> Iterator[Frame]:
    """Yield the calls, the innermost first as tracemalloc has them; only file and line of each are kept."""
    for file, line in stack:
        yield Frame(f"{'/'.join(file.split('/')[-2:])}:{line}", file, line)


def _rest(resident: int, known: int) -> StackTotal:
    return StackTotal((Frame(NATIVE),), 0, max(0, resident - known))
