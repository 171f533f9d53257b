"""The memory profile: the live objects of the process by type, and its other memory.

`tracemalloc` would show the places that allocate, but only what is allocated after its start, and a
cached request would take several times its CPU meanwhile (docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from warpseal.ops.profiles.stacks import NATIVE, Frame, StackTotal

_STATM: Final = Path("/proc/self/statm")
# Objects that are visited before the event loop runs again: a few milliseconds.
_OBJECTS_PER_STEP: Final = 2000
_LONGEST_SWITCH_S: Final = 60.0
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
_HEAP_TYPE: Final = 1 << 9
_PAGE_BITS: Final = 16
_SLOT_BITS: Final = 4
_SLOTS_PER_PAGE: Final = 1 << (_PAGE_BITS - _SLOT_BITS)


async def memory_by_type() -> list[StackTotal]:
    """Collect garbage; return count and bytes of live objects by type, and the other memory.

    The event loop runs in between, so the result is not of a single moment. The work stays in the
    thread of the loop, so that an object is never finalized in another thread.
    """
    gc.collect()
    resident = resident_bytes()
    walk = HeapWalk()
    for _ in walk.visit(_tracked_objects()):
        await asyncio.sleep(0)
    return [*walk.totals(), StackTotal((Frame(NATIVE),), 0, max(0, resident - walk.bytes))]


def resident_bytes() -> int:
    """Return the resident memory of the process, or its peak if the system reports no other."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


class HeapWalk:
    """Objects and bytes by type.

    Tuples, and what the collector does not track, are found through their referrers.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._by_type: dict[type, list[int]] = {}
        # A bit map by page: a set of a million addresses takes 100 MB. Objects are at least 16
        # bytes apart.
        self._seen: dict[int, bytearray] = {}

    def visit(self, objects: list[Any]) -> Iterator[None]:
        """Count objects, and the tuples and untracked objects that they refer to.

        objects: list that is emptied.
        Yields after every _OBJECTS_PER_STEP visited objects.
        """
        visited = 0
        while objects:
            tracked = objects.pop()
            self._add(tracked)
            pending = _contents(tracked)
            while pending:
                inner = pending.pop()
                if (type(inner) is tuple or not gc.is_tracked(inner)) and self._is_new(id(inner)):
                    self._add(inner)
                    pending += _contents(inner)
                visited += 1
                if visited % _OBJECTS_PER_STEP == 0:
                    yield

    def totals(self) -> Iterator[StackTotal]:
        """Yield the counts by type."""
        for kind, (count, size) in self._by_type.items():
            yield StackTotal((Frame(f"{kind.__module__}.{kind.__qualname__}"),), count, size)

    def _add(self, item: Any) -> None:
        size = _size_bytes(item)
        total = self._by_type.setdefault(type(item), [0, 0])
        total[0] += 1
        total[1] += size
        self.bytes += size

    def _is_new(self, address: int) -> bool:
        page = self._seen.get(address >> _PAGE_BITS)
        if page is None:
            page = self._seen[address >> _PAGE_BITS] = bytearray(_SLOTS_PER_PAGE)
        slot = address >> _SLOT_BITS & _SLOTS_PER_PAGE - 1
        is_new = not page[slot]
        page[slot] = 1
        return is_new


def _tracked_objects() -> list[Any]:
    """Return the objects that the collector tracks, without tuples.

    Another thread may be filling a tuple, and CPython fails there if anything else refers to the
    tuple then. So no other thread runs while the list has tuples.
    """
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_LONGEST_SWITCH_S)
    try:
        return [item for item in gc.get_objects() if type(item) is not tuple]
    finally:
        sys.setswitchinterval(interval_s)


def _contents(item: Any) -> list[Any]:
    """Return the objects that a container or an instance of a class refers to.

    Objects of the interpreter, such as frames and functions, are skipped: with all of them the
    collector of Python 3.12.1 ran for ever.
    """
    is_safe = isinstance(item, _CONTAINERS) or type(item).__flags__ & _HEAP_TYPE
    return gc.get_referents(item) if is_safe else []


def _size_bytes(item: Any) -> int:
    try:
        return sys.getsizeof(item, 0)
    except Exception:  # noqa: BLE001 - a type of some library whose __sizeof__ fails
        return 0
