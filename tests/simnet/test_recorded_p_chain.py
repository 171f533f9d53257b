"""The rules of the simulated P-Chain give every recorded outcome, and recorded blocks are handed
out as recorded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import zstandard
from msgspec.structs import replace

from tests.simnet.client import call
from tests.simnet.sessions import VECTORS, recorded, small_network, state_at_tip
from tests.warp import fuji, l1_txs
from warpseal.pb import p2p_pb2 as p2p
from warpseal.warp.ids import P_CHAIN, ChainID, NodeID, ValidationID, parse_id
from warpseal.warp.justification import L1ValidatorRegistrationJustification
from warpseal.warp.l1_messages import (
    L1ValidatorRegistration,
    L1ValidatorWeight,
    RegisterL1Validator,
    SubnetToL1Conversion,
    bootstrap_validation_id,
    build_p_chain_message,
)
from warpseal.warp.message import AddressedCall, SignedMessage, UnsignedMessage
from warpseal_simnet import p_chain_verifier
from warpseal_simnet.behaviours import Refusal
from warpseal_simnet.frames import LENGTH_BYTES, decode
from warpseal_simnet.p_chain_verifier import PChainCode
from warpseal_simnet.recorded import recorded_network
from warpseal_simnet.signing import parse_signature_request
from warpseal_simnet.state import SimState
from warpseal_simnet.validator_sets import Validation
from warpseal_simnet.values import SimSubnet

STORY_CONVERSION = parse_id("2rqYPcwauUCTf9kh5K8md3oLxcBMN1J6PiW8RcnnbZguk2pFHz")
STORY_VALIDATION = ValidationID(parse_id("S4V9xkctnx3zmGdB8tXy6scsgmxr51w8NTar9WdAw26PWwXiQ"))


def exchanges() -> Iterator[tuple[p2p.AppRequest, p2p.Message]]:
    """Yield every recorded signature request to the P-Chain with its response."""
    requests: dict[tuple[str, int], p2p.AppRequest] = {}
    for line in (VECTORS / "wire.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("message") not in ("app_request", "app_response", "app_error"):
            continue
        message = decode(bytes.fromhex(entry["frame"])[LENGTH_BYTES:])
        body = getattr(message, entry["message"])
        if isinstance(body, p2p.AppRequest):
            requests[entry["node"], body.request_id] = body
            continue
        request = requests[entry["node"], body.request_id]
        if request.chain_id == P_CHAIN:
            yield request, message


def verdict(state: SimState, request: p2p.AppRequest) -> Refusal | None:
    """Return the refusal that the simulation's rules give, or None where it signs."""
    assert request.app_bytes[0] == 2
    question = parse_signature_request(request.app_bytes[1:])
    if isinstance(question, Refusal):
        return question
    return p_chain_verifier.refusal_of(
        state_at_tip(state), question.message, question.justification
    )


def test_every_recorded_request_to_the_p_chain_has_the_recorded_outcome() -> None:
    state = recorded().state
    outcomes = Counter[int]()
    for request, response in exchanges():
        refusal = verdict(state, request)
        if response.HasField("app_error"):
            assert refusal == Refusal(
                response.app_error.error_code, response.app_error.error_message
            )
        else:
            assert refusal is None
        outcomes[refusal.code if refusal else 0] += 1
    assert outcomes == {0: 14, -1: 7, 5: 7, 11: 7, 12: 7}


def entries(name: str) -> Iterator[dict[str, Any]]:
    raw = (VECTORS / name).read_bytes()
    if name.endswith(".zst"):
        raw = zstandard.ZstdDecompressor().decompress(raw, max_output_size=2**24)
    yield from map(json.loads, raw.splitlines())


@pytest.mark.parametrize(("name", "count"), [("p-chain.jsonl.zst", 39), ("l1.jsonl", 38)])
async def test_recorded_blocks_and_transactions_are_handed_out_as_recorded(
    name: str, count: int
) -> None:
    methods = (
        "platform.getTx",
        "platform.getTxStatus",
        "platform.getBlock",
        "platform.getBlockByHeight",
    )
    checked = 0
    async with recorded_network(VECTORS) as network:
        for entry in entries(name):
            params = entry["params"]
            if entry["method"] in methods and params.get("encoding") != "json":
                assert (
                    await call(network.node_uri, entry["path"], entry["method"], params)
                    == entry["result"]
                )
                checked += 1
        zero = "11111111111111111111111111111111LpoYY"
        unknown = await call(network.node_uri, "/ext/bc/P", "platform.getTx", {"txID": zero})
        assert unknown == "couldn't get tx: not found"
        unknown = await call(
            network.node_uri, "/ext/bc/P", "platform.getBlockByHeight", {"height": "999999"}
        )
        assert unknown == "couldn't get block at height 999999: not found"
    assert checked == count


@pytest.fixture
def story_state() -> SimState:
    """The P-Chain of network 12345 after the story's registration and its change of weight."""
    state = small_network(messages=0, network_id=12345, l1s=()).state
    message = RegisterL1Validator.parse(l1_txs.REGISTER_PAYLOAD)
    manager = ChainID(parse_id("rVPmsy4tQrQhQpRE6embdYnmYtwQi8kQAg1ZdaZGzeVdjc4qT"))
    state.subnets[l1_txs.SUBNET] = SimSubnet(l1_txs.SUBNET, "l1-0", STORY_CONVERSION, manager)
    initial = bootstrap_validation_id(l1_txs.SUBNET, 0)
    state.add_validation(
        Validation(
            l1_txs.SUBNET, NodeID(bytes(20)), l1_txs.CONVERSION_KEY, 49463, initial, 0, is_l1=True
        )
    )
    node_id = NodeID(message.node_id)
    state.add_validation(
        Validation(
            l1_txs.SUBNET,
            node_id,
            l1_txs.REGISTERED_KEY,
            5,
            message.validation_id,
            0,
            1,
            min_nonce=2,
            is_l1=True,
        )
    )
    return state


def code(state: SimState, payload: bytes, justification: bytes = b"") -> int | None:
    refusal = p_chain_verifier.refusal_of(
        state_at_tip(state), build_p_chain_message(12345, payload), justification
    )
    return refusal.code if refusal else None


def test_the_l1_of_network_12345_is_attested(story_state: SimState) -> None:
    assert code(story_state, SubnetToL1Conversion(STORY_CONVERSION).encode(), l1_txs.SUBNET) is None
    assert code(story_state, L1ValidatorRegistration(STORY_VALIDATION, True).encode()) is None
    assert code(story_state, L1ValidatorWeight(STORY_VALIDATION, 1, 5).encode()) is None
    payload = AddressedCall.parse(
        SignedMessage.parse(l1_txs.SIGNED_WEIGHT).unsigned.payload
    ).payload
    assert code(story_state, payload) is None


def test_a_removal_is_attested_with_the_recorded_justification(story_state: SimState) -> None:
    gone = L1ValidatorRegistration(STORY_VALIDATION, False).encode()
    proof = bytes.fromhex("128e01") + l1_txs.REGISTER_PAYLOAD
    assert code(story_state, gone, proof) == PChainCode.VALIDATION_EXISTS
    validation = story_state.validation(STORY_VALIDATION)
    assert validation is not None
    validation.present = False
    assert code(story_state, gone, proof) is None
    initial = story_state.validations[l1_txs.SUBNET][0]
    initial.present = False
    gone = L1ValidatorRegistration(initial.id, False).encode()
    for text in ("0a220a20" + l1_txs.SUBNET.hex(), "0a240a20" + l1_txs.SUBNET.hex() + "1000"):
        assert code(story_state, gone, bytes.fromhex(text)) is None


@pytest.mark.parametrize(
    "unsigned",
    [
        SignedMessage.parse(fuji.SIGNED_REGISTER).unsigned,
        UnsignedMessage.parse(fuji.UNSIGNED_REGISTER),
    ],
    ids=("signed", "unsigned"),
)
def test_registrations_from_fuji_are_denied_once_they_expired_or_were_removed(
    unsigned: UnsignedMessage,
) -> None:
    state = small_network(messages=0).state
    payload = AddressedCall.parse(unsigned.payload).payload
    expired = RegisterL1Validator.parse(payload)
    pending = replace(expired, expiry=state_at_tip(state).chain_time + 1)
    for message, expected in ((expired, None), (pending, PChainCode.COULD_BE_REGISTERED)):
        proof = L1ValidatorRegistrationJustification.registered(message).raw
        assert proof == bytes.fromhex("12b601") + message.encode()
        assert (
            code(state, L1ValidatorRegistration(message.validation_id, False).encode(), proof)
            == expected
        )
        assert (
            code(state, L1ValidatorRegistration(message.validation_id, True).encode())
            == PChainCode.NO_VALIDATION
        )
    node_id = NodeID(pending.node_id)
    state.add_validation(
        Validation(
            pending.subnet_id,
            node_id,
            pending.public_key,
            1,
            pending.validation_id,
            0,
            is_l1=True,
            present=False,
        )
    )
    proof = L1ValidatorRegistrationJustification.registered(pending).raw
    assert (
        code(state, L1ValidatorRegistration(pending.validation_id, False).encode(), proof) is None
    )
