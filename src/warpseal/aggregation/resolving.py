"""Who is to sign what: from a request to a message, a signing subnet, a height and the set there."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from warpseal.aggregation.derive import derive, manager_subnet
from warpseal.aggregation.ports import Chains, Epochs, Heights, Sets
from warpseal.aggregation.request import AggregationRequest
from warpseal.errors import (
    HeightTooOld,
    NodeUnavailable,
    NoValidators,
    QuorumNotReached,
    QuorumShortfall,
    Verdict,
    WrongNetwork,
)
from warpseal.node.errors import RpcRefusal
from warpseal.warp.ids import PRIMARY_NETWORK, SubnetID, id_text
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.validator_set import CanonicalValidatorSet

L1_MAY_VERIFY_HINT: Final = (
    "The message is of a chain of the Primary Network and no signing subnet was given, so the Primary Network "
    "was asked. An L1 may verify such a message with its own validators: name it as the signing subnet then."
)
_EMPTY_SET_HINT: Final = "The signing subnet has no validators at the proposed P-Chain height yet."
_HEIGHT_AHEAD_HINT: Final = "The P-Chain has not reached the height that was asked for yet."
# A height that was found to be no chain's epoch height is not looked up again for this long.
_EPOCH_KNOWN_S: Final = 30.0
_EPOCH_PATIENCE_S: Final = 0.25
_MAX_EPOCHS_KNOWN: Final = 4_096


@dataclass(frozen=True, slots=True)
class Resolved:
    """A message and the set that is to sign it. hints: what the caller should know if it fails."""

    message: UnsignedMessage
    subnet_id: SubnetID
    height: int
    members: CanonicalValidatorSet
    hints: tuple[str, ...]


@dataclass(slots=True)
class _Progress:
    """How far a request came before its time was over."""

    subnet_id: SubnetID | None = None
    height: int | None = None
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the answers come from."""

    heights: Heights
    sets: Sets
    chains: Chains
    epochs: Epochs


@dataclass(slots=True)
class Resolver:
    """Resolves requests for one network."""

    sources: Sources
    network_id: int
    empty_set_retry_s: float
    _epochs_known: OrderedDict[tuple[SubnetID, int], float] = field(default_factory=OrderedDict)

    async def resolve(self, request: AggregationRequest, deadline: float) -> Resolved:
        """Return what a request is about.

        Raises WrongNetwork, UnknownChain, UnknownSubnet, SubnetNotConverted, UnusableJustification,
        NoValidators, HeightTooOld, HeightTooNew, NodeUnavailable; QuorumNotReached when the time is over while
        the height or the subnet's first validator is still to come.
        """
        progress = _Progress(height=request.height)
        try:
            async with asyncio.timeout_at(deadline):
                return await self._resolve(request, deadline, progress)
        except TimeoutError:
            raise self._too_late(progress) from None

    async def _resolve(self, request: AggregationRequest, deadline: float, progress: _Progress) -> Resolved:
        message, subnet_id = await self._subject(request)
        progress.subnet_id = subnet_id
        if request.height is None:
            height, members = await self._proposed(subnet_id, progress)
        else:
            height, members = request.height, await self._named(request, subnet_id, request.height, message)
        is_unaware = request.message is not None and request.signing_subnet_id is None
        hints = (L1_MAY_VERIFY_HINT,) if is_unaware and subnet_id == PRIMARY_NETWORK else ()
        return Resolved(message, subnet_id, height, members, hints)

    async def _subject(self, request: AggregationRequest) -> tuple[UnsignedMessage, SubnetID]:
        chains = self.sources.chains
        if request.message is None:
            message, about = await derive(request.justification, self.network_id, chains)
            return message, request.signing_subnet_id or await manager_subnet(about, chains)
        message = request.message
        if message.network_id != self.network_id:
            raise WrongNetwork(message.network_id, self.network_id)
        return message, request.signing_subnet_id or await chains.subnet_of(message.source_chain_id)

    async def _proposed(self, subnet_id: SubnetID, progress: _Progress) -> tuple[int, CanonicalValidatorSet]:
        """Return the set at the proposed height; while an existing subnet has none, ask again."""
        while True:
            height = progress.height = await self.sources.heights.first()
            members = await self.sources.sets.at(subnet_id, height, named=False)
            if members.total_weight:
                return height, members
            await self.sources.chains.subnet(subnet_id)
            progress.is_empty = True
            await asyncio.sleep(self.empty_set_retry_s)

    async def _named(
        self, request: AggregationRequest, subnet_id: SubnetID, height: int, message: UnsignedMessage
    ) -> CanonicalValidatorSet:
        if request.is_epoch_height:
            members = await self.sources.sets.at(subnet_id, height, named=True, epoch=True)
        else:
            members = await self._at(subnet_id, height, message)
        if not members.total_weight:
            await self.sources.chains.subnet(subnet_id)
            raise NoValidators(id_text(subnet_id), height)
        return members

    async def _at(self, subnet_id: SubnetID, height: int, message: UnsignedMessage) -> CanonicalValidatorSet:
        """Return a set at a height that a caller named; that of an epoch is kept like the proposed one.

        Whether the height is an epoch's is looked up once per height, beside the fetch of the set.
        """
        sets, key = self.sources.sets, (subnet_id, height)
        now = asyncio.get_running_loop().time()
        if self._epochs_known.get(key, 0.0) > now:
            return await sets.at(subnet_id, height, named=True)
        checking = asyncio.create_task(self._is_epoch(subnet_id, height, message))
        try:
            members = await sets.at(subnet_id, height, named=True)
            await asyncio.wait((checking,), timeout=_EPOCH_PATIENCE_S)
        except HeightTooOld:
            if not await checking:
                raise
            return await sets.at(subnet_id, height, named=True, epoch=True)
        finally:
            checking.cancel()
        if checking.done() and not checking.cancelled() and checking.exception() is None and checking.result():
            return await sets.at(subnet_id, height, named=True, epoch=True)
        self._remember(key, now + _EPOCH_KNOWN_S)
        return members

    async def _is_epoch(self, subnet_id: SubnetID, height: int, message: UnsignedMessage) -> bool:
        """Tell whether the height is the epoch height of the source chain or of a chain of the signing subnet."""
        try:
            hosted = await self.sources.chains.blockchains_of(subnet_id)
        except (NodeUnavailable, RpcRefusal):
            hosted = ()
        return await self.sources.epochs.any_at(height, {message.source_chain_id, *hosted})

    def _remember(self, key: tuple[SubnetID, int], until: float) -> None:
        self._epochs_known[key] = until
        self._epochs_known.move_to_end(key)
        while len(self._epochs_known) > _MAX_EPOCHS_KNOWN:
            self._epochs_known.popitem(last=False)

    def _too_late(self, progress: _Progress) -> QuorumNotReached | NodeUnavailable:
        if progress.subnet_id is None or progress.height is None:
            return NodeUnavailable("the signing subnet and the proposed height")
        if not progress.is_empty and progress.height <= self._proposed_height():
            return NodeUnavailable("the validator set")
        hint = _EMPTY_SET_HINT if progress.is_empty else _HEIGHT_AHEAD_HINT
        return QuorumNotReached(_nobody(progress.subnet_id, progress.height, hint), at_deadline=True)

    def _proposed_height(self) -> int:
        try:
            return self.sources.heights.current()
        except NodeUnavailable:
            return 2**64


def _nobody(subnet_id: SubnetID, height: int, hint: str) -> QuorumShortfall:
    return QuorumShortfall(
        verdict=Verdict.WAIT,
        signed_weight=0,
        required_weight=0,
        total_weight=0,
        height=height,
        signing_subnet_id=id_text(subnet_id),
        counts={},
        missing=(),
        hints=(hint,),
    )
