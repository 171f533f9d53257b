"""The origin of a validation that was removed: stored, proven by the caller, or searched for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from tests.chains.p_vectors import transaction
from tests.eventually import StoppedClock, stopped_clock, until
from tests.l1.fixtures import build_request
from tests.l1.test_bootstrap import FEW, SubnetListing
from tests.l1.test_lookups import MemoryIndex, PChainNodes, build_finder, committed
from tests.l1.test_manager_logs import Chain
from tests.l1.test_validity import HISTORY, NETWORK_ID, attestation_of
from warpseal.forwarding.evm.log_filter import EvmLog
from warpseal.l1.bootstrap import BootstrapSearch
from warpseal.l1.errors import FollowerProgress, OriginNotIndexed, ProofMismatch
from warpseal.l1.manager_logs import ManagerLogs
from warpseal.l1.origins import OriginFinder, OriginResult
from warpseal.messages.attestation import Attestation, build_message
from warpseal.store.values import BootstrapOrigin, Origin, RegistrationOrigin
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, SubnetID, ValidationID
from warpseal.warp.l1_messages import L1ValidatorRegistration, bootstrap_validation_id
from warpseal.warp.message import AddressedCall, UnsignedMessage

L1 = SubnetID(HISTORY.subnet_id)
REMOVAL = attestation_of(HISTORY.removal)
INITIAL = bootstrap_validation_id(L1, 0)
SEARCH_S = 20.0


def registration() -> RegistrationOrigin:
    registered = attestation_of(HISTORY.registration).registration
    assert registered is not None
    return RegistrationOrigin(registered.encode())


def removal_of(validation_id: ValidationID) -> Attestation:
    payload = L1ValidatorRegistration(validation_id, False)
    message = build_message(NETWORK_ID, payload)
    manager = (REMOVAL.manager_chain_id, REMOVAL.manager_address)
    return Attestation(payload, message, *manager, None, validation_id=validation_id)


@dataclass
class OriginIndex(MemoryIndex):
    """An index of origins in memory."""

    origins: dict[ValidationID, Origin] = field(default_factory=dict)

    async def origin(self, validation_id: ValidationID) -> Origin | None:
        self._check()
        return self.origins.get(validation_id)

    async def store_origin(self, origin: Origin, source: str) -> None:
        self._check()
        self.origins[origin.validation_id] = origin


@dataclass
class SearchSetup:
    """Nodes, an index and a chain of the manager, and the finder over them."""

    index: OriginIndex = field(default_factory=OriginIndex)
    nodes: PChainNodes = field(default_factory=PChainNodes)
    listing: SubnetListing = field(default_factory=lambda: SubnetListing(()))
    chains: dict[ChainID, Chain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.finder = OriginFinder(
            self.index,
            build_finder(self.nodes),
            BootstrapSearch(self.listing.subnets, FEW),
            ManagerLogs(self.chains, FEW),
            FollowerProgress,
        )

    async def search(self, attestation: Attestation, subnet_id: SubnetID) -> OriginResult:
        deadline = asyncio.get_running_loop().time() + SEARCH_S
        return await self.finder.search(attestation, subnet_id, deadline)


async def test_a_stored_origin_is_found_without_a_search() -> None:
    setup = SearchSetup()
    request = build_request(HISTORY.removal.tx_id)
    assert await setup.finder.find(REMOVAL, request) is None
    setup.index.origins[HISTORY.validation_id] = registration()
    assert await setup.finder.find(REMOVAL, request) == OriginResult(registration(), "index")
    # It stays in memory.
    setup.index.is_down = True
    assert await setup.finder.find(REMOVAL, request) == OriginResult(registration(), "index")
    assert setup.listing.requests == 0


async def test_the_registration_that_was_requested_is_the_origin_of_its_removal() -> None:
    setup = SearchSetup()
    setup.finder.learn(attestation_of(HISTORY.registration))
    result = await setup.finder.find(REMOVAL, build_request(HISTORY.removal.tx_id))
    assert result == OriginResult(registration(), "transaction")


async def test_the_l1_of_a_requested_conversion_is_searched_without_the_list_of_subnets() -> None:
    setup = SearchSetup(listing=SubnetListing((), is_away=True))
    with pytest.raises(OriginNotIndexed):
        await setup.search(removal_of(INITIAL), PRIMARY_NETWORK)
    setup.finder.learn(attestation_of(HISTORY.conversion))
    result = await setup.search(removal_of(INITIAL), PRIMARY_NETWORK)
    assert result == OriginResult(BootstrapOrigin(L1, 0), "bootstrap")
    assert setup.index.origins == {INITIAL: BootstrapOrigin(L1, 0)}


async def test_an_origin_that_the_follower_stores_during_a_search_ends_it() -> None:
    setup = SearchSetup()
    setup.listing.gate.clear()
    searching = asyncio.create_task(setup.search(REMOVAL, L1))
    await until(lambda: setup.listing.requests)
    setup.index.origins[HISTORY.validation_id] = registration()
    setup.listing.gate.set()
    assert await searching == OriginResult(registration(), "index")


async def test_a_conversion_proves_where_its_initial_validators_began() -> None:
    setup = SearchSetup(nodes=PChainNodes(committed(HISTORY.conversion.raw)))
    request = build_request(bytes(32), registration_tx_id=HISTORY.conversion.tx_id)
    result = await setup.finder.find(removal_of(INITIAL), request)
    assert result == OriginResult(BootstrapOrigin(L1, 0), "caller")
    assert setup.index.origins == {INITIAL: BootstrapOrigin(L1, 0)}


async def test_a_transaction_that_began_another_validation_or_none_proves_nothing() -> None:
    disabling = transaction("DisableL1ValidatorTx")
    weight = HISTORY.first.raw
    raws = (HISTORY.conversion.raw, HISTORY.registration.raw, disabling, weight)
    for raw in raws:
        ((tx_id, accepted),) = committed(raw).items()
        setup = SearchSetup(nodes=PChainNodes({tx_id: accepted}))
        with pytest.raises(ProofMismatch, match="did not begin validation"):
            await setup.finder.find(
                removal_of(ValidationID(bytes(32))),
                build_request(bytes(32), registration_tx_id=tx_id),
            )


async def test_half_of_the_time_of_a_search_is_left_for_the_logs_of_the_managers_chain() -> None:
    call = AddressedCall(REMOVAL.manager_address, registration().payload)
    message = UnsignedMessage.build(NETWORK_ID, REMOVAL.manager_chain_id, call.encode())
    chain = Chain(tip=5, logs_at={3: [EvmLog(3, message.raw)]})
    setup = SearchSetup(chains={REMOVAL.manager_chain_id: chain})
    # The list of subnets never comes.
    setup.listing.gate.clear()
    with stopped_clock() as clock:
        searching = asyncio.create_task(setup.search(REMOVAL, L1))
        while not setup.listing.requests and not searching.done():
            await pass_time(clock, 0.0)
        await pass_time(clock, SEARCH_S / 2 - 0.1)
        assert not searching.done()
        await pass_time(clock, 0.2)
        assert searching.done()
        assert await searching == OriginResult(registration(), "manager_chain")


async def pass_time(clock: StoppedClock, seconds: float) -> None:
    clock.advance(seconds)
    for _ in range(100):
        await asyncio.sleep(0)
