"""The context of a request: its transaction, the message, the signing subnet, the height; and the lookups of these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

from msgspec import Struct

from warpseal.aggregation.service import SignatureAggregator
from warpseal.l1.bootstrap import BootstrapSearch
from warpseal.l1.heights import HeightChoice, HeightChooser
from warpseal.l1.manager_logs import ManagerLogs
from warpseal.l1.origins import OriginFinder
from warpseal.l1.ports import EvmLogReader, FindQuorum, ReadProgress
from warpseal.l1.request import L1Request
from warpseal.l1.settings import L1Settings
from warpseal.l1.transactions import TransactionFinder
from warpseal.l1.validity import ValidityLookup
from warpseal.messages.attestation import Attestation
from warpseal.node.upstream import Upstream
from warpseal.store.store import Store
from warpseal.validators.chains import ChainLookup
from warpseal.validators.heights import EpochHeights, ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.ids import ChainID, SubnetID


class L1Deps(Struct, frozen=True):
    """The services that signed messages by transaction use.

    evm: configured chains; progress: progress of the follower; find_quorum: finds the quorum of a manager's chain.
    on_signed: called with each signed message, the id of its transaction and the height of its validator set, also if
    it was signed before.
    """

    upstream: Upstream
    store: Store
    evm: Mapping[ChainID, EvmLogReader]
    chains: ChainLookup
    epochs: EpochHeights
    heights: ProposedHeight
    sets: ValidatorSets
    aggregator: SignatureAggregator
    progress: ReadProgress
    find_quorum: FindQuorum
    on_signed: Callable[[bytes, Attestation, int], None] = lambda tx_id, attestation, height: None


class SigningContext(Struct, frozen=True):
    """The message and the subnet that signs it.

    at_least: a node below this P-Chain height proves nothing about the message. quorum: percent, that of the manager's
    chain if the request names no higher one.
    """

    attestation: Attestation
    at_least: int
    signing_subnet_id: SubnetID
    choice: HeightChoice
    quorum: int


class L1Components:
    """The lookups that a request needs."""

    def __init__(self, deps: L1Deps, network_id: int, settings: L1Settings, executor: Executor | None) -> None:
        """executor: hashes the ids of initial validators."""
        platform, index = deps.upstream.platform, deps.store.l1
        self.find_subnet = deps.chains.subnet_of
        self._find_quorum = deps.find_quorum
        self.current_validations = platform.current_validations
        self.transactions = TransactionFinder(platform, deps.upstream.x_chain.transaction, index, network_id, settings)
        self.heights = HeightChooser(deps.epochs.height, settings)
        self.validity = ValidityLookup(platform, index, settings)
        bootstrap = BootstrapSearch(platform.subnets, settings, executor=executor)
        self.origins = OriginFinder(index, self.transactions, bootstrap, ManagerLogs(deps.evm, settings), deps.progress)

    async def resolve(self, request: L1Request) -> SigningContext:
        """Return the context of a request.

        Raises TransactionNotFound, NoMessage, UndecodableTransaction, UnknownChain, NodeUnavailable.
        """
        located = await self.transactions.find(request.tx_id)
        attestation = located.message()
        self.origins.learn(attestation)
        manager_chain_id = attestation.manager_chain_id
        signing_subnet_id, choice, quorum = await asyncio.gather(
            self.find_subnet(manager_chain_id),
            self.heights.choose(request.height, manager_chain_id),
            self.quorum(request, manager_chain_id),
        )
        return SigningContext(attestation, located.height or 0, signing_subnet_id, choice, quorum)

    async def quorum(self, request: L1Request, manager_chain_id: ChainID) -> int:
        """Return the quorum of a request, percent: at least the quorum of the manager's chain, if it is known."""
        own = await self._find_quorum(manager_chain_id)
        if own is None:
            return request.quorum
        return own if request.is_default_quorum else max(own, request.quorum)
