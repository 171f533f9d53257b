"""Who is to sign what: message, signing subnet, height and set, and what goes wrong on the way
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from hashlib import sha256

import pytest

from tests.aggregation.fixtures import (
    CHAIN,
    HEIGHT,
    NETWORK_ID,
    SUBNET,
    Chains,
    Epochs,
    Heights,
    Sets,
    members,
    message,
    request,
)
from tests.aggregation.virtual_time import now, run
from warpseal.aggregation.errors import (
    NoValidators,
    QuorumNotReached,
    WrongNetwork,
    WrongSigningSubnet,
)
from warpseal.aggregation.resolve import ResolvedRequest, Resolver, find_receiving_subnet
from warpseal.aggregation.service import AggregationRequest
from warpseal.node.p_chain import Subnet
from warpseal.upstream.errors import NodeUnavailable
from warpseal.validators.errors import HeightTooOld, UnknownChain, UnknownSubnet
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, ValidationID, id_text
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    SubnetToL1Conversion,
    build_p_chain_message,
)
from warpseal.warp.message import AddressedCall, UnsignedMessage
from warpseal.warp.quorum_shortfall import QuorumShortfall, Verdict

C_CHAIN = ChainID(sha256(b"c-chain").digest())
LATEST, OLDER, EMPTY = members([10, 20]), members([10]), members([])
L1 = SubnetID(sha256(b"l1").digest())


class ResolverDriver:
    """A resolver and what it asks."""

    def __init__(self) -> None:
        self.heights = Heights()
        self.sets = Sets(LATEST)
        self.chains = Chains()
        self.chains.subnet_by_chain[C_CHAIN] = PRIMARY_NETWORK
        self.epochs = Epochs()
        self.resolver = Resolver(self.heights, self.sets, self.chains, self.epochs, NETWORK_ID, 1.0)

    def resolve(
        self, aggregation_request: AggregationRequest, patience_s: float = 15.0
    ) -> ResolvedRequest:
        async def main() -> ResolvedRequest:
            return await self.resolver.resolve(aggregation_request, now() + patience_s)

        return run(main())

    def advise(
        self, aggregation_request: AggregationRequest, refused_weight: int = 0
    ) -> str | None:
        """Return the advice about the signing subnet after a quorum of 67 of 100 failed."""
        resolved = self.resolve(aggregation_request)
        shortfall = QuorumShortfall(
            Verdict.WAIT, 0, 67, 100, 1, "", {}, (), refused_weight=refused_weight
        )

        async def main() -> str | None:
            return await self.resolver.advise_subnet(resolved, shortfall)

        return run(main())


def test_by_default_the_subnet_of_the_source_chain_signs_at_the_proposed_height() -> None:
    driver = ResolverDriver()
    resolved = driver.resolve(request())
    assert (resolved.subnet_id, resolved.height, resolved.validators) == (SUBNET, HEIGHT, LATEST)
    assert driver.sets.calls == [(SUBNET, HEIGHT, False, False)]


def test_the_given_subnet_signs_and_the_source_chain_is_not_looked_up() -> None:
    driver = ResolverDriver()
    unknown = message(chain=ChainID(bytes(31) + b"\x09"))
    driver.sets.others[L1] = OLDER
    resolved = driver.resolve(request(about=unknown, signing_subnet_id=L1))
    assert (resolved.subnet_id, resolved.validators) == (L1, OLDER)


def teleporter_message(destination: ChainID, version: int = 1) -> UnsignedMessage:
    """Return a message of the C-Chain that holds the head of a Teleporter message."""
    address = bytes(12) + b"\xaa" * 20
    words = [
        (32).to_bytes(32),
        (7).to_bytes(32),
        *[address] * version,
        destination,
        address,
        bytes(32),
    ]
    return UnsignedMessage.build(
        NETWORK_ID, C_CHAIN, AddressedCall(b"\xbb" * 20, b"".join(words)).encode()
    )


@pytest.mark.parametrize("version", [1, 2])
def test_the_l1_that_receives_a_message_is_advised_as_the_signing_subnet(version: int) -> None:
    driver = ResolverDriver()
    about = teleporter_message(CHAIN, version)
    assert driver.resolve(request(about=about)).subnet_id == PRIMARY_NETWORK
    advice = driver.advise(request(about=about))
    assert advice is not None
    assert id_text(SUBNET) in advice
    # The caller has chosen already, or the message stays in the Primary Network, or its destination
    # is not known.
    assert driver.advise(request(about=about, signing_subnet_id=PRIMARY_NETWORK)) is None
    assert driver.advise(request(about=teleporter_message(C_CHAIN, version))) is None
    assert driver.advise(request(about=teleporter_message(ChainID(b"\x77" * 32), version))) is None
    assert driver.advise(request(about=message(chain=C_CHAIN))) is None


def test_no_subnet_is_advised_if_the_validators_refuse_the_message_itself() -> None:
    driver = ResolverDriver()
    aggregation_request = request(about=teleporter_message(CHAIN))
    assert driver.advise(aggregation_request, refused_weight=33) is not None
    assert driver.advise(aggregation_request, refused_weight=34) is None


def test_the_subnet_of_the_l1_s_manager_is_advised_for_a_message_of_the_p_chain() -> None:
    driver = ResolverDriver()
    validation_id = ValidationID(bytes(31) + b"\x05")
    about = build_p_chain_message(NETWORK_ID, L1ValidatorRegistration(validation_id, True).encode())
    assert driver.advise(request(about=about)) is None
    driver.chains.validations[validation_id] = L1
    driver.chains.subnets[L1] = Subnet(L1, bytes(32), CHAIN, bytes(20))
    advice = driver.advise(request(about=about))
    assert advice is not None
    assert id_text(SUBNET) in advice
    conversion = build_p_chain_message(NETWORK_ID, SubnetToL1Conversion(bytes(32)).encode())
    assert driver.advise(request(about=conversion)) is None
    assert driver.advise(request(about=conversion, justification=L1)) == advice
    driver.chains.subnets[L1] = Subnet(L1, bytes(32), C_CHAIN, bytes(20))
    assert driver.advise(request(about=about)) is None


def test_a_bare_justification_names_message_and_subnet() -> None:
    driver = ResolverDriver()
    driver.chains.subnets[L1] = Subnet(L1, bytes(32), CHAIN, bytes(20))
    aggregation_request = AggregationRequest(None, L1, None, 67, 0, None, None)
    resolved = driver.resolve(aggregation_request)
    assert resolved.subnet_id == SUBNET
    assert resolved.message.source_chain_id == P_CHAIN
    l1_request = AggregationRequest(None, L1, L1, 67, 0, None, None)
    assert driver.resolve(l1_request).subnet_id == L1


def test_another_network_s_message_is_refused_before_anything_is_asked() -> None:
    driver = ResolverDriver()
    foreign = UnsignedMessage.build(NETWORK_ID + 1, CHAIN, b"")
    with pytest.raises(WrongNetwork):
        driver.resolve(request(about=foreign))
    assert driver.sets.calls == []


def test_an_unknown_chain_is_named() -> None:
    with pytest.raises(UnknownChain):
        ResolverDriver().resolve(request(about=message(chain=ChainID(bytes(31) + b"\x09"))))


def test_a_named_height_is_used_as_it_is() -> None:
    driver = ResolverDriver()
    driver.sets.by_height[7] = OLDER
    resolved = driver.resolve(request(height=7))
    assert (resolved.height, resolved.validators) == (7, OLDER)
    assert driver.sets.calls == [(SUBNET, 7, True, False)]


def test_an_epoch_height_is_kept_like_the_proposed_one_and_no_lookback_applies() -> None:
    driver = ResolverDriver()
    driver.epochs.heights[CHAIN] = 7
    driver.sets.oldest = 50
    assert driver.resolve(request(height=7)).height == 7
    assert driver.sets.calls[-1] == (SUBNET, 7, True, True)
    driver.epochs.heights[CHAIN] = 60
    assert driver.resolve(request(height=60)).height == 60
    assert driver.sets.calls[-1] == (SUBNET, 60, True, True)


def test_the_epoch_of_a_chain_of_the_signing_subnet_counts() -> None:
    driver = ResolverDriver()
    hosted = ChainID(bytes(31) + b"\x05")
    driver.chains.subnet_by_chain[hosted] = L1
    driver.epochs.heights[hosted] = 7
    driver.sets.oldest = 50
    driver.chains.subnet_by_chain[CHAIN] = PRIMARY_NETWORK
    assert driver.resolve(request(height=7, signing_subnet_id=L1)).height == 7


def test_a_subnet_without_the_source_chain_is_refused_unless_the_primary_network_runs_it() -> None:
    driver = ResolverDriver()
    driver.chains.subnets[L1] = Subnet(L1)
    with pytest.raises(WrongSigningSubnet, match=f"subnet {id_text(SUBNET)} does"):
        driver.resolve(request(signing_subnet_id=L1))
    driver.chains.subnet_by_chain[CHAIN] = PRIMARY_NETWORK
    assert driver.resolve(request(signing_subnet_id=L1)).subnet_id == L1
    # An unknown chain is not looked up for a named subnet, as a node may lag behind.
    del driver.chains.subnet_by_chain[CHAIN]
    assert driver.resolve(request(signing_subnet_id=L1)).subnet_id == L1


def test_a_height_too_far_back_is_refused() -> None:
    driver = ResolverDriver()
    driver.sets.oldest = 50
    with pytest.raises(HeightTooOld):
        driver.resolve(request(height=49))


def test_a_height_of_no_epoch_is_looked_up_once() -> None:
    driver = ResolverDriver()

    async def main() -> int:
        for _ in range(5):
            await driver.resolver.resolve(request(height=8), now() + 5)
        return len(driver.sets.calls)

    assert run(main()) == 5
    assert all(not epoch for _, _, _, epoch in driver.sets.calls)


class FailingEpochs(Epochs):
    """Epochs whose look-up takes for ever, or fails."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self._error = error

    async def any_at(self, height: int, chain_ids: Iterable[ChainID]) -> bool:
        if self._error is not None:
            raise self._error
        await asyncio.sleep(1e9)
        return True


@pytest.mark.parametrize("error", [None, NodeUnavailable("epoch")])
def test_a_height_is_taken_for_none_of_an_epoch_if_the_look_up_fails(
    error: Exception | None,
) -> None:
    driver = ResolverDriver()
    driver.resolver = Resolver(
        driver.heights, driver.sets, driver.chains, FailingEpochs(error), NETWORK_ID, 1.0
    )
    assert driver.resolve(request(height=8)).height == 8
    assert not any(epoch for _, _, _, epoch in driver.sets.calls)


def test_an_empty_set_at_a_named_height_is_an_error() -> None:
    driver = ResolverDriver()
    driver.sets.by_height[7] = EMPTY
    with pytest.raises(NoValidators):
        driver.resolve(request(height=7))


@pytest.mark.parametrize("height", [None, 7])
def test_an_unknown_subnet_and_one_without_validators_are_different_errors(
    height: int | None,
) -> None:
    driver = ResolverDriver()
    driver.sets.others[L1] = EMPTY
    with pytest.raises(UnknownSubnet):
        driver.resolve(request(signing_subnet_id=L1, height=height))


def test_an_empty_set_at_the_proposed_height_is_asked_for_again_within_the_deadline() -> None:
    driver = ResolverDriver()
    driver.sets.latest = EMPTY
    driver.sets.by_height[HEIGHT + 1] = LATEST

    async def main() -> ResolvedRequest:
        asyncio.get_running_loop().call_later(3.5, setattr, driver.heights, "height", HEIGHT + 1)
        return await driver.resolver.resolve(request(), now() + 15)

    assert run(main()).height == HEIGHT + 1
    assert 4 <= len(driver.sets.calls) <= 6


def test_a_set_that_stays_empty_is_worth_waiting_for() -> None:
    driver = ResolverDriver()
    driver.sets.latest = EMPTY
    with pytest.raises(QuorumNotReached) as error:
        driver.resolve(request(), patience_s=5.0)
    assert error.value.at_deadline
    shortfall = error.value.shortfall
    assert shortfall.verdict is Verdict.WAIT
    weights = shortfall.signed_weight, shortfall.required_weight, shortfall.total_weight
    assert weights == (0, 0, 0)
    assert "threshold of stake" in str(error.value)
    assert "no validators" in error.value.shortfall.hints[0]


def test_a_height_that_has_not_come_by_the_deadline_is_worth_waiting_for() -> None:
    driver = ResolverDriver()
    driver.sets.hangs = True
    with pytest.raises(QuorumNotReached) as error:
        driver.resolve(request(height=HEIGHT + 5), patience_s=3.0)
    assert error.value.shortfall.height == HEIGHT + 5


def test_nodes_that_answer_too_late_are_unavailable() -> None:
    driver = ResolverDriver()
    driver.sets.hangs = True
    with pytest.raises(NodeUnavailable):
        driver.resolve(request(), patience_s=3.0)
    with pytest.raises(NodeUnavailable):
        driver.resolve(request(height=HEIGHT - 5), patience_s=3.0)


def test_no_proposed_height_is_no_node() -> None:
    driver = ResolverDriver()
    driver.heights.height = None
    with pytest.raises(NodeUnavailable):
        driver.resolve(request())
    assert driver.resolve(request(height=7)).height == 7


def test_the_known_height_of_an_epoch_is_looked_up_nowhere_and_never_too_old() -> None:
    driver = ResolverDriver()
    driver.sets.oldest = HEIGHT
    driver.sets.by_height = {HEIGHT - 9: OLDER}
    resolved = driver.resolve(request(height=HEIGHT - 9, is_epoch_height=True))
    assert (resolved.height, resolved.validators) == (HEIGHT - 9, OLDER)
    assert driver.sets.calls == [(SUBNET, HEIGHT - 9, True, True)]


def test_the_set_of_an_epoch_that_is_cached_is_taken_at_once() -> None:
    driver = ResolverDriver()
    driver.sets.by_height = {7: OLDER}
    resolved = driver.resolve(request(height=7, is_epoch_height=True, signing_subnet_id=SUBNET))
    assert (resolved.height, resolved.subnet_id, resolved.validators) == (7, SUBNET, OLDER)
    assert driver.sets.calls == []
    assert not resolved.is_default_subnet


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(bytes(5 * 32), id="another first word"),
        pytest.param((32).to_bytes(32, "big") + bytes(4 * 32 - 1), id="too short"),
        pytest.param(b"", id="empty"),
    ],
)
def test_a_payload_that_is_not_of_teleporter_names_no_destination(payload: bytes) -> None:
    call = AddressedCall(b"\xbb" * 20, payload).encode()
    about = UnsignedMessage.build(NETWORK_ID, C_CHAIN, call)
    assert run(find_receiving_subnet(about, b"", ResolverDriver().chains)) is None
