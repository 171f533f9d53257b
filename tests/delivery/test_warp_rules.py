"""The Warp rules of a chain at a time, and the subnet that signs for it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import paths
from warpseal.delivery.warp_rules import (
    ALWAYS_DEFAULT,
    WarpRules,
    choose_signing_subnet,
    parse_schedule,
)
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID

RECORDED = paths.LOCALNET / "evm-chains.jsonl"
FEES = {"feeConfig": {"gasLimit": 1}}
L1_CHAIN, OTHER_CHAIN, C_CHAIN = (ChainID(bytes([number]) * 32) for number in (1, 2, 3))
L1, OTHER = SubnetID(b"\x11" * 32), SubnetID(b"\x22" * 32)


def warp(begins: int | None, quorum: int = 0, **fields: Any) -> dict[str, Any]:
    return {"blockTimestamp": begins, "quorumNumerator": quorum, **fields}


def rules_at(moment: int, config: dict[str, Any]) -> WarpRules | None:
    return parse_schedule(json.dumps(config).encode()).rules_at(moment)


def test_the_configuration_of_the_genesis_holds_from_its_time_on() -> None:
    config = FEES | {"warpConfig": warp(100, 80, requirePrimaryNetworkSigners=True)}
    assert rules_at(99, config) is None
    assert rules_at(100, config) == WarpRules(80, True, "genesis")


def test_an_upgrade_replaces_it_and_another_one_disables_the_precompile() -> None:
    upgrades = [
        {"warpConfig": warp(200, 50)},
        {"txAllowListConfig": {"blockTimestamp": 250}, "unknownConfig": 1},
    ]
    upgrades += [
        {"warpConfig": {"blockTimestamp": 300, "disable": True}},
        {"warpConfig": warp(400)},
    ]
    config = FEES | {"warpConfig": warp(0, 80), "upgrades": {"precompileUpgrades": upgrades}}
    assert [rules_at(moment, config) for moment in (199, 200, 299, 300, 399)] == [
        WarpRules(80, False, "genesis"),
        WarpRules(50, False, "upgrade"),
        WarpRules(50, False, "upgrade"),
        None,
        None,
    ]
    assert rules_at(400, config) == WarpRules(67, False, "default")


@pytest.mark.parametrize("config", [{}, {"quorumNumerator": 0}, {"quorumNumerator": None}])
def test_a_quorum_of_zero_and_a_missing_quorum_mean_the_default(config: dict[str, Any]) -> None:
    assert rules_at(1, FEES | {"warpConfig": {"blockTimestamp": 0, **config}}) == WarpRules(
        67, False, "default"
    )


def test_without_a_configuration_subnet_evm_verifies_nothing_but_coreth_does() -> None:
    assert rules_at(10, FEES | {"upgrades": {}}) is None
    assert rules_at(10, FEES | {"warpConfig": None}) is None
    assert rules_at(10, FEES | {"warpConfig": warp(None)}) is None
    assert rules_at(9, {"chainId": 43114, "durangoBlockTimestamp": 10}) is None
    assert rules_at(10, {"chainId": 43114, "durangoBlockTimestamp": 10}) == WarpRules()
    assert rules_at(0, {"chainId": 43114}) == WarpRules()


def test_the_recorded_chains_have_the_default_quorum_and_the_l1_requires_primary_signers() -> None:
    configs = [
        (entry["chain"], entry["result"])
        for entry in map(json.loads, RECORDED.read_text().splitlines())
        if entry.get("method") == "eth_getChainConfig" and "result" in entry
    ]
    now = 1_795_226_806
    assert {chain: rules_at(now, config) for chain, config in configs} == {
        "c-chain": WarpRules(),
        "l1-0": WarpRules(67, True, "default"),
        "l1-1": WarpRules(67, True, "default"),
    }
    assert rules_at(1_719_343_600, dict(configs)["l1-0"]) is None


@pytest.mark.parametrize(
    "config",
    [
        [],
        {"warpConfig": []},
        {"warpConfig": {"blockTimestamp": "1"}},
        {"warpConfig": {"blockTimestamp": -1}},
        {"warpConfig": {"blockTimestamp": 2**64}},
        {"warpConfig": {"blockTimestamp": 1.5}},
        {"warpConfig": warp(0, 32)},
        {"warpConfig": warp(0, 101)},
        {"warpConfig": warp(0, -67)},
        {"upgrades": [1]},
        {"upgrades": {"precompileUpgrades": {"warpConfig": {}}}},
        {"upgrades": {"precompileUpgrades": [1]}},
        {"upgrades": {"precompileUpgrades": [{"warpConfig": {"blockTimestamp": 1}}] * 1_001}},
        {"upgrades": {"precompileUpgrades": [{"warpConfig": None}]}},
        {"durangoBlockTimestamp": "soon"},
    ],
)
def test_a_malformed_configuration_is_refused(config: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_schedule(json.dumps(config).encode())


TIMES = st.none() | st.integers(0, 50)
CONFIGS = st.fixed_dictionaries(
    {"blockTimestamp": TIMES},
    optional={
        "quorumNumerator": st.sampled_from([0, 33, 67, 100]),
        "disable": st.booleans(),
        "requirePrimaryNetworkSigners": st.booleans(),
    },
)


@given(CONFIGS, st.lists(CONFIGS, max_size=5), st.integers(0, 60))
def test_the_last_configuration_that_has_begun_decides(
    genesis: dict[str, Any], upgrades: list[dict[str, Any]], moment: int
) -> None:
    config = FEES | {
        "warpConfig": genesis,
        "upgrades": {"precompileUpgrades": [{"warpConfig": upgrade} for upgrade in upgrades]},
    }
    active_upgrades = [
        listed
        for listed in (genesis, *upgrades)
        if listed["blockTimestamp"] is not None and listed["blockTimestamp"] <= moment
    ]
    rules = rules_at(moment, config)
    if not active_upgrades or active_upgrades[-1].get("disable"):
        assert rules is None
    else:
        assert rules is not None
        assert rules.quorum == (active_upgrades[-1].get("quorumNumerator") or 67)
        assert rules.requires_primary_signers == active_upgrades[-1].get(
            "requirePrimaryNetworkSigners", False
        )


NAMES = (
    "warpConfig",
    "upgrades",
    "precompileUpgrades",
    "blockTimestamp",
    "quorumNumerator",
    "feeConfig",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=20,
)


@given(JSON)
def test_any_json_gives_a_schedule_or_a_value_error(config: Any) -> None:
    with suppress(ValueError):
        parse_schedule(json.dumps(config).encode()).rules_at(10)


@pytest.mark.parametrize(
    ("source", "of_source", "destination", "requires_primary", "expected"),
    [
        (P_CHAIN, PRIMARY_NETWORK, (L1_CHAIN, L1), False, (L1, "destination")),
        (P_CHAIN, PRIMARY_NETWORK, (L1_CHAIN, L1), True, (L1, "destination")),
        (
            P_CHAIN,
            PRIMARY_NETWORK,
            (C_CHAIN, PRIMARY_NETWORK),
            False,
            (PRIMARY_NETWORK, "destination"),
        ),
        (C_CHAIN, PRIMARY_NETWORK, (L1_CHAIN, L1), False, (L1, "destination")),
        (C_CHAIN, PRIMARY_NETWORK, (L1_CHAIN, L1), True, (PRIMARY_NETWORK, "primary_network")),
        (
            C_CHAIN,
            PRIMARY_NETWORK,
            (P_CHAIN, PRIMARY_NETWORK),
            False,
            (PRIMARY_NETWORK, "primary_network"),
        ),
        (OTHER_CHAIN, OTHER, (L1_CHAIN, L1), True, (OTHER, "source")),
        (OTHER_CHAIN, OTHER, (P_CHAIN, PRIMARY_NETWORK), False, (OTHER, "source")),
        (L1_CHAIN, L1, (L1_CHAIN, L1), False, (L1, "source")),
    ],
)
def test_source_destination_and_rules_decide_which_subnet_signs(
    source: ChainID,
    of_source: SubnetID,
    destination: tuple[ChainID, SubnetID],
    requires_primary: bool,
    expected: tuple[SubnetID, str],
) -> None:
    rules = WarpRules(requires_primary_signers=requires_primary)
    assert choose_signing_subnet(source, of_source, *destination, rules) == expected


def test_a_chain_without_a_configuration_to_read_has_the_default_rules() -> None:
    assert ALWAYS_DEFAULT.rules_at(0) == WarpRules()
