"""The context of a request: its transaction, the message, the signing subnet, the height; and the lookups of these."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from warpseal.aggregation.service import SignatureAggregator
from warpseal.l1.attestation import Attestation
from warpseal.l1.bootstrap import BootstrapSearch
from warpseal.l1.heights import HeightChoice, HeightChooser
from warpseal.l1.manager_logs import ManagerLogs
from warpseal.l1.origins import OriginFinder
from warpseal.l1.ports import (
    EvmLogReader,
    FindEpochHeight,
    FindSubnet,
    L1Platform,
    L1TransactionIndex,
    ListSubnets,
    ReadProgress,
    ReadXChainTx,
)
from warpseal.l1.request import L1Request
from warpseal.l1.settings import L1Settings
from warpseal.l1.transactions import LocatedTransaction, TransactionFinder
from warpseal.l1.validity import ValidityLookup
from warpseal.store.archive import Archive
from warpseal.validators.heights import ProposedHeight
from warpseal.validators.sets import ValidatorSets
from warpseal.warp.ids import ChainID, SubnetID


@dataclass(frozen=True, slots=True)
class L1Deps:
    """The services that signed messages by transaction use. evm: configured chains; progress: of the follower."""

    platform: L1Platform
    list_subnets: ListSubnets
    read_x_chain_tx: ReadXChainTx
    evm: Mapping[ChainID, EvmLogReader]
    index: L1TransactionIndex
    archive: Archive
    find_subnet: FindSubnet
    find_epoch_height: FindEpochHeight
    heights: ProposedHeight
    sets: ValidatorSets
    aggregator: SignatureAggregator
    progress: ReadProgress


@dataclass(frozen=True, slots=True)
class SigningContext:
    """What is signed, and by whom. at_least: a node below this P-Chain height proves nothing about the message."""

    located: LocatedTransaction
    attestation: Attestation
    at_least: int
    signing_subnet_id: SubnetID
    choice: HeightChoice


class L1Components:
    """The lookups that a request needs."""

    def __init__(self, deps: L1Deps, network_id: int, settings: L1Settings, executor: Executor | None) -> None:
        """executor: hashes the ids of initial validators."""
        index = deps.index
        self.find_subnet = deps.find_subnet
        self.transactions = TransactionFinder(deps.platform, deps.read_x_chain_tx, index, network_id, settings)
        self.heights = HeightChooser(deps.find_epoch_height, settings)
        self.validity = ValidityLookup(deps.platform, index, settings)
        bootstrap = BootstrapSearch(deps.list_subnets, settings, executor=executor)
        self.origins = OriginFinder(index, self.transactions, bootstrap, ManagerLogs(deps.evm, settings), deps.progress)

    async def resolve(self, request: L1Request) -> SigningContext:
        """Return the context of a request.

        Raises TransactionNotFound, NoMessage, UndecodableTransaction, UnknownChain, NodeUnavailable.
        """
        located = await self.transactions.find(request.tx_id)
        attestation = located.message()
        self.origins.learn(attestation)
        signing_subnet_id = await self.find_subnet(attestation.manager_chain_id)
        choice = await self.heights.choose(request.height, attestation.manager_chain_id)
        return SigningContext(located, attestation, located.height or 0, signing_subnet_id, choice)
