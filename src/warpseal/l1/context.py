"""The context of a request: its transaction, the message, the signing subnet, the height; and the
lookups of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor

from msgspec import Struct

from warpseal.l1.bootstrap import BootstrapSearch
from warpseal.l1.heights import HeightChoice, HeightChooser
from warpseal.l1.interfaces import EvmLogReader, FindQuorum, ReadProgress
from warpseal.l1.manager_logs import ManagerLogs
from warpseal.l1.origins import OriginFinder
from warpseal.l1.request import L1Request
from warpseal.l1.settings import L1Settings
from warpseal.l1.transactions import TransactionFinder
from warpseal.l1.validity import ValidityLookup
from warpseal.messages.attestation import Attestation
from warpseal.node.upstream import Upstream
from warpseal.store.store import Store
from warpseal.validators.chains import ChainLookup
from warpseal.validators.heights import EpochHeights
from warpseal.warp.ids import ChainID, SubnetID


class SigningContext(Struct, frozen=True):
    """The message and the subnet that signs it.

    at_least: P-Chain height below which a node proves nothing about the message.
    quorum: quorum in percent, that of the manager's chain if the request names no higher one.
    """

    attestation: Attestation
    at_least: int
    signing_subnet_id: SubnetID
    choice: HeightChoice
    quorum: int


class L1Lookups:
    """The lookups that a request needs."""

    def __init__(
        self,
        upstream: Upstream,
        store: Store,
        chains: ChainLookup,
        epochs: EpochHeights,
        network_id: int,
        settings: L1Settings,
        *,
        evm: Mapping[ChainID, EvmLogReader],
        progress: ReadProgress,
        find_quorum: FindQuorum,
        executor: Executor | None = None,
    ) -> None:
        """Build the lookups.

        evm: readers of the logs of configured chains.
        progress: returns the progress of the follower.
        find_quorum: returns the quorum of a manager's chain.
        executor: hashes the ids of initial validators, best with one worker thread of its own.
        """
        platform, records = upstream.platform, store.l1
        self.find_subnet = chains.subnet_of
        self._find_quorum = find_quorum
        self.current_validations = platform.current_validations
        self.transactions = TransactionFinder(
            platform, upstream.x_chain.transaction, records, network_id, settings
        )
        self.heights = HeightChooser(epochs.height, settings)
        self.validity = ValidityLookup(platform, records, settings)
        bootstrap = BootstrapSearch(platform.subnets, settings, executor=executor)
        self.origins = OriginFinder(
            records, self.transactions, bootstrap, ManagerLogs(evm, settings), progress
        )

    async def resolve(self, request: L1Request) -> SigningContext:
        """Return the context of a request.

        Raises TransactionNotFound, NoMessage, UndecodableTransaction, UnknownChain,
        NodeUnavailable.
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
        """Return the quorum of a request, percent: at least the quorum of the manager's chain, if
        it is known.
        """
        own = await self._find_quorum(manager_chain_id)
        if own is None:
            return request.quorum
        return own if request.is_default_quorum else max(own, request.quorum)
