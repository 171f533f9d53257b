"""What the daemon signs on the recorded network, against the recorded shares and the reference's
own bytes.
"""

from __future__ import annotations

import json

import pytest
from eth_typing import BLSPubkey, BLSSignature
from py_ecc.bls.ciphersuites import G2ProofOfPossession

from tests.api.signing.reference_table import SIGNED, load_exchanges
from tests.eventually import until
from tests.integration.daemon import AGGREGATE_PATH, AGGREGATE_V1_PATH, Daemon
from tests.integration.message_verifier import parse_signed_message, verify_signed_message
from tests.recorded import recording
from warpseal.warp.ids import SubnetID, parse_id
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.recorded import rewritten_node_ids

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXCHANGES = {exchange.position: exchange for exchange in load_exchanges()}
OF_THE_L1, OF_THE_PERMISSIONED, OF_THE_C_CHAIN = 0, 9, 18
"""Where a message of each subnet is asked for first."""


def _request(position: int, **changes: object) -> dict[str, object]:
    request = EXCHANGES[position].request
    assert isinstance(request, dict)
    return {**request, **changes}


def _unsigned(position: int) -> bytes:
    return bytes.fromhex(str(_request(position)["message"]).removeprefix("0x"))


def _hold(network: SimulatedNetwork, signed: str, position: int) -> bytes:
    """Assert that `signed` (hex) is valid, and made of recorded shares only; return its bytes."""
    raw, unsigned = bytes.fromhex(signed), _unsigned(position)
    quorum = int(str(_request(position).get("quorum-percentage", 67)))
    verify_signed_message(
        network, signed, unsigned, SubnetID(parse_id(recording.subnet_of(unsigned))), quorum
    )
    assert (
        recording.sum_of_shares(unsigned, recording.signers_of(raw)) == parse_signed_message(raw)[2]
    )
    return raw


async def test_every_recorded_validator_with_a_key_is_reached_over_tls(daemon: Daemon) -> None:
    await daemon.until_ready()

    async def are_connected() -> bool:
        # A test of this module may have asked the inactive validator, which is the seventh.
        return (await daemon.metrics())["warpseal_peer_connections"] >= 6

    await until(are_connected)


@pytest.mark.parametrize("position", SIGNED)
async def test_recorded_shares_answer_every_recorded_success(
    network: SimulatedNetwork, daemon: Daemon, position: int
) -> None:
    reply = await daemon.post(AGGREGATE_PATH, _request(position))
    ours = _hold(network, reply.signed, position)
    theirs = bytes.fromhex(json.loads(EXCHANGES[position].body)["signed-message"])
    assert set(parse_signed_message(ours)[1]) <= set(parse_signed_message(theirs)[1])
    if parse_signed_message(ours)[1] == parse_signed_message(theirs)[1]:
        assert ours == theirs


async def test_signed_bytes_equal_the_references_if_the_quorum_needs_all_its_signers(
    daemon: Daemon,
) -> None:
    equal = set()
    for position in SIGNED:
        reply = await daemon.post(AGGREGATE_PATH, _request(position))
        if reply.body == json.loads(EXCHANGES[position].body):
            equal.add(recording.subnet_of(_unsigned(position)))
    assert equal == {recording.PRIMARY, recording.L1, recording.PERMISSIONED}


@pytest.mark.parametrize("position", [OF_THE_L1, OF_THE_PERMISSIONED, OF_THE_C_CHAIN])
async def test_py_ecc_agrees_with_the_daemon(daemon: Daemon, position: int) -> None:
    signed = bytes.fromhex((await daemon.post(AGGREGATE_PATH, _request(position))).signed)
    unsigned, _, signature = parse_signed_message(signed)
    signers = [BLSPubkey(signer) for signer in recording.signers_of(signed)]
    assert G2ProofOfPossession.FastAggregateVerify(signers, unsigned, BLSSignature(signature))


@pytest.mark.parametrize("position", [OF_THE_L1, OF_THE_PERMISSIONED, OF_THE_C_CHAIN])
async def test_both_endpoints_give_the_same_signed_message(daemon: Daemon, position: int) -> None:
    kebab = await daemon.post(AGGREGATE_PATH, _request(position))
    v1 = await daemon.post(
        AGGREGATE_V1_PATH, {"message": _request(position)["message"], "quorumPercentage": 67}
    )
    assert (kebab.status, v1.status) == (200, 201)
    assert v1.signed == kebab.signed


@pytest.mark.parametrize("position", [OF_THE_L1, OF_THE_PERMISSIONED, OF_THE_C_CHAIN])
async def test_the_reply_names_the_signing_subnet_and_height(daemon: Daemon, position: int) -> None:
    reply = await daemon.post(AGGREGATE_PATH, _request(position))
    assert reply.headers["X-Warpseal-Signing-Subnet-Id"] == recording.subnet_of(_unsigned(position))
    assert reply.headers["X-Warpseal-P-Chain-Height"] == str(recording.HEIGHT)


async def test_a_full_quorum_is_reached_while_the_inactive_validator_has_a_key(
    network: SimulatedNetwork, daemon: Daemon
) -> None:
    """At height 18 the fourth validator was active; now it is not, but it signs."""
    quiet = await daemon.post(
        AGGREGATE_PATH, _request(OF_THE_L1, **{"pchain-height": 18, "quorum-percentage": 99})
    )
    full = await daemon.post(
        AGGREGATE_PATH, _request(OF_THE_L1, **{"pchain-height": 18, "quorum-percentage": 100})
    )
    inactive = recording.keys_by_node()[recording.INACTIVE]
    assert inactive not in recording.signers_of(bytes.fromhex(quiet.signed), height=18)
    signers = recording.signers_of(bytes.fromhex(full.signed), height=18)
    assert inactive in signers
    assert len(signers) == 4
    unsigned, _, signature = parse_signed_message(bytes.fromhex(full.signed))
    assert recording.sum_of_shares(unsigned, signers) == signature


async def test_a_full_quorum_without_the_key_of_the_inactive_validator_is_out_of_reach_for_now(
    network: SimulatedNetwork, daemon: Daemon
) -> None:
    reply = await daemon.post(AGGREGATE_PATH, _request(OF_THE_L1, **{"quorum-percentage": 100}))
    assert (reply.status, reply.body["code"]) == (503, "quorum_not_reached")
    keys, total = recording.validators(recording.L1)
    lost = total - sum(weight for _, weight in keys)
    assert lost == 49_463
    assert reply.detail["verdict"] == "wait"
    assert (reply.detail["requiredWeight"], reply.detail["totalWeight"]) == (str(total), str(total))
    assert reply.detail["pChainHeight"] == str(recording.HEIGHT)
    assert reply.detail["signingSubnetId"] == recording.L1
    assert reply.detail["counts"]["inactive"] == 1
    (inactive,) = [
        validator for validator in reply.detail["validators"] if validator["reason"] == "inactive"
    ]
    assert inactive["nodeIds"] == [
        rewritten_node_ids(network, recording.RECORDING)[recording.INACTIVE]
    ]
    assert (inactive["weight"], inactive["balance"]) == (str(lost), "0")
    assert inactive["state"] == "inactive: balance 0"
    assert "Retry-After" in reply.headers


async def test_a_full_quorum_at_a_height_is_impossible_without_an_inactive_validators_key(
    daemon: Daemon,
) -> None:
    fields = {"quorum-percentage": 100, "pchain-height": recording.HEIGHT}
    reply = await daemon.post(AGGREGATE_PATH, _request(OF_THE_L1, **fields))
    assert (reply.status, reply.body["code"]) == (400, "quorum_impossible")
    assert reply.detail["verdict"] == "never"
    assert "Retry-After" not in reply.headers


async def test_a_subnet_that_does_not_run_the_source_chain_is_refused_with_the_one_that_does(
    daemon: Daemon,
) -> None:
    reply = await daemon.post(
        AGGREGATE_PATH, _request(OF_THE_L1, **{"signing-subnet-id": recording.PERMISSIONED})
    )
    assert (reply.status, reply.body["code"]) == (400, "wrong_signing_subnet")
    assert f"subnet {recording.L1} does" in reply.body["error"]
    body = {"message": _request(OF_THE_L1)["message"], "signingSubnetId": recording.PERMISSIONED}
    reply = await daemon.post(AGGREGATE_V1_PATH, body)
    assert (reply.status, reply.body["code"]) == (400, "wrong_signing_subnet")
    assert f"subnet {recording.L1} does" in reply.body["message"]
