"""What a request is about: the message, who signs it, at which height; and the parts that find these out."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from warpseal.l1.attestation import Attestation
from warpseal.l1.bootstrap import BootstrapSearch
from warpseal.l1.heights import HeightChoice, HeightChooser
from warpseal.l1.manager_logs import ManagerLogs
from warpseal.l1.origins import OriginFinder
from warpseal.l1.ports import Aggregator, Archive, Chains, Epochs, Evm, Heights, Index, Platform, Progress, Sets, XChain
from warpseal.l1.request import L1Request
from warpseal.l1.settings import L1Settings
from warpseal.l1.transactions import LocatedTransaction, TransactionFinder
from warpseal.l1.validity_cache import ValidityLookup
from warpseal.warp.ids import ChainID, SubnetID


@dataclass(frozen=True, slots=True)
class L1Deps:
    """What signed messages by transaction work with. evm: the configured chains; progress: of the follower."""

    platform: Platform
    x_chain: XChain
    evm: Mapping[ChainID, Evm]
    index: Index
    archive: Archive
    chains: Chains
    epochs: Epochs
    heights: Heights
    sets: Sets
    aggregator: Aggregator
    progress: Progress


@dataclass(frozen=True, slots=True)
class SigningContext:
    """at_least: a node below this P-Chain height proves nothing about the message. subnet_id: it signs."""

    located: LocatedTransaction
    derived: Attestation
    at_least: int
    subnet_id: SubnetID
    choice: HeightChoice


@dataclass(frozen=True, slots=True)
class L1Components:
    """What answers are put together from."""

    transactions: TransactionFinder
    heights: HeightChooser
    truths: ValidityLookup
    origins: OriginFinder
    chains: Chains

    @classmethod
    def of(cls, rooms: L1Deps, network_id: int, settings: L1Settings, executor: Executor | None) -> L1Components:
        """Return the parts over these rooms. executor: where initial validators are hashed."""
        index = rooms.index
        transactions = TransactionFinder(rooms.platform, rooms.x_chain, index, network_id, settings)
        bootstrap = BootstrapSearch(rooms.platform, settings, executor=executor)
        logs = ManagerLogs(rooms.evm, settings)
        return cls(
            transactions=transactions,
            heights=HeightChooser(rooms.epochs, settings),
            truths=ValidityLookup(rooms.platform, index, settings),
            origins=OriginFinder(index, transactions, bootstrap, logs, rooms.progress),
            chains=rooms.chains,
        )

    async def subject(self, request: L1Request) -> SigningContext:
        """Return what a request is about.

        Raises TransactionNotFound, NoMessage, UndecodableTransaction, UnknownChain, NodeUnavailable.
        """
        located = await self.transactions.find(request.tx_id)
        derived = located.message()
        self.origins.learn(derived)
        subnet_id = await self.chains.subnet_of(derived.manager_chain_id)
        choice = await self.heights.choose(request.height, derived.manager_chain_id)
        return SigningContext(located, derived, located.height or 0, subnet_id, choice)
