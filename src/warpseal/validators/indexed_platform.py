"""The P-Chain by its nodes and its index: sets by `validator-sets`, the rest while no node replies.

What never changes once it exists (the subnet of a chain, the conversion of a subnet) comes from the
index first, so that no node can forge it. A missing row never replaces a node's reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from cachetools import LRUCache

from warpseal.ledger.params import L1FeeConfig
from warpseal.node.p_chain import (
    CurrentValidation,
    FoundTransaction,
    L1FeeState,
    Subnet,
    ValidationAt,
)
from warpseal.node.platform import PlatformClient
from warpseal.resources.chains import PrimaryChain
from warpseal.store.errors import StoreDown
from warpseal.upstream.agreement import NodeAgreement
from warpseal.upstream.errors import HeightAhead, NodesDisagree, NodeUnavailable, RpcRefusal
from warpseal.upstream.limits import CallOrigin
from warpseal.upstream.pool import NodePool
from warpseal.validators.errors import HeightNotIndexed
from warpseal.validators.p_chain_rows import PChainRows, read_rows
from warpseal.validators.set_comparison import SetComparison
from warpseal.validators.settings import SetSource
from warpseal.warp.ids import ChainID, SubnetID, ValidationID
from warpseal.warp.validator_set import ValidatorEntry

if TYPE_CHECKING:
    from warpseal.index.index import Index

T = TypeVar("T")
Members = tuple[ValidatorEntry, ...]

# A little longer than the indexer needs for a new block.
_WAIT_S: Final = 5.0
_POLL_S: Final = 0.25
_MAX_INDEX_LAG: Final = 16
# A proposer waits so long after the parent of its block (avalanchego `vms/proposervm`,
# DefaultMinBlockDelay).
_MIN_BLOCK_S: Final = 1
_MAX_FEE_AGE_S: Final = 60
_MAX_SUBNETS: Final = 64
# Below the bound of the index's queue: a read that waits here is not refused there, which a node
# would answer then.
_MAX_READS: Final = 32


class IndexedPlatform(PlatformClient):
    """P-Chain calls to nodes, and reads of the index. Methods raise what PlatformClient's raise.

    index: index that is set before the first call, so that no node's reply is used in its place;
        None if it was never opened.
    source: source of validator sets, BOTH or INDEX. With INDEX no node is asked for a set, and
        methods raise HeightNotIndexed if the index does not get a height within seconds.
    count: function that takes the result of each comparison of sets.
    has_stop: a difference of sets stops signing for the subnet.
    """

    def __init__(
        self,
        pool: NodePool[int],
        agreement: NodeAgreement,
        check_key: Callable[[bytes], object] | None = None,
        *,
        source: SetSource,
        count: Callable[[str], None],
        has_stop: bool,
    ) -> None:
        super().__init__(pool, agreement, check_key)
        self.index: Index | None = None
        self._source = source
        self._reads = asyncio.Semaphore(_MAX_READS)
        self._proposed = 0
        self._fees: tuple[L1FeeConfig | None, L1FeeState | None] = None, None
        self._latest: LRUCache[SubnetID, Members] = LRUCache(_MAX_SUBNETS)
        self.comparison = SetComparison(
            self._indexed_set, super().validators_at, count, has_stop=has_stop
        )

    async def run(self) -> None:
        """Compare sets until cancelled."""
        await self.comparison.run()

    async def newest_height(self) -> int | None:
        """Return the newest height of which the index has sets."""
        heights = await self._read(lambda index: index.validator_sets.heights())
        return None if heights is None else heights[1]

    async def proposed_height(self, origin: CallOrigin = CallOrigin.CALLER) -> int:
        """Return the height that nodes propose, or the index's newest one if that is hardly lower.

        So requests use heights of which the index has the sets, also in the second in which it
        reads a new block. With BOTH a stalled index keeps no height back, since only nodes
        know newer sets. A height that the P-Chain cannot have reached since the newest block of
        the index is a lie: nodes build a block a second at most.
        """
        proposed = await super().proposed_height(origin)
        newest = await self.newest_height()
        is_far = newest is not None and proposed > newest + _MAX_INDEX_LAG
        if newest is not None and is_far and await self._is_unreachable(proposed):
            return newest
        self._proposed = proposed
        needs_nodes = self._source is SetSource.BOTH and self._is_index_stalled()
        if newest is None or is_far or needs_nodes:
            return proposed
        return min(newest, proposed)

    def _is_index_stalled(self) -> bool:
        progress = () if self.index is None else self.index.progress()
        return any(chain.chain == PrimaryChain.P and chain.is_stalled for chain in progress)

    async def _is_unreachable(self, height: int) -> bool:
        """Return whether the P-Chain cannot have built a height since the index's last block."""
        tip = await self._rows(lambda rows: rows.tip)
        if tip is None:
            return False
        built = max(0, int(time.time()) - tip.time_s) // _MIN_BLOCK_S
        return height > tip.height + _MAX_INDEX_LAG + built

    async def validators_at(
        self, subnet_id: SubnetID, height: int, origin: CallOrigin = CallOrigin.CALLER
    ) -> tuple[ValidatorEntry, ...]:
        members = await self._indexed_set(subnet_id, height)
        if self._source is SetSource.INDEX:
            return await self._await_set(subnet_id, height) if members is None else members
        is_indexed = members is not None
        if members is None:
            members = await super().validators_at(subnet_id, height, origin)
        self.comparison.note(subnet_id, height, members, is_indexed=is_indexed)
        return members

    async def all_validators_at(
        self, height: int, origin: CallOrigin = CallOrigin.CALLER
    ) -> Mapping[SubnetID, tuple[ValidatorEntry, ...]]:
        def read(index: Index) -> Awaitable[Mapping[SubnetID, Members] | None]:
            return index.validator_sets.all_members_at(height)

        if self._source is SetSource.INDEX:
            return await self._read_or(HeightNotIndexed(height, None, None), read)
        try:
            return await super().all_validators_at(height, origin)
        except (NodeUnavailable, RpcRefusal) as error:
            return await self._read_or(error, read)

    async def validated_by(self, chain_id: ChainID) -> SubnetID | None:
        subnet_id = await self._rows(lambda rows: rows.subnet_of(chain_id))
        return await super().validated_by(chain_id) if subnet_id is None else subnet_id

    async def blockchains_of(self, subnet_id: SubnetID) -> tuple[ChainID, ...]:
        try:
            return await super().blockchains_of(subnet_id)
        except NodeUnavailable as error:
            return await self._rows_or(error, lambda rows: rows.blockchains_of(subnet_id))

    async def subnet(self, subnet_id: SubnetID) -> Subnet | None:
        subnet = await self._rows(lambda rows: rows.subnet(subnet_id))
        if subnet is not None and subnet.is_l1:
            return subnet
        try:
            return await super().subnet(subnet_id)
        except NodeUnavailable:
            if subnet is None:
                raise
            return subnet

    async def current_validations(
        self, subnet_id: SubnetID, origin: CallOrigin = CallOrigin.CALLER
    ) -> tuple[CurrentValidation, ...]:
        try:
            return await super().current_validations(subnet_id, origin)
        except NodeUnavailable as error:
            return await self._rows_or(error, lambda rows: rows.current_validations(subnet_id))

    async def fee_config(self, origin: CallOrigin = CallOrigin.CALLER) -> L1FeeConfig:
        try:
            config = await super().fee_config(origin)
        except NodeUnavailable:
            if self._fees[0] is None:
                raise
            return self._fees[0]
        self._fees = config, self._fees[1]
        return config

    async def fee_state(self, origin: CallOrigin = CallOrigin.CALLER) -> L1FeeState:
        """Return the fee state of a node; while none replies the last one, if it is hardly older.

        No row of the index has the excess.
        """
        try:
            state = await super().fee_state(origin)
        except NodeUnavailable as error:
            last = self._fees[1]
            tip = None if last is None else await self._rows_or(error, lambda rows: rows.tip)
            if last is None or tip is None or abs(tip.time_s - last.time_s) > _MAX_FEE_AGE_S:
                raise
            return last
        self._fees = self._fees[0], state
        return state

    async def subnets(self) -> tuple[SubnetID, ...]:
        """Return the subnets that a node lists, and the L1s of the index.

        A node without the list names only subnets that have validators now.
        """
        indexed = await self._rows(lambda rows: rows.converted_subnets()) or ()
        try:
            listed = await super().subnets()
        except NodeUnavailable:
            if not indexed:
                raise
            return indexed
        return tuple(dict.fromkeys((*listed, *indexed)))

    async def transaction(self, tx_id: bytes) -> FoundTransaction | None:
        try:
            return await super().transaction(tx_id)
        except NodeUnavailable as error:
            return await self._rows_or(error, lambda rows: rows.transaction(tx_id))

    async def l1_validator(
        self, validation_id: ValidationID, at_least: int = 0
    ) -> ValidationAt | None:
        try:
            return await super().l1_validator(validation_id, at_least)
        except NodeUnavailable as error:
            validation = await self._rows_or(error, lambda rows: rows.l1_validator(validation_id))
            return validation if validation.height >= at_least else None

    async def indexed_l1_validator(self, validation_id: ValidationID) -> ValidationAt | None:
        return await self._rows(lambda rows: rows.l1_validator(validation_id))

    async def _indexed_set(self, subnet_id: SubnetID, height: int) -> Members | None:
        members = await self._read(lambda index: index.validator_sets.members_at(subnet_id, height))
        if members is None:
            return None
        # The same tuple for an unchanged set, so that the canonical set is not built again.
        latest = self._latest.get(subnet_id)
        if latest == members:
            return latest
        self._latest[subnet_id] = members
        return members

    async def _await_set(self, subnet_id: SubnetID, height: int) -> Members:
        """Return a set once the index has it.

        Raises HeightAhead beyond the tip, HeightNotIndexed if it takes long, and at once if the
        index has stalled.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WAIT_S
        while True:
            heights = await self._read(lambda index: index.validator_sets.heights())
            oldest, newest = heights or (None, None)
            tip = max(newest or 0, self._proposed)
            if height > tip:
                raise HeightAhead(0, "the index does not have the height yet", height, tip)
            is_over = loop.time() >= deadline or self._is_index_stalled()
            if (newest is not None and height <= newest) or is_over:
                members = await self._indexed_set(subnet_id, height)
                if members is None:
                    raise HeightNotIndexed(height, oldest, newest)
                return members
            await asyncio.sleep(_POLL_S)

    async def _rows(self, query: Callable[[PChainRows], T | None]) -> T | None:
        return await self._read(lambda index: index.read(lambda session: read_rows(session, query)))

    async def _rows_or(self, error: NodeUnavailable, query: Callable[[PChainRows], T | None]) -> T:
        return await self._read_or(
            error, lambda index: index.read(lambda session: read_rows(session, query))
        )

    async def _read(self, read: Callable[[Index], Awaitable[T | None]]) -> T | None:
        """Return what the index has; None also while the index cannot be read."""
        if self.index is None:
            return None
        with suppress(StoreDown):
            async with self._reads:
                return await read(self.index)
        return None

    async def _read_or(
        self, error: NodeUnavailable | RpcRefusal, read: Callable[[Index], Awaitable[T | None]]
    ) -> T:
        """Return what the index has in place of a node's reply, or raise the error of the nodes.

        The index does not decide between nodes that disagree about the present.
        """
        value = None if isinstance(error, NodesDisagree) else await self._read(read)
        if value is None:
            raise error
        return value
