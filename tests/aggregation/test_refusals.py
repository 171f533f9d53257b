"""What a refusal means depends on its code, the chain and the kind of message."""

from __future__ import annotations

import pytest

from tests.aggregation.fixtures import CHAIN, NETWORK_ID, message
from warpseal.aggregation.members import ShareStatus
from warpseal.aggregation.refusals import P_CHAIN_REFUSALS, RefusalRules
from warpseal.warp.ids import P_CHAIN, ValidationID
from warpseal.warp.l1_messages import ValidatorUptime
from warpseal.warp.message import AddressedCall, Hash, UnsignedMessage

P_RULES = RefusalRules(p_chain=True, uptime=False)
EVM_RULES = RefusalRules(p_chain=False, uptime=False)
UPTIME_RULES = RefusalRules(p_chain=False, uptime=True)


def uptime(source_address: bytes = b"", chain: bytes = CHAIN) -> UnsignedMessage:
    payload = ValidatorUptime(ValidationID(bytes(32)), 80).encode()
    return UnsignedMessage.build(NETWORK_ID, chain, AddressedCall(source_address, payload).encode())  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 7, 8, 9, 10, 13, 15, -1, -2])
def test_the_final_codes_of_the_p_chain_are_permanent(code: int) -> None:
    assert P_RULES.refusal(code).status is ShareStatus.IMPOSSIBLE


@pytest.mark.parametrize("code", [0, 6, 11, 12, 14, 16, 17, 18, 99, 2**31 - 1, -3, -4, -(2**31)])
def test_p_chain_refusals_of_lagging_nodes_are_retryable(code: int) -> None:
    assert P_RULES.refusal(code).status is ShareStatus.PENDING


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 17, 2**31 - 1, -3])
def test_every_other_code_of_another_chain_may_change(code: int) -> None:
    assert EVM_RULES.refusal(code).status is ShareStatus.PENDING


@pytest.mark.parametrize("rules", [P_RULES, EVM_RULES, UPTIME_RULES])
@pytest.mark.parametrize("code", [-1, -2])
def test_minus_one_and_two_are_permanent_on_every_chain(rules: RefusalRules, code: int) -> None:
    assert rules.refusal(code).status is ShareStatus.IMPOSSIBLE


def test_an_uptime_that_was_not_reached_is_not_asked_for_again_but_not_final() -> None:
    assert UPTIME_RULES.refusal(2).status is ShareStatus.UNAVAILABLE
    assert UPTIME_RULES.refusal(1).status is ShareStatus.PENDING
    assert UPTIME_RULES.refusal(3).status is ShareStatus.PENDING


def test_an_uptime_message_is_known_by_its_empty_source_its_payload_and_its_chain() -> None:
    assert RefusalRules.of(uptime()) == UPTIME_RULES
    assert RefusalRules.of(uptime(source_address=bytes(20))) == EVM_RULES
    assert RefusalRules.of(uptime(chain=P_CHAIN)) == P_RULES
    assert RefusalRules.of(message()) == EVM_RULES
    block_hash = UnsignedMessage.build(NETWORK_ID, CHAIN, Hash(bytes(32)).encode())
    assert RefusalRules.of(block_hash) == EVM_RULES


def test_each_of_the_seventeen_codes_has_a_reason_and_advice_of_its_own() -> None:
    assert set(P_CHAIN_REFUSALS) == set(range(1, 18))
    assert len({refusal.reason for refusal in P_CHAIN_REFUSALS.values()}) == 17
    assert len({refusal.advice for refusal in P_CHAIN_REFUSALS.values()}) == 17
    for refusal in P_CHAIN_REFUSALS.values():
        assert refusal.reason.replace("_", "").isalpha()
        assert refusal.reason.islower()


def test_advice_is_given_once_however_often_it_applies() -> None:
    assert len(EVM_RULES.advice([77, 78, 1, 77])) == 2
