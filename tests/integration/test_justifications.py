"""P-Chain messages, their justifications, and requests that bring nothing but a justification."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.daemon import config_of, running, simulated
from tests.integration.judge import judge, parse
from warpseal.simnet.network import SimulatedNetwork
from warpseal.simnet.plan import L1Plan, Plan
from warpseal.simnet.values import SimMessage
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, id_text

PLAN = Plan(validators=6, l1s=(L1Plan(validators=5), L1Plan(validators=4)), messages=40)


def p_chain_messages(network: SimulatedNetwork) -> list[SimMessage]:
    return [message for message in network.messages if message.unsigned.source_chain_id == P_CHAIN]


async def test_every_kind_of_p_chain_message_is_signed_by_the_l1_that_is_named(tmp_path: Path) -> None:
    async with simulated(PLAN) as network, running(config_of(network, tmp_path)) as daemon:
        for message in p_chain_messages(network):
            reply = await daemon.v1(message, signingSubnetId=id_text(message.signing_subnet_id))
            judge(network, reply.signed, message.unsigned.raw, message.signing_subnet_id, 67)


async def test_without_a_signing_subnet_the_primary_network_signs_for_the_p_chain(tmp_path: Path) -> None:
    async with simulated(PLAN) as network, running(config_of(network, tmp_path)) as daemon:
        for message in p_chain_messages(network)[:10]:
            reply = await daemon.kebab(message)
            judge(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_a_wrong_justification_fails_and_the_failure_hints_at_the_l1s_own_set(tmp_path: Path) -> None:
    async with simulated(PLAN) as network, running(config_of(network, tmp_path)) as daemon:
        conversion = p_chain_messages(network)[0]
        reply = await daemon.v1(conversion, justification="00" * 31)
        assert (reply.status, reply.body["code"]) == (400, "quorum_impossible")
        # Who was not asked, or had not answered yet when it was clear, is counted as that.
        assert reply.detail["counts"]["justification_unparsable"] >= 2
        assert any("signing subnet" in hint for hint in reply.detail["hints"])
        # The refusals were about that justification: with the right one the same message is signed.
        reply = await daemon.kebab(conversion)
        judge(network, reply.signed, conversion.unsigned.raw, PRIMARY_NETWORK, 67)
        # A message that is signed is signed: by then no justification is needed at all.
        assert (await daemon.v1(conversion, justification="00" * 31)).signed == reply.signed


@pytest.mark.parametrize("prefix", ["", "0x"])
async def test_a_subnet_id_alone_names_its_conversion(prefix: str, tmp_path: Path) -> None:
    async with simulated(PLAN) as network, running(config_of(network, tmp_path)) as daemon:
        for subnet in network.subnets[1:]:
            expected = next(
                message
                for message in p_chain_messages(network)
                if message.justification == subnet.subnet_id and message.signing_subnet_id == subnet.subnet_id
            )
            reply = await daemon.v1(None, justification=prefix + subnet.subnet_id.hex())
            # Signed by the subnet that validates the chain of its validator manager, which is its own here.
            judge(network, reply.signed, expected.unsigned.raw, subnet.subnet_id, 67)
            reply = await daemon.kebab(None, justification=prefix + subnet.subnet_id.hex(), signing_subnet_id="")
            judge(network, reply.signed, expected.unsigned.raw, subnet.subnet_id, 67)


async def test_a_justification_of_a_removed_validator_alone_names_its_removal(tmp_path: Path) -> None:
    async with simulated(PLAN) as network, running(config_of(network, tmp_path)) as daemon:
        proofs = [message for message in p_chain_messages(network) if len(message.justification) > 32]
        assert len(proofs) >= 6
        for message in proofs:
            reply = await daemon.kebab(None, justification=message.justification.hex())
            assert parse(bytes.fromhex(reply.signed))[0] == message.unsigned.raw
            judge(network, reply.signed, message.unsigned.raw, message.signing_subnet_id, 67)
            reply = await daemon.v1(
                None, justification=message.justification.hex(), signingSubnetId=id_text(PRIMARY_NETWORK)
            )
            judge(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_a_justification_that_names_nothing_is_the_callers_fault(tmp_path: Path) -> None:
    async with simulated(PLAN) as network, running(config_of(network, tmp_path)) as daemon:
        unknown = await daemon.v1(None, justification="ab" * 32)
        assert (unknown.status, unknown.body["code"]) == (400, "unknown_subnet")
        unusable = await daemon.v1(None, justification="abcd")
        assert (unusable.status, unusable.body["code"]) == (400, "unusable_justification")
        nothing = await daemon.kebab(None)
        assert (nothing.status, nothing.body["code"]) == (400, "nothing_to_sign")


async def test_a_subnet_that_was_never_converted_has_no_conversion_to_sign(tmp_path: Path) -> None:
    plan = Plan(validators=5, l1s=(L1Plan(validators=3, shared=True, permissioned=True),))
    async with simulated(plan) as network, running(config_of(network, tmp_path)) as daemon:
        subnet_id = network.subnets[1].subnet_id
        reply = await daemon.v1(None, justification=subnet_id.hex())
        assert (reply.status, reply.body["code"]) == (400, "subnet_not_converted")
        # Its own chain's messages are signed all the same.
        message = network.messages_of(subnet_id)[0]
        judge(network, (await daemon.v1(message)).signed, message.unsigned.raw, subnet_id, 67)
