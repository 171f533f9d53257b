"""Compares validator sets of the index with those of the nodes, behind the requests that use them.

One comparison runs at a time, one begins each second at most, and an unchanged set of a subnet is
compared once a minute. A source that cannot return its set proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from cachetools import LRUCache
from msgspec import Struct

from warpseal.runtime.ttl_cache import loop_time
from warpseal.upstream.errors import NodeUnavailable, RpcRefusal
from warpseal.validators.errors import ValidatorSetsDiffer
from warpseal.warp.ids import SubnetID, id_text
from warpseal.warp.validator_set import (
    MemberPair,
    ValidatorEntry,
    describe_members,
    differing_members,
)

log = logging.getLogger(__name__)

Members = tuple[ValidatorEntry, ...]
ReadSet = Callable[[SubnetID, int], Awaitable[Members | None]]

_GAP_S: Final = 1.0
_UNCHANGED_S: Final = 60.0
_MAX_WAITING: Final = 256
_MAX_DIFFERENCES: Final = 4_096


class SetDifference(Struct, frozen=True):
    """Members of a subnet that the index and the nodes list differently."""

    subnet_id: SubnetID
    height: int
    members: tuple[MemberPair, ...]

    @property
    def text(self) -> str:
        """The difference in a sentence, which names the first validators."""
        where = f"subnet {id_text(self.subnet_id)} at P-Chain height {self.height}"
        return (
            f"the index and the nodes list other validators of {where}:"
            f" {describe_members(self.members)}"
        )


class _Used(Struct, frozen=True):
    """A set that a request used.

    until: time after which the other source is not asked any more.
    """

    until: float
    height: int
    members: Members
    is_indexed: bool


class SetComparison:
    """Compares sets, and remembers differences. Used from one event loop.

    read_index: function that returns the set of the index; None if the index does not have it.
    read_nodes: function that returns the set of the nodes; None if they do not have it.
    count: function that takes the result of each comparison, `equal` or `different`.
    has_stop: a difference stops signing for the subnet until the daemon is started again.
    on_wrong_set: function that takes subnet and height of a set of the nodes that a request used
        and that the index contradicts.
    """

    def __init__(
        self,
        read_index: ReadSet,
        read_nodes: ReadSet,
        count: Callable[[str], None],
        *,
        has_stop: bool,
        gap_s: float = _GAP_S,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._read_index = read_index
        self._read_nodes = read_nodes
        self._count = count
        self._has_stop = has_stop
        self._gap_s = gap_s
        self._now = now or loop_time
        self._waiting: OrderedDict[SubnetID, _Used] = OrderedDict()
        self._compared: LRUCache[SubnetID, tuple[Members, float]] = LRUCache(_MAX_WAITING)
        self._differences: LRUCache[SubnetID, SetDifference] = LRUCache(_MAX_DIFFERENCES)
        self._is_waiting = asyncio.Event()
        self.on_wrong_set: Callable[[SubnetID, int], None] = lambda subnet_id, height: None

    def differences(self) -> Sequence[SetDifference]:
        """Return the last difference of each subnet.

        Without `has_stop` a difference ends when the sets are equal again.
        """
        return tuple(self._differences.values())

    def check(self, subnet_id: SubnetID) -> None:
        """Raise ValidatorSetsDiffer if signing for a subnet is stopped."""
        difference = self._differences.get(subnet_id) if self._has_stop else None
        if difference is not None:
            raise ValidatorSetsDiffer(difference.text, id_text(subnet_id), difference.height)

    def note(self, subnet_id: SubnetID, height: int, members: Members, *, is_indexed: bool) -> None:
        """Compare a set that a request used, soon. The newest set of each subnet waits."""
        compared, at = self._compared.get(subnet_id, (None, float("-inf")))
        if compared == members and self._now() - at < _UNCHANGED_S:
            return
        self._waiting[subnet_id] = _Used(self._now() + _UNCHANGED_S, height, members, is_indexed)
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.popitem(last=False)
        self._is_waiting.set()

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            await self._is_waiting.wait()
            subnet_id, used = self._waiting.popitem(last=False)
            if not self._waiting:
                self._is_waiting.clear()
            try:
                await self._compare(subnet_id, used)
            except (NodeUnavailable, RpcRefusal) as error:
                log.debug(
                    "validator set not compared",
                    extra={"subnet_id": id_text(subnet_id), "reason": str(error)},
                )
            await asyncio.sleep(self._gap_s)

    async def _compare(self, subnet_id: SubnetID, used: _Used) -> None:
        read = self._read_nodes if used.is_indexed else self._read_index
        other = await read(subnet_id, used.height)
        if other is None:
            # The index may get the height later.
            if self._now() < used.until:
                self._waiting.setdefault(subnet_id, used)
                self._is_waiting.set()
            return
        self._compared[subnet_id] = used.members, self._now()
        if used.is_indexed:
            members = differing_members(used.members, other)
        else:
            members = differing_members(other, used.members)
        self._count("different" if members else "equal")
        before = self._differences.get(subnet_id)
        if members:
            difference = SetDifference(subnet_id, used.height, members)
            self._differences[subnet_id] = difference
            if before is None or before.members != members:
                fields = {
                    "subnet_id": id_text(subnet_id),
                    "height": used.height,
                    "is_signing": not self._has_stop,
                }
                log.warning("validator sets differ", extra={**fields, "reason": difference.text})
            if not used.is_indexed:
                self.on_wrong_set(subnet_id, used.height)
        elif not self._has_stop:
            self._differences.pop(subnet_id, None)
