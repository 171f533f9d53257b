"""Endpoints 7 and 8: rewards, and validations in their four states."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.api.data import samples as s
from tests.api.data.fixtures import NETWORK, DataApiSetup, get, indexed
from tests.api.data.memory_index import FixedPrices, FixedReach, MemoryNode
from warpseal.api.data.endpoints import find_endpoint
from warpseal.api.data.pages import page_class
from warpseal.api.data.settings import Compat
from warpseal.chains.ids import bech32_text
from warpseal.resources.base import RewardType
from warpseal.resources.chains import PrimaryChain
from warpseal.resources.interfaces import ObservedUptime
from warpseal.resources.outputs import Asset
from warpseal.resources.transactions import Validation
from warpseal.upstream.errors import NodeUnavailable
from warpseal.warp.ids import id_text, node_id_text

REWARDS = NETWORK + "/rewards"
NODE = f"{NETWORK}/validators/{node_id_text(s.NODE)}"
ALICE, BOB = bech32_text("fuji", s.ALICE), bech32_text("fuji", s.BOB)
SOME = [
    s.reward(1),
    s.reward(2, s.BOB, s.OTHER_NODE),
    s.reward(3, node=s.OTHER_NODE, kind=RewardType.VALIDATOR),
]
KEY = {"publicKey": s.KEY.public_key, "proofOfPossession": s.KEY.proof_of_possession}


async def test_a_reward_has_every_field_that_clients_require() -> None:
    page = await get(indexed(all_rewards=SOME[:1]), REWARDS, addresses=ALICE)
    assert page == {
        "historicalRewards": [
            {
                "addresses": [ALICE],
                "txHash": id_text(s.tx_id(1)),
                "amountStaked": "2000",
                "nodeId": node_id_text(s.NODE),
                "startTimestamp": 100,
                "endTimestamp": 1001,
                "rewardType": "DELEGATOR",
                "utxoId": id_text(b"\x0d" * 32),
                "outputIndex": 2,
                "reward": {
                    "assetId": id_text(s.AVAX.asset_id),
                    "name": "Avalanche",
                    "symbol": "AVAX",
                    "denomination": 9,
                    "type": "secp256k1",
                    "amount": "33",
                },
                "rewardTxHash": id_text(s.tx_id(2)),
            }
        ]
    }
    rewards: Any = msgspec.convert(
        page, page_class(find_endpoint("listHistoricalPrimaryNetworkRewards").page)
    )
    assert rewards.items[0].reward.amount == "33"


@pytest.mark.parametrize(
    ("params", "numbers"),
    [
        ({"addresses": ALICE}, (3, 1)),
        ({"addresses": f"P-{ALICE},{BOB}"}, (3, 2, 1)),
        ({"nodeIds": node_id_text(s.OTHER_NODE)}, (3, 2)),
        (
            {"nodeIds": f"{node_id_text(s.OTHER_NODE)},{node_id_text(s.NODE)}", "sortOrder": "asc"},
            (1, 2, 3),
        ),
        ({"addresses": ALICE, "nodeIds": node_id_text(s.OTHER_NODE)}, (3,)),
        ({"addresses": ALICE, "pageSize": 1}, (3,)),
    ],
)
async def test_rewards_are_filtered_by_address_and_node(
    params: dict[str, Any], numbers: tuple[int, ...]
) -> None:
    page = await get(indexed(all_rewards=SOME), REWARDS, **params)
    assert [item["txHash"] for item in page["historicalRewards"]] == [
        id_text(s.tx_id(number)) for number in numbers
    ]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "addresses"),
        ({"addresses": "0x" + s.ACCOUNT.hex()}, "addresses"),
        ({"nodeIds": "NodeID-x"}, "nodeIds"),
        ({"nodeIds": node_id_text(s.NODE) + ",x"}, "nodeIds"),
        ({"addresses": ALICE, "currency": "btc"}, "currency"),
        ({"addresses": ALICE, "curency": "usd"}, "curency"),
    ],
)
async def test_an_error_names_the_invalid_parameter(params: dict[str, Any], field: str) -> None:
    assert (await get(indexed(all_rewards=SOME), REWARDS, 400, **params))["detail"][
        "field"
    ] == field


async def prices_of(setup: DataApiSetup, **params: Any) -> list[Any]:
    page = await get(setup, REWARDS, addresses=ALICE, **params)
    return [item["reward"].get("historicalPrice") for item in page["historicalRewards"]]


async def test_a_price_is_shown_if_it_is_known_and_a_day_has_passed() -> None:
    lookalike = Asset(s.CAT.asset_id, "Avalanche", "AVAX", 9)
    rewards = [
        s.reward(1),
        s.reward(2, asset=lookalike),
        s.reward(3, paid_at=s.NOW - 24 * 3600 + 1),
        s.reward(4, paid_at=s.NOW - 24 * 3600),
    ]
    setup = dataclasses.replace(
        indexed(all_rewards=rewards), prices=FixedPrices(s.AVAX, {"usd": "42.42", "jpy": "6000"})
    )
    usd = {"currencyCode": "usd", "value": "42.42"}
    assert await prices_of(setup) == [usd, None, None, usd]
    assert (await prices_of(setup, currency="jpy"))[0] == {"currencyCode": "jpy", "value": "6000"}
    assert await prices_of(setup, currency="eur") == [None] * 4
    assert (await prices_of(setup.with_data(compat=Compat.SDK)))[0] == {
        "currencyCode": "usd",
        "value": 42.42,
    }
    assert await prices_of(dataclasses.replace(setup, prices=None)) == [None] * 4


COMMON = {
    "nodeId": node_id_text(s.NODE),
    "subnetId": id_text(bytes(32)),
    "amountStaked": "2000",
    "delegationFee": "2",
    "blsCredentials": KEY,
}


async def test_the_four_states_have_the_fields_that_clients_require() -> None:
    page = await get(indexed(all_validations=s.VALIDATIONS), NODE)
    pending, active, removed, unrewarded, completed = page["validators"]
    assert pending == {
        **COMMON,
        "txHash": id_text(s.tx_id(5)),
        "startTimestamp": 1005,
        "endTimestamp": 2005,
        "validationStatus": "pending",
    }
    potential = {
        "validationRewardAmount": "21",
        "delegationRewardAmount": "22",
        "rewardAddresses": [BOB],
    }
    assert active == {
        **COMMON,
        "txHash": id_text(s.tx_id(4)),
        "startTimestamp": 1004,
        "endTimestamp": 2004,
        "validationStatus": "active",
        "delegatorCount": 2,
        "amountDelegated": "50",
        "delegationCapacity": "7950",
        "stakePercentage": 25.0,
        "uptimePerformance": 99.5,
        "avalancheGoVersion": "1.14.0",
        "potentialRewards": potential,
        "rewards": potential,
        "validatorHealth": {
            "reachabilityPercent": 98.25,
            "benchedPChainRequestsPercent": 1.5,
            "benchedXChainRequestsPercent": 0.0,
            "benchedCChainRequestsPercent": 2.0,
        },
        "geolocation": None,
    }
    assert removed == {
        "txHash": id_text(s.tx_id(3)),
        "nodeId": node_id_text(s.NODE),
        "subnetId": id_text(s.SUBNET),
        "amountStaked": "2000",
        "startTimestamp": 1003,
        "endTimestamp": 2003,
        "validationStatus": "removed",
        "removeTxHash": id_text(s.tx_id(5)),
        "removeTimestamp": 1500,
    }
    assert unrewarded["rewards"] == {"validationRewardAmount": "0", "delegationRewardAmount": "0"}
    assert completed["rewards"] == {
        "validationRewardAmount": "11",
        "delegationRewardAmount": "12",
        "rewardAddresses": [ALICE],
        "rewardTxHash": id_text(s.tx_id(2)),
    }
    assert (completed["delegatorCount"], completed["amountDelegated"]) == (3, "9")
    validators: Any = msgspec.convert(
        page, page_class(find_endpoint("getSingleValidatorDetails").page)
    )
    assert len(validators.items) == 5


async def test_uptimes_observed_for_a_day_replace_those_of_the_node() -> None:
    setup = indexed(all_validations=s.VALIDATIONS)
    for since, uptime, reachability in ((1_004, 87.5, 50.0), (1_005, 99.5, 98.25)):
        observed = FixedReach(ObservedUptime(87.5, 50.0), since)
        page = await get(
            dataclasses.replace(setup, uptime_source=observed), NODE, validationStatus="active"
        )
        (active,) = page["validators"]
        assert active["uptimePerformance"] == uptime
        assert active["validatorHealth"] == {
            "reachabilityPercent": reachability,
            "benchedPChainRequestsPercent": 1.5,
            "benchedXChainRequestsPercent": 0.0,
            "benchedCChainRequestsPercent": 2.0,
        }
        assert active["avalancheGoVersion"] == "1.14.0"


@pytest.mark.parametrize(
    ("params", "numbers"),
    [
        ({"sortOrder": "asc"}, (1, 2, 3, 4, 5)),
        ({"validationStatus": "completed"}, (2, 1)),
        ({"validationStatus": "active"}, (4,)),
        ({"validationStatus": "pending"}, (5,)),
        ({"validationStatus": "removed"}, (3,)),
        ({"pageSize": 2}, (5, 4)),
    ],
)
async def test_validations_are_filtered_by_state(
    params: dict[str, Any], numbers: tuple[int, ...]
) -> None:
    page = await get(indexed(all_validations=s.VALIDATIONS), NODE, **params)
    assert [item["txHash"] for item in page["validators"]] == [
        id_text(s.tx_id(number)) for number in numbers
    ]


async def test_a_node_that_never_validated_has_no_validations() -> None:
    page = await get(indexed(), f"{NETWORK}/validators/{node_id_text(s.OTHER_NODE)}")
    assert page == {"validators": []}


async def test_a_malformed_node_id_is_refused() -> None:
    assert (await get(indexed(), NETWORK + "/validators/abc", 400))["detail"]["field"] == "nodeId"
    body = await get(indexed(), NODE, 400, validationStatus="gone")
    assert body["detail"]["field"] == "validationStatus"


async def test_connectivity_is_an_error_if_the_node_is_down() -> None:
    setup = indexed(all_validations=s.VALIDATIONS)
    setup.node.error = NodeUnavailable("uptime")
    assert (await get(setup, NODE, 502))["code"] == "node_unavailable"
    assert len((await get(setup, NODE, validationStatus="completed"))["validators"]) == 2


async def test_without_an_index_active_validations_of_the_node_are_paged() -> None:
    several = [
        msgspec.structs.replace(s.ACTIVE, tx_id=s.tx_id(number), start=1000 + number // 2)
        for number in range(1, 6)
    ]
    setup = DataApiSetup(index=None, node=MemoryNode(active=several))
    for order, numbers in (("asc", [1, 2, 3, 4, 5]), ("desc", [5, 4, 3, 2, 1])):
        tx_hashes: list[str] = []
        params: dict[str, Any] = {"pageSize": 2, "sortOrder": order}
        while params:
            page = await get(setup, NODE, **params)
            tx_hashes += [item["txHash"] for item in page["validators"]]
            params = {"pageToken": page["nextPageToken"]} if "nextPageToken" in page else {}
        assert tx_hashes == [id_text(s.tx_id(number)) for number in numbers]
    assert await get(setup, NODE, validationStatus="pending") == {"validators": []}
    assert (await get(setup, NODE, 404, validationStatus="completed"))[
        "code"
    ] == "index_not_enabled"
    assert (await get(setup, REWARDS, 404, addresses=ALICE))["code"] == "index_not_enabled"


async def test_validators_come_from_the_node_if_the_p_chain_is_not_indexed() -> None:
    setup = dataclasses.replace(
        indexed(all_validations=s.VALIDATIONS), node=MemoryNode(active=[s.ACTIVE])
    )
    assert setup.index is not None
    setup.index.chains = [freshness for freshness in s.FRESH if freshness.chain != PrimaryChain.P]
    assert [item["validationStatus"] for item in (await get(setup, NODE))["validators"]] == [
        "active"
    ]


# Validations that the index does not have yet.


def several_validations(*starts: int) -> list[Validation]:
    """Return active validations of the node, by when they began."""
    return [
        msgspec.structs.replace(s.ACTIVE, tx_id=s.tx_id(number), start=start)
        for number, start in enumerate(starts, 1)
    ]


def partial_setup(
    indexed_numbers: tuple[int, ...], validations: list[Validation], **freshness: Any
) -> DataApiSetup:
    """Return a setup whose P-Chain has only some of the node's active validations."""
    in_index = [validations[number - 1] for number in indexed_numbers]
    setup = dataclasses.replace(
        indexed(all_validations=in_index), node=MemoryNode(active=validations)
    )
    assert setup.index is not None
    setup.index.chains = [
        replace(chain, **freshness) if chain.chain == PrimaryChain.P else chain for chain in s.FRESH
    ]
    return setup


async def listed_hashes(setup: DataApiSetup, **params: Any) -> list[str]:
    """Return the hashes of all pages."""
    tx_hashes: list[str] = []
    while params:
        page = await get(setup, NODE, **params)
        assert len(page["validators"]) <= 2
        tx_hashes += [item["txHash"] for item in page["validators"]]
        params = {"pageToken": page["nextPageToken"]} if "nextPageToken" in page else {}
    return tx_hashes


async def test_an_active_validator_that_the_index_does_not_have_yet_comes_from_the_node() -> None:
    # Complete or not: an empty list is never the response while the node knows an active
    # validation.
    for freshness in ({}, {"first_height": 50}):
        setup = partial_setup((), [s.ACTIVE], **freshness)
        (validator,) = (await get(setup, NODE))["validators"]
        assert (validator["txHash"], validator["validationStatus"]) == (
            id_text(s.ACTIVE.tx_id),
            "active",
        )
        (validator,) = (await get(setup, NODE, validationStatus="active"))["validators"]
        assert await get(setup, NODE, validationStatus="completed") == {"validators": []}


async def test_the_node_s_validations_are_merged_in_order_and_paged() -> None:
    # Validations 1 and 2 began before the first block of the index, 6 and 7 after its last one.
    validations = several_validations(100, 200, 300, 400, 400, 600, 700)
    setup = partial_setup(
        (3, 4, 5), validations, first_height=50, block_time=500, height=70, node_height=100
    )
    newest_first = [id_text(s.tx_id(number)) for number in (7, 6, 5, 4, 3, 2, 1)]
    assert await listed_hashes(setup, pageSize=2, sortOrder="desc") == newest_first
    assert await listed_hashes(setup, pageSize=2, sortOrder="asc") == newest_first[::-1]
    assert await listed_hashes(setup, pageSize=1, sortOrder="desc") == newest_first
    assert await listed_hashes(setup, pageSize=1, sortOrder="asc") == newest_first[::-1]


async def test_a_complete_index_does_not_ask_the_node_for_validations() -> None:
    validations = several_validations(100, 200)
    setup = partial_setup((1,), validations)
    assert len((await get(setup, NODE))["validators"]) == 1


async def test_without_the_node_an_incomplete_index_returns_its_rows() -> None:
    setup = partial_setup((1,), several_validations(100, 200), first_height=50)
    setup.node.error = NodeUnavailable("validations")
    assert (await get(setup, NODE, 502))[
        "code"
    ] == "node_unavailable"  # The connectivity comes from the node.
    setup = partial_setup((), several_validations(100), first_height=50)
    setup.node.error = NodeUnavailable("validations")
    assert (await get(setup, NODE, 502))["code"] == "node_unavailable"


@pytest.mark.parametrize("freshness", [{}, {"first_height": 50}])
async def test_without_the_node_the_rows_of_the_index_have_what_this_daemon_observed(
    freshness: dict[str, int],
) -> None:
    numbers = (1, 2, 3)
    setup = partial_setup(numbers, several_validations(100, 200, 300), **freshness)
    setup = dataclasses.replace(setup, uptime_source=FixedReach(ObservedUptime(87.5, 50.0)))
    setup.node.error = NodeUnavailable("validations")
    newest_first = [id_text(s.tx_id(number)) for number in numbers[::-1]]
    for params in ({}, {"validationStatus": "active"}):
        assert await listed_hashes(setup, pageSize=2, **params) == newest_first
    page = await get(setup, NODE, pageSize=1)
    (active,) = page["validators"]
    assert (active["amountStaked"], active["uptimePerformance"]) == ("2000", 87.5)
    assert active["validatorHealth"]["reachabilityPercent"] == 50.0
    assert "avalancheGoVersion" not in active
    assert await get(setup, NODE, validationStatus="completed") == {"validators": []}


async def test_a_list_of_the_node_does_not_go_on_with_the_index_while_the_node_is_down() -> None:
    setup = partial_setup(
        (1,), several_validations(100, 600, 700, 800), first_height=50, block_time=500
    )
    setup = dataclasses.replace(setup, uptime_source=FixedReach(ObservedUptime(87.5, 50.0)))
    token = (await get(setup, NODE, pageSize=2))["nextPageToken"]
    setup.node.error = NodeUnavailable("validations")
    assert (await get(setup, NODE, 502, pageToken=token))["code"] == "node_unavailable"
    setup.node.error = None
    assert [item["txHash"] for item in (await get(setup, NODE, pageToken=token))["validators"]] == [
        id_text(s.tx_id(number)) for number in (2, 1)
    ]
