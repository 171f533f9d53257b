"""P-Chain messages, their justifications, and requests that bring nothing but a justification."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.daemon import build_config, run_daemon, run_network
from tests.integration.message_verifier import parse_signed_message, verify_signed_message
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.values import SimMessage

PLAN = Plan(validators=6, l1s=(L1Plan(validators=5), L1Plan(validators=4)), messages=40)


def p_chain_messages(network: SimulatedNetwork) -> list[SimMessage]:
    return [message for message in network.messages if message.unsigned.source_chain_id == P_CHAIN]


async def test_the_named_l1_signs_every_kind_of_p_chain_message(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        for message in p_chain_messages(network):
            reply = await daemon.aggregate_v1(
                message, signingSubnetId=id_text(message.signing_subnet_id)
            )
            verify_signed_message(
                network, reply.signed, message.unsigned.raw, message.signing_subnet_id, 67
            )


async def test_without_a_signing_subnet_the_primary_network_signs_for_the_p_chain(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        for message in p_chain_messages(network)[:10]:
            reply = await daemon.aggregate(message)
            verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_a_wrong_justification_fails_without_a_hint_at_another_set_that_refuses_it(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        conversion = p_chain_messages(network)[0]
        reply = await daemon.aggregate_v1(conversion, justification="00" * 31)
        assert (reply.status, reply.body["code"]) == (400, "quorum_impossible")
        # Who was not asked, or had not answered yet when it was clear, is counted as that.
        assert reply.detail["counts"]["justification_unparsable"] >= 2
        assert not any("signing subnet" in hint for hint in reply.detail["hints"])
        # The refusals were about that justification: with the right one the same message is signed.
        reply = await daemon.aggregate(conversion)
        verify_signed_message(network, reply.signed, conversion.unsigned.raw, PRIMARY_NETWORK, 67)
        # A message that is signed is signed: by then no justification is needed at all.
        assert (
            await daemon.aggregate_v1(conversion, justification="00" * 31)
        ).signed == reply.signed


@pytest.mark.parametrize("prefix", ["", "0x"])
async def test_a_subnet_id_alone_names_its_conversion(prefix: str, tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        for subnet in network.subnets[1:]:
            expected = next(
                message
                for message in p_chain_messages(network)
                if message.justification == subnet.subnet_id
                and message.signing_subnet_id == subnet.subnet_id
            )
            reply = await daemon.aggregate_v1(None, justification=prefix + subnet.subnet_id.hex())
            # Signed by the subnet that validates the chain of its validator manager, which is its
            # own here.
            verify_signed_message(
                network, reply.signed, expected.unsigned.raw, subnet.subnet_id, 67
            )
            reply = await daemon.aggregate(
                None, justification=prefix + subnet.subnet_id.hex(), signing_subnet_id=""
            )
            verify_signed_message(
                network, reply.signed, expected.unsigned.raw, subnet.subnet_id, 67
            )


async def test_a_justification_of_a_removed_validator_alone_names_its_removal(
    tmp_path: Path,
) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        proofs = [
            message for message in p_chain_messages(network) if len(message.justification) > 32
        ]
        assert len(proofs) >= 6
        for message in proofs:
            reply = await daemon.aggregate(None, justification=message.justification.hex())
            assert parse_signed_message(bytes.fromhex(reply.signed))[0] == message.unsigned.raw
            verify_signed_message(
                network, reply.signed, message.unsigned.raw, message.signing_subnet_id, 67
            )
            reply = await daemon.aggregate_v1(
                None,
                justification=message.justification.hex(),
                signingSubnetId=id_text(PRIMARY_NETWORK),
            )
            verify_signed_message(network, reply.signed, message.unsigned.raw, PRIMARY_NETWORK, 67)


async def test_a_malformed_justification_is_a_client_error(tmp_path: Path) -> None:
    async with run_network(PLAN) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        unknown = await daemon.aggregate_v1(None, justification="ab" * 32)
        assert (unknown.status, unknown.body["code"]) == (400, "unknown_subnet")
        unusable = await daemon.aggregate_v1(None, justification="abcd")
        assert (unusable.status, unusable.body["code"]) == (400, "unusable_justification")
        nothing = await daemon.aggregate(None)
        assert (nothing.status, nothing.body["code"]) == (400, "nothing_to_sign")


async def test_a_subnet_that_was_never_converted_has_no_conversion_to_sign(tmp_path: Path) -> None:
    plan = Plan(validators=5, l1s=(L1Plan(validators=3, shared=True, permissioned=True),))
    async with run_network(plan) as network, run_daemon(build_config(network, tmp_path)) as daemon:
        subnet_id = network.subnets[1].subnet_id
        reply = await daemon.aggregate_v1(None, justification=subnet_id.hex())
        assert (reply.status, reply.body["code"]) == (400, "subnet_not_converted")
        # Its own chain's messages are signed all the same.
        message = network.messages_of(subnet_id)[0]
        verify_signed_message(
            network,
            (await daemon.aggregate_v1(message)).signed,
            message.unsigned.raw,
            subnet_id,
            67,
        )
