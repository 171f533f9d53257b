"""The P-Chain client against the recorded replies of real nodes, and against hostile ones."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from aiohttp import web

from tests.node.recorded_node import (
    C_CHAIN,
    L1,
    L1_CHAIN,
    NO_CHAIN,
    PERMISSIONED,
    RecordedNode,
    RefusedCall,
    node_id,
    open_upstream,
    recorded_result,
)
from warpseal.bls import parse_public_key
from warpseal.node.p_chain import Subnet, decode_validators_at
from warpseal.upstream.errors import HeightAhead, MethodMissing, NodeUnavailable, PublicFailure
from warpseal.warp.ids import EMPTY_NODE_ID, PRIMARY_NETWORK, id_text, parse_id
from warpseal.warp.validator_set import ValidatorEntry, build_canonical_set

KEYLESS = ValidatorEntry(EMPTY_NODE_ID, None, 49_463)
SIGNER = (
    "907d9e769747b152d119c24b3143c97196ca553d40d91e65"
    "8bc59905f4b7b959cc63b76f2eff25ebeb32f7f1bfc165e4"
)
L1_TEXT = id_text(L1)


async def test_heights_are_read_from_decimal_strings() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        assert await upstream.platform.proposed_height() == 19
        assert await upstream.platform.height() == 19


async def test_a_set_holds_keys_weights_and_the_keyless_weight_of_inactive_validators() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        entries = await upstream.platform.validators_at(L1, 19)
    assert len(entries) == 4
    assert KEYLESS in entries
    assert (
        ValidatorEntry(node_id("3i4HtiRnwBb5YAhpn9RahuTgAkpPNUkxK"), bytes.fromhex(SIGNER), 49_463)
        in entries
    )


async def test_a_set_whose_total_exceeds_64_bits_is_read_from_the_next_node() -> None:
    members = recorded_result("platform.getValidatorsAt", height=19, subnetID=L1_TEXT)
    too_heavy = {node: {**member, "weight": str(1 << 63)} for node, member in members.items()}
    lying = RecordedNode({"platform.getValidatorsAt": too_heavy})
    async with open_upstream(lying, RecordedNode()) as upstream:
        assert KEYLESS in await upstream.platform.validators_at(L1, 19)


async def test_an_unknown_subnet_has_an_empty_set() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        assert await upstream.platform.validators_at(L1, 0) == ()


async def test_the_same_reply_again_gives_the_same_tuple() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        before = await upstream.platform.validators_at(PRIMARY_NETWORK, 3)
        assert await upstream.platform.validators_at(PRIMARY_NETWORK, 4) is before
        assert await upstream.platform.validators_at(L1, 9) is not before


async def test_the_error_for_a_height_beyond_the_tip_names_the_tip() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        with pytest.raises(HeightAhead) as error:
            await upstream.platform.validators_at(L1, 1_019)
    assert (error.value.height, error.value.tip) == (1_019, 19)


async def test_sets_of_all_subnets_equal_the_sets_of_single_subnets() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        everything = await upstream.platform.all_validators_at(19)
        assert set(everything) == {PRIMARY_NETWORK, L1, PERMISSIONED}
        for subnet_id, entries in everything.items():
            single = await upstream.platform.validators_at(subnet_id, 19)
            assert build_canonical_set(entries) == build_canonical_set(single)


async def test_nodes_that_share_a_key_carry_its_weight_once() -> None:
    merged = {
        "validatorSets": {
            L1_TEXT: {
                "totalWeight": "12",
                "validators": [
                    {
                        "publicKey": "0x" + SIGNER,
                        "weight": 10,
                        "nodeIDs": [
                            "NodeID-3i4HtiRnwBb5YAhpn9RahuTgAkpPNUkxK",
                            "NodeID-F3JBbBDkXHTFkeAaxxUbmLsJCFFgtDMtF",
                        ],
                    }
                ],
            }
        }
    }
    async with open_upstream(RecordedNode({"platform.getAllValidatorsAt": merged})) as upstream:
        entries = (await upstream.platform.all_validators_at(19))[L1]
    members = build_canonical_set(entries)
    assert [len(entry.node_ids) for entry in members.validators] == [2]
    assert (members.total_weight, members.keyless_weight) == (12, 2)


@pytest.mark.parametrize(
    "reply",
    [
        RefusedCall('rpc: can\'t find method "platform.GetAllValidatorsAt"'),
        RefusedCall(
            "the method platform.getAllValidatorsAt does not exist/is not available", -32_601
        ),
        web.Response,
    ],
)
async def test_an_older_or_restricted_node_lacks_the_method(reply: Any) -> None:
    def refuse(_: object) -> web.Response:
        if isinstance(reply, RefusedCall):
            raise reply
        return web.Response(status=403, text="forbidden")

    async with open_upstream(RecordedNode({"platform.getAllValidatorsAt": refuse})) as upstream:
        with pytest.raises(MethodMissing):
            await upstream.platform.all_validators_at(19)
        assert await upstream.platform.height() == 19


async def test_a_chain_is_validated_by_its_subnet() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        assert await upstream.platform.validated_by(L1_CHAIN) == L1
        assert await upstream.platform.validated_by(C_CHAIN) == PRIMARY_NETWORK
        assert await upstream.platform.validated_by(NO_CHAIN) is None


async def test_an_id_that_is_no_blockchain_is_an_unknown_chain() -> None:
    def refuse(params: Any) -> None:
        raise RefusedCall(f'"{params["blockchainID"]}" is not a blockchain')

    async with open_upstream(RecordedNode({"platform.validatedBy": refuse})) as upstream:
        assert await upstream.platform.validated_by(NO_CHAIN) is None


async def test_the_chains_of_a_subnet_are_listed() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        assert await upstream.platform.blockchains_of(L1) == (L1_CHAIN,)
        assert C_CHAIN in await upstream.platform.blockchains_of(PRIMARY_NETWORK)


async def test_a_converted_subnet_has_its_conversion_and_manager() -> None:
    async with open_upstream(RecordedNode()) as upstream:
        subnet = await upstream.platform.subnet(L1)
    assert subnet == Subnet(
        L1,
        parse_id("rTwQxWbiFYxW3rZHJNbQz2WxeTckSprm9kyL8YUku4hmTDHNT"),
        L1_CHAIN,
        bytes.fromhex("4ac1d98d9cef99ec6546ded4bd550b0b287aad6d"),
    )
    assert subnet.is_l1


async def test_a_permissioned_subnet_is_no_l1_and_an_unknown_subnet_is_not_found() -> None:
    def missing(_: object) -> None:
        raise RefusedCall("not found")

    node = RecordedNode()
    async with open_upstream(node) as upstream:
        assert await upstream.platform.subnet(PERMISSIONED) == Subnet(PERMISSIONED)
        node.replies["platform.getSubnet"] = missing
        assert await upstream.platform.subnet(L1) is None


@pytest.mark.parametrize("address", [None, "0x"])
async def test_a_converted_subnet_may_have_an_empty_manager_address(address: str | None) -> None:
    record = {**recorded_result("platform.getSubnet", subnetID=L1_TEXT), "managerAddress": address}
    async with open_upstream(RecordedNode({"platform.getSubnet": record})) as upstream:
        subnet = await upstream.platform.subnet(L1)
    assert subnet is not None
    assert subnet.manager_address == b""
    assert subnet.is_l1


def test_the_obsolete_wrapped_shape_with_bare_numbers_is_read() -> None:
    weight = 2**64 - 1
    wrapped = {
        "validators": {"NodeID-111111111111111111116DBWJs": {"publicKey": None, "weight": weight}}
    }
    assert decode_validators_at(json.dumps(wrapped).encode()) == (
        ValidatorEntry(EMPTY_NODE_ID, None, weight),
    )


def test_weights_beyond_53_bits_stay_exact_in_both_spellings() -> None:
    for weight in (2**53 + 1, str(2**53 + 1)):
        reply = {"NodeID-111111111111111111116DBWJs": {"publicKey": None, "weight": weight}}
        assert decode_validators_at(json.dumps(reply).encode())[0].weight == 2**53 + 1


HOSTILE: dict[str, Any] = {
    "a list": [],
    "null": None,
    "text": "x",
    "a deep nest": None,
    "a fractional weight": {"NodeID-111111111111111111116DBWJs": {"weight": 1.5}},
    "a negative weight": {"NodeID-111111111111111111116DBWJs": {"weight": -1}},
    "a weight of 65 bits": {"NodeID-111111111111111111116DBWJs": {"weight": 2**64}},
    "a weight of many digits": {"NodeID-111111111111111111116DBWJs": {"weight": "1" * 5_000}},
    "a weight with a sign": {"NodeID-111111111111111111116DBWJs": {"weight": "+1"}},
    "a weight that is true": {"NodeID-111111111111111111116DBWJs": {"weight": True}},
    "a node id with a wrong checksum": {"NodeID-111111111111111111116DBWJt": {"weight": 1}},
    "a short key": {"NodeID-111111111111111111116DBWJs": {"weight": 1, "publicKey": "0x00"}},
    "a key with white space": {
        "NodeID-111111111111111111116DBWJs": {"weight": 1, "publicKey": "0x 0" + "0" * 95}
    },
    "a key that is a number": {"NodeID-111111111111111111116DBWJs": {"weight": 1, "publicKey": 7}},
}


@pytest.mark.parametrize("shape", HOSTILE)
async def test_hostile_sets_are_bad_responses(shape: str) -> None:
    def reply_to(_: object) -> web.Response:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": HOSTILE[shape]})
        if shape == "a deep nest":
            body = '{"jsonrpc":"2.0","id":1,"result":' + "[" * 100_000 + "]" * 100_000 + "}"
        return web.Response(text=body, content_type="application/json")

    async with open_upstream(RecordedNode({"platform.getValidatorsAt": reply_to})) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.validators_at(L1, 19)
    assert [entry.failure for entry in error.value.attempts] == [PublicFailure.BAD_ANSWER]


@pytest.mark.parametrize(
    "body", ["", "null", "[]", "{}", '{"error": "x"}', '{"error": null}', "\xff"]
)
async def test_responses_that_are_not_json_rpc_are_bad_responses(body: str) -> None:
    reply = lambda _: web.Response(body=body.encode("latin-1"))  # noqa: E731
    async with open_upstream(RecordedNode({"platform.getHeight": reply})) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.height()
    assert error.value.attempts[0].failure is PublicFailure.BAD_ANSWER


async def test_an_unknown_error_is_a_bad_response_and_its_text_is_not_passed_on() -> None:
    def refuse(_: object) -> None:
        raise RefusedCall("database closed at /secret/place")

    async with open_upstream(RecordedNode({"platform.getHeight": refuse})) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.height()
    assert error.value.attempts[0].failure is PublicFailure.BAD_ANSWER
    assert "secret" not in str(error.value) + str(error.value.detail)


async def test_a_response_beyond_the_limit_is_refused_without_a_declared_length() -> None:
    async def endless(_: object) -> web.StreamResponse:
        return web.Response(body=_drip(), content_type="application/json")

    async with open_upstream(RecordedNode({"platform.getHeight": endless})) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.height()
    assert error.value.attempts[0].failure is PublicFailure.BAD_ANSWER


async def _drip() -> Any:
    for _ in range(64):
        yield b" " * 65_536


async def test_a_compressed_response_is_a_bad_response() -> None:
    def bomb(_: object) -> web.Response:
        body = gzip.compress(b" " * 10_000_000)
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    async with open_upstream(RecordedNode({"platform.getHeight": bomb})) as upstream:
        with pytest.raises(NodeUnavailable) as error:
            await upstream.platform.height()
    assert error.value.attempts[0].failure is PublicFailure.BAD_ANSWER


async def test_a_set_with_an_invalid_key_is_a_bad_response_if_keys_are_checked() -> None:
    broken = {
        "NodeID-111111111111111111116DBWJs": {"publicKey": "0x" + "80" + "11" * 47, "weight": "1"}
    }
    async with open_upstream(RecordedNode({"platform.getValidatorsAt": broken})) as upstream:
        upstream.platform._check_key = parse_public_key
        with pytest.raises(NodeUnavailable):
            await upstream.platform.validators_at(L1, 19)
