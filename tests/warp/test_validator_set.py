"""Canonical sets and quorums: order of real points, merging, refusals, recorded sets, exact
fractions.
"""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import pytest
from eth_typing import BLSPubkey
from hypothesis import given
from hypothesis import strategies as st
from py_ecc.bls.g2_primitives import pubkey_to_G1
from py_ecc.bls.point_compression import compress_G1
from py_ecc.optimized_bls12_381.optimized_curve import neg, normalize

from tests import paths
from warpseal import bls
from warpseal.warp.ids import EMPTY_NODE_ID, NodeID, parse_node_id
from warpseal.warp.message import SignedMessage
from warpseal.warp.validator_set import (
    CanonicalValidatorSet,
    InvalidValidatorSet,
    Validator,
    ValidatorEntry,
    build_canonical_set,
    canonical_sort_key,
    describe_members,
    differing_members,
    has_quorum,
    required_weight,
    weight_text,
)

VECTORS = paths.LOCALNET / "warp.json"
LOCAL_KEYS = {
    "NodeID-7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg": bytes.fromhex(
        "900c9b119b5c82d781d4b49be78c3fc7ae65f2b435b7ed9e3a8b9a03e475edff86d8a64827fec8db23a6f236afbf127d"
    ),
    "NodeID-MFrZFVCXPv5iCn6M9K6XduxGTYp891xXZ": bytes.fromhex(
        "a058ff27a4c570664bfa28e34939368539a1340867951943d0f56fa8aac13bc09ff64f341acf8cc0cef74202c2d6f9c0"
    ),
    "NodeID-NFBbbJ4qCmNaCzeW7sxErhvWqvEQMnYcN": bytes.fromhex(
        "a10b6955a85684a0f5c94b8381f04506f1bee60625927d372323f78b3d30196cc56c8618c77eaf429298e74673d832c3"
    ),
    "NodeID-GWPcbFJZFfZreETSoWjPimr846mXEKCtu": bytes.fromhex(
        "accd61ceb90c61628aa0fa34acab27ecb08f6897e9ccad283578c278c52109f9e10e4f8bc31aa6d7905c4e1623de367e"
    ),
    "NodeID-P7oB2McjBGgW2NXXWVYjV8JEDFoW9xDE5": bytes.fromhex(
        "8048109c3da13de0700f9f3590c3270bfc42277417f6d0cc84282947e1a1f8b4980fd3e3fe223acf0f56a5838890814a"
    ),
}
CANONICAL_ORDER = [
    "NodeID-P7oB2McjBGgW2NXXWVYjV8JEDFoW9xDE5",
    "NodeID-MFrZFVCXPv5iCn6M9K6XduxGTYp891xXZ",
    "NodeID-NFBbbJ4qCmNaCzeW7sxErhvWqvEQMnYcN",
    "NodeID-GWPcbFJZFfZreETSoWjPimr846mXEKCtu",
    "NodeID-7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg",
]
KEYS = [
    bls.public_key_bytes(bls.derive_public_key(bls.generate_secret(bytes([n] * 32))))
    for n in range(12)
]


def node(number: int) -> NodeID:
    return NodeID(number.to_bytes(20, "big"))


def uncompressed(public_key: bytes) -> bytes:
    """Return x||y of a real point, computed by py_ecc."""
    x, y = normalize(pubkey_to_G1(BLSPubkey(public_key)))
    return bytes(int(x).to_bytes(48, "big") + int(y).to_bytes(48, "big"))


entries = st.lists(
    st.tuples(
        st.integers(0, 255).map(node), st.none() | st.sampled_from(KEYS), st.integers(0, 2**40)
    ),
    max_size=20,
    unique_by=lambda entry: entry[0],
)


def test_five_local_validators_are_in_the_documented_order() -> None:
    members = build_canonical_set(
        (parse_node_id(text), key, 2 * 10**15) for text, key in LOCAL_KEYS.items()
    )
    assert [member.node_ids for member in members.validators] == [
        (parse_node_id(t),) for t in CANONICAL_ORDER
    ]
    assert members.total_weight == 10**16
    assert members.keyless_weight == 0
    assert has_quorum(members.weight_of((0, 1, 2, 3)), members.total_weight, 67)
    assert not has_quorum(members.weight_of((0, 1, 2)), members.total_weight, 67)


def test_canonical_order_sorts_real_uncompressed_points() -> None:
    mirrored = [
        bytes(compress_G1(neg(pubkey_to_G1(BLSPubkey(key)))).to_bytes(48, "big"))
        for key in KEYS[:6]
    ]
    keys = KEYS + mirrored + list(LOCAL_KEYS.values())
    random.Random(7).shuffle(keys)
    assert sorted(keys, key=canonical_sort_key) == sorted(keys, key=uncompressed)


def test_documented_uncompressed_keys_agree_with_py_ecc() -> None:
    first = uncompressed(LOCAL_KEYS["NodeID-7Xhw2mDxuDS44j42TCB6U5579esbSt3Lg"])
    fifth = uncompressed(LOCAL_KEYS["NodeID-P7oB2McjBGgW2NXXWVYjV8JEDFoW9xDE5"])
    assert first[48:].hex() == (
        "0a4e3d30c04795ab062cd8e7f6acde3167f3fe4701dcaa59445f07546d7c973b1ed8f7124cd9d45642ab365b54ec3c76"
    )
    assert fifth[48:].hex() == (
        "09ba68045bafb809b543f61cfbb333c0d32bc435eca3b560363a31cd3733130585eb23a0d2e6864040131a2f43749ddb"
    )


def test_equal_keys_are_merged_with_their_weights_and_nodes() -> None:
    members = build_canonical_set(
        [(node(9), KEYS[0], 5), (node(3), KEYS[1], 7), (node(1), KEYS[0], 6)]
    )
    index = members.index_of_key(KEYS[0])
    assert index is not None
    assert members.validators[index] == Validator(KEYS[0], 11, (node(1), node(9)))
    assert members.index_of_node(node(1)) == members.index_of_node(node(9)) == index
    assert members.total_weight == 18
    assert len(members) == 2


def test_weight_without_a_key_counts_in_the_total_only() -> None:
    members = build_canonical_set([(node(1), KEYS[0], 5), (EMPTY_NODE_ID, None, 95)])
    assert members.validators == (Validator(KEYS[0], 5, (node(1),)),)
    assert members.total_weight == 100
    assert members.keyless_weight == 95
    assert members.index_of_node(EMPTY_NODE_ID) is None
    assert list(members.node_ids) == [node(1)]


def test_unknown_nodes_and_keys_have_no_index() -> None:
    members = build_canonical_set([(node(1), KEYS[0], 5)])
    assert members.index_of_node(node(2)) is None
    assert members.index_of_key(KEYS[1]) is None


def test_an_empty_set_is_a_set() -> None:
    members = build_canonical_set([])
    assert (members.validators, members.total_weight, len(members.digest)) == ((), 0, 32)


@pytest.mark.parametrize(
    "bad_members",
    [
        [(node(1), KEYS[0], 2**64 - 1), (node(2), None, 1)],
        [(node(1), KEYS[0], 2**64)],
        [(node(1), KEYS[0], -1)],
        [(node(1), KEYS[0][:47], 1)],
        [(node(1), b"\xc0" + bytes(47), 1)],
        [(node(1), bytes(48), 1)],
        [(NodeID(bytes(19)), KEYS[0], 1)],
        [(node(1), KEYS[0], 1), (node(1), KEYS[0], 1)],
        [(node(1), KEYS[0], 1), (node(1), KEYS[1], 1)],
    ],
)
def test_invalid_members_are_refused(bad_members: list[tuple[NodeID, bytes | None, int]]) -> None:
    with pytest.raises(InvalidValidatorSet):
        build_canonical_set(bad_members)


def test_a_total_weight_of_64_bits_is_accepted() -> None:
    members = build_canonical_set([(node(1), KEYS[0], 2**64 - 2), (node(2), None, 1)])
    assert members.total_weight == 2**64 - 1
    assert len(members.digest) == 32
    assert build_canonical_set([(node(1), KEYS[0], 2**64 - 1)]).total_weight == 2**64 - 1


@given(entries, st.randoms())
def test_the_set_and_its_digest_do_not_depend_on_the_order_of_members(
    members: list[tuple[NodeID, bytes | None, int]], rnd: random.Random
) -> None:
    shuffled = members[:]
    rnd.shuffle(shuffled)
    assert build_canonical_set(members) == build_canonical_set(shuffled)
    assert build_canonical_set(members).digest == build_canonical_set(shuffled).digest


@given(entries)
def test_a_set_keeps_every_weight_and_every_keyed_node(
    members: list[tuple[NodeID, bytes | None, int]],
) -> None:
    validator_set = build_canonical_set(members)
    assert validator_set.total_weight == sum(weight for _, _, weight in members)
    assert validator_set.keyless_weight == sum(weight for _, key, weight in members if key is None)
    assert set(validator_set.node_ids) == {
        node_id for node_id, key, _ in members if key is not None
    }
    for node_id, key, _ in members:
        index = validator_set.index_of_node(node_id)
        assert (None if index is None else validator_set.validators[index].public_key) == key
    keys = [member.public_key for member in validator_set.validators]
    assert keys == sorted(keys, key=canonical_sort_key)


@given(entries, st.data())
def test_any_difference_between_sets_is_a_difference_of_digests(
    members: list[tuple[NodeID, bytes | None, int]], data: st.DataObject
) -> None:
    validator_set = build_canonical_set(members)
    other = build_canonical_set(data.draw(entries))
    assert (validator_set == other) == (validator_set.digest == other.digest)
    assert (
        CanonicalValidatorSet(validator_set.validators, validator_set.total_weight + 1).digest
        != validator_set.digest
    )


def recorded(kind: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(VECTORS.read_text())[kind]
    return cases


def set_at(entry: dict[str, Any]) -> CanonicalValidatorSet:
    return build_canonical_set(
        (
            parse_node_id(text),
            vdr["publicKey"] and bytes.fromhex(vdr["publicKey"][2:]),
            int(vdr["weight"]),
        )
        for text, vdr in entry["getValidatorsAt"].items()
    )


@pytest.mark.parametrize(
    "entry", recorded("sets"), ids=lambda entry: f"{entry['subnetID'][:8]}@{entry['height']}"
)
def test_get_validators_at_and_get_all_validators_at_give_the_same_set(
    entry: dict[str, Any],
) -> None:
    listed = entry["getAllValidatorsAt"]
    validators = tuple(
        Validator(
            bytes.fromhex(validator["publicKey"][2:]),
            int(validator["weight"]),
            tuple(sorted(parse_node_id(text) for text in validator["nodeIDs"])),
        )
        for validator in listed["validators"]
    )
    assert CanonicalValidatorSet(validators, int(listed["totalWeight"])) == set_at(entry)


@pytest.mark.parametrize("entry", recorded("signed"), ids=lambda entry: entry["subnetID"][:8])
def test_signatures_of_the_reference_verify_against_the_recorded_set(entry: dict[str, Any]) -> None:
    message = SignedMessage.parse(bytes.fromhex(entry["signedMessage"]))
    (recorded_set,) = (
        recorded_set
        for recorded_set in recorded("sets")
        if recorded_set["subnetID"] == entry["subnetID"] and recorded_set["height"] == "19"
    )
    members = set_at(recorded_set)
    chosen = [members.validators[index] for index in message.signer_indices]
    keys = [bls.parse_public_key(validator.public_key) for validator in chosen]
    assert has_quorum(members.weight_of(message.signer_indices), members.total_weight, 67)
    assert bls.verify_aggregate(keys, message.unsigned.raw, message.signature)
    assert not bls.verify_aggregate(keys, message.unsigned.raw + b"\x00", message.signature)


weights = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("total", "percentage", "required"),
    [
        (100_000_000, 67, 67_000_000),
        (67_000_000, 100, 67_000_000),
        (100, 67, 67),
        (99, 67, 67),
        (1, 67, 1),
        (3, 67, 3),
        (10**16, 67, 67 * 10**14),
        (2**64 - 1, 100, 2**64 - 1),
        (5, 0, 0),
        (0, 67, 0),
    ],
)
def test_required_weights_are_the_documented_ones(
    total: int, percentage: int, required: int
) -> None:
    assert required_weight(total, percentage) == required


@given(weights, weights, st.integers(0, 100))
def test_a_quorum_is_met_exactly_when_the_fraction_is_reached(
    signed: int, total: int, percentage: int
) -> None:
    reached = Fraction(signed) >= Fraction(total) * Fraction(percentage, 100)
    assert has_quorum(signed, total, percentage) == reached
    assert (signed >= required_weight(total, percentage)) == reached


@given(weights, st.integers(1, 100))
def test_one_unit_less_than_required_is_not_enough(total: int, percentage: int) -> None:
    required = required_weight(total, percentage)
    assert has_quorum(required, total, percentage)
    assert required == 0 or not has_quorum(required - 1, total, percentage)


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (0, "0 AVAX"),
        (1, "0.000000001 AVAX"),
        (999_990_000, "0.99999 AVAX"),
        (1_000_000_000, "1 AVAX"),
        (1_109_999_999, "1.1 AVAX"),
        (2_000_050_000_000_000, "2,000,050 AVAX"),
        (12_345_678_900_000, "12,345.67 AVAX"),
    ],
)
def test_stake_has_nine_decimals_below_an_avax_and_two_above(weight: int, text: str) -> None:
    assert weight_text(weight, is_stake=True) == text


def test_the_weight_of_an_l1_has_no_unit() -> None:
    assert weight_text(1_234_567, is_stake=False) == "1,234,567"


def test_members_differ_by_presence_weight_or_key() -> None:
    same = ValidatorEntry(node(1), KEYS[0], 5)
    heavier, lighter = ValidatorEntry(node(2), KEYS[1], 7), ValidatorEntry(node(2), KEYS[1], 6)
    keyless, keyed = ValidatorEntry(node(3), None, 4), ValidatorEntry(node(3), KEYS[2], 4)
    missing = ValidatorEntry(node(4), KEYS[3], 1)
    pairs = differing_members([missing, keyless, heavier, same], [same, lighter, keyed])
    assert pairs == ((heavier, lighter), (keyless, keyed), (missing, None))
    texts = describe_members(pairs).split("; ")
    assert [text.partition(": ")[2] for text in texts] == [
        "index weight 7, nodes weight 6",
        f"index weight 4 with no key, nodes weight 4 with key {KEYS[2].hex()}",
        "index weight 1, nodes absent",
    ]
    assert describe_members(((None, missing),)).endswith(": index absent, nodes weight 1")
    assert differing_members([same], [same]) == ()
    assert describe_members(()) == ""


def test_few_differing_members_are_described_and_the_others_counted() -> None:
    pairs = differing_members([ValidatorEntry(node(n), None, 1) for n in range(1, 60)], [])
    described = describe_members(pairs)
    listed = described.count("NodeID-")
    assert 0 < listed < 59
    assert described.endswith(f"; and {59 - listed} more")
    assert "more" not in describe_members(pairs[:listed])
