"""Derived responses equal those of the recorded nodes, including argument forms and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from tests.forwarding.evm.evm import (
    Node,
    Refusal,
    call,
    call_in_batch,
    call_outcome,
    exchanges,
    missing,
    open_chain,
    recorded_config,
    recorded_genesis,
    replay,
    serve_node,
    upgrade_times,
)
from warpseal.forwarding.evm.chain_config import NotSubnetEvm, chain_config
from warpseal.forwarding.evm.methods import SUBNET_EVM
from warpseal.forwarding.evm.precompiles import KEYS
from warpseal.forwarding.evm.subnet_evm import FEE_MANAGER_ADDRESS, with_last_changed
from warpseal.ledger.params import UNSCHEDULED_S
from warpseal.resources.base import UNSET
from warpseal.resources.evm_genesis import GenesisConfig, evm_genesis
from warpseal.upstream.jsonrpc import RpcResponse

L1S = ("l1-0", "l1-1")
NOW_S = 1_800_000_000
FEE_MANAGER = {"feeManagerConfig": {"blockTimestamp": 5, "adminAddresses": ["0x" + "AB" * 20]}}
TEXT_TIMES = {'"0x1"', '"latest"'}


def rows(chain: str) -> list[dict[str, Any]]:
    """Return the recorded exchanges; texts as timestamps are our own extension."""
    return [
        row
        for row in exchanges(chain, *SUBNET_EVM)
        if row["method"] == "eth_feeConfig" or json.dumps(row["params"])[1:-1] not in TEXT_TIMES
    ]


def expected(row: dict[str, Any]) -> Any:
    return row["result"] if "result" in row else (row["error"]["code"], row["error"]["message"])


@pytest.mark.parametrize("chain", L1S)
async def test_the_nodes_response_is_passed_on(chain: str) -> None:
    async with serve_node(Node(rule=replay(chain))) as node, open_chain(node.url) as forwarded:
        for row in rows(chain):
            assert await call_in_batch(
                forwarded.forwarder, row["method"], *row["params"]
            ) == expected(row), row


@pytest.mark.parametrize("chain", L1S)
async def test_derived_responses_equal_those_of_the_node(chain: str) -> None:
    node = Node(rule=replay(chain, *SUBNET_EVM))
    async with serve_node(node), open_chain(node.url, config=recorded_config(chain)) as forwarded:
        for row in rows(chain):
            reply = (
                await forwarded.forwarder.forward_batch([call(row["method"], *row["params"])])
            )[0]
            assert reply.is_derived
            assert call_outcome(reply) == expected(row), row


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(-32001, "the method eth_feeConfig is not in the list of this key"),
        Refusal(-32000, "eth_feeConfig is not available on this plan"),
        Refusal(-32004, "no"),
        Refusal(-32600, "unsupported method"),
        None,
    ],
)
async def test_a_method_that_a_gateway_refuses_in_any_form_is_derived(
    refusal: Refusal | None,
) -> None:
    row, *_ = [row for row in rows("l1-0") if row["method"] == "eth_feeConfig"]
    replies = {} if refusal is None else {"eth_feeConfig": refusal}
    node = Node(
        rule=replay("l1-0"),
        replies=replies,
        forbids=frozenset() if refusal else frozenset({"eth_feeConfig"}),
    )
    async with serve_node(node), open_chain(node.url, config=recorded_config("l1-0")) as forwarded:
        reply = (await forwarded.forwarder.forward_batch([call(row["method"], *row["params"])]))[0]
    assert (reply.is_derived, call_outcome(reply)) == (True, expected(row))


@pytest.mark.parametrize("derives", [False, True])
async def test_timestamps_may_be_text_in_node_and_derived_responses(derives: bool) -> None:
    node = Node(rule=replay("l1-0", *(SUBNET_EVM if derives else ())))
    config = recorded_config("l1-0") if derives else None
    async with serve_node(node), open_chain(node.url, config=config) as forwarded:
        for method in ("eth_getActiveRulesAt", "eth_getActivePrecompilesAt"):
            now, then = (
                await call_in_batch(forwarded.forwarder, method),
                await call_in_batch(forwarded.forwarder, method, 1795226806),
            )
            assert await call_in_batch(forwarded.forwarder, method, "latest") == now
            assert await call_in_batch(forwarded.forwarder, method, "1795226806") == then
            assert await call_in_batch(forwarded.forwarder, method, hex(1795226806)) == then
            for text in ("nope", "", "0x", "-1", "1e3", str(1 << 64), "0x1" + "0" * 16):
                assert await call_in_batch(forwarded.forwarder, method, text) == (
                    -32602,
                    (
                        "invalid argument 0: json: cannot unmarshal string into Go value of type"
                        " uint64"
                    ),
                )


async def test_a_chain_of_another_vm_keeps_the_refusal_of_its_node() -> None:
    async with serve_node(Node(rule=replay("c-chain"))) as node, open_chain(node.url) as forwarded:
        for row in exchanges("c-chain", "eth_feeConfig"):
            assert await call_in_batch(
                forwarded.forwarder, "eth_feeConfig", *row["params"]
            ) == expected(row)


async def test_chain_configuration_keys_have_the_order_of_the_node() -> None:
    document = recorded_config("l1-0").as_json()
    assert list(document) == list(exchanges("l1-0", "eth_getChainConfig")[0]["result"])
    assert list(document)[-1] == "upgrades"


def test_last_changed_at_is_always_sent() -> None:
    assert call_outcome(with_last_changed(RpcResponse(Raw(b'{"feeConfig":{"gasLimit":8}}')))) == {
        "feeConfig": {"gasLimit": 8},
        "lastChangedAt": 0,
    }
    response = RpcResponse(Raw(b'{"feeConfig":{},"lastChangedAt":7}'))
    assert with_last_changed(response) is response


def words(*numbers: int) -> str:
    return "0x" + b"".join(number.to_bytes(32, "big") for number in numbers).hex()


async def test_fees_of_the_fee_manager_are_read_at_the_requested_block() -> None:
    def rule(method: str, params: list[Any]) -> Any:
        block = {"hash": "0x" + "22" * 32, "timestamp": "0x9", "number": "0x3"}
        if method == "eth_getBlockByNumber":
            return block if params[0] != "0x0" else {**block, "number": "0x0", "timestamp": "0x0"}
        if method == "eth_chainId":
            return "0x1"
        assert method == "eth_call"
        assert params[0]["to"] == FEE_MANAGER_ADDRESS
        assert params[1] == "0x3"
        return (
            words(1, 0, 1 << 200, 4, 5, 0, 7, 8) if params[0]["data"] == "0x5fbbc0d2" else words(2)
        )

    node = Node(rule=rule, replies={"eth_feeConfig": missing("eth_feeConfig")})
    config = recorded_config("l1-0", {"precompileUpgrades": [FEE_MANAGER]})
    async with serve_node(node), open_chain(node.url, config=config) as forwarded:
        assert await call_in_batch(forwarded.forwarder, "eth_feeConfig", "0x3") == {
            "feeConfig": {
                "gasLimit": 1,
                "minBaseFee": 1 << 200,
                "targetGas": 4,
                "baseFeeChangeDenominator": 5,
                "minBlockGasCost": 0,
                "maxBlockGasCost": 7,
                "blockGasCostStep": 8,
            },
            "lastChangedAt": 2,
        }
        before = await call_in_batch(forwarded.forwarder, "eth_feeConfig", "earliest")
        assert before["feeConfig"]["gasLimit"] == 20_000_000
        assert before["lastChangedAt"] == 0


async def test_missing_state_is_reported_with_the_error_of_the_node() -> None:
    pruned = Refusal(-32000, "missing trie node")
    replies = {"eth_feeConfig": missing("eth_feeConfig"), "eth_call": pruned}
    config = recorded_config("l1-0", {"precompileUpgrades": [FEE_MANAGER]})
    async with (
        serve_node(Node(replies=replies)) as node,
        open_chain(node.url, config=config) as forwarded,
    ):
        assert await call_in_batch(forwarded.forwarder, "eth_feeConfig") == (
            -32000,
            "missing trie node",
        )


@pytest.mark.parametrize(
    ("argument", "refusal"),
    [
        ("0x", 'hex string "0x"'),
        ("0x01", "hex number with leading zero digits"),
        ("0xzz", "invalid hex string"),
        ("0x" + "f" * 17, "hex number > 64 bits"),
        ("0x8000000000000000", "block number larger than int64"),
        ("", "empty hex string"),
        ({"blockHash": "0x12"}, "hex string has length 2, want 64 for common.Hash"),
        (
            {"blockHash": "0x" + "ab" * 32, "blockNumber": "0x1"},
            "cannot specify both BlockHash and BlockNumber, choose one or the other",
        ),
        (True, "json: cannot unmarshal bool into Go value of type string"),
    ],
)
async def test_malformed_arguments_get_the_errors_of_geth(argument: Any, refusal: str) -> None:
    config = recorded_config("l1-0")
    async with (
        serve_node(Node(rule=replay("l1-0", *SUBNET_EVM))) as node,
        open_chain(node.url, config=config) as forwarded,
    ):
        assert await call_in_batch(forwarded.forwarder, "eth_feeConfig", argument) == (
            -32602,
            f"invalid argument 0: {refusal}",
        )


def test_an_override_of_zero_counts_and_a_zero_in_the_genesis_means_the_default() -> None:
    config = recorded_config(
        "l1-0", {"networkUpgradeOverrides": {"etnaTimestamp": 0, "fortunaTimestamp": 50}}
    )
    document = config.as_json()
    assert (document["etnaTimestamp"], document["cancunTime"]) == (0, 0)
    assert document["durangoTimestamp"] == document["shanghaiTime"] == 1607144400
    assert document["fortunaTimestamp"] == 50
    assert document["upgrades"] == {
        "networkUpgradeOverrides": {"etnaTimestamp": 0, "fortunaTimestamp": 50}
    }


def test_an_unscheduled_upgrade_activates_no_ethereum_upgrade() -> None:
    overrides = {"durangoTimestamp": UNSCHEDULED_S, "etnaTimestamp": UNSCHEDULED_S}
    document = recorded_config("l1-0", {"networkUpgradeOverrides": overrides}).as_json()
    assert document["durangoTimestamp"] == UNSCHEDULED_S
    assert not {"shanghaiTime", "cancunTime"} & set(document)


def test_disable_switches_a_precompile_off_until_it_is_switched_on_again() -> None:
    def at(time: int, **more: Any) -> dict[str, Any]:
        return {"contractNativeMinterConfig": {"blockTimestamp": time, **more}}

    upgrades = [
        at(10, disable=True),
        at(20, adminAddresses=["0x" + "CD" * 20], initialMint={"0x" + "EF" * 20: "256"}),
    ]
    config = recorded_config("l1-0", {"precompileUpgrades": upgrades})
    assert list(config.precompiles_at(9)) == ["contractNativeMinterConfig"]
    assert config.precompiles_at(10) == {}
    assert config.precompiles_at(20)["contractNativeMinterConfig"] == {
        "adminAddresses": ["0x" + "cd" * 20],
        "blockTimestamp": 20,
        "initialMint": {"0x" + "ef" * 20: "0x100"},
    }
    assert config.as_json()["upgrades"]["precompileUpgrades"][0] == at(10, disable=True)


@pytest.mark.parametrize(
    "genesis",
    [
        b"",
        b"[]",
        b"{}",
        b'{"config":{}}',
        b'{"config":{"feeConfig":7}}',
        b"\x00\x01",
        b'{"config":7}',
    ],
)
def test_a_genesis_of_another_vm_has_no_chain_configuration(genesis: bytes) -> None:
    with pytest.raises(NotSubnetEvm):
        chain_config(genesis, b"{}", {})


def in_other_case(value: Any) -> Any:
    """Return a JSON value with the case of all keys changed, but those of precompiles, accounts and
    storage.
    """
    if isinstance(value, list):
        return [in_other_case(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key if key in KEYS or key.startswith("0x") else key.swapcase(): in_other_case(item)
        for key, item in value.items()
    }


UPGRADES = {
    "networkUpgradeOverrides": {"durangoTimestamp": 7, "graniteTimestamp": 9},
    "stateUpgrades": [
        {
            "blockTimestamp": 3,
            "accounts": {"0x" + "AB" * 20: {"balanceChange": "5", "code": "0xAB", "storage": {}}},
        }
    ],
    "precompileUpgrades": [
        {
            "warpConfig": {
                "blockTimestamp": 4,
                "quorumNumerator": 71,
                "requirePrimaryNetworkSigners": True,
            }
        },
        {
            "feeManagerConfig": {
                "blockTimestamp": 5,
                "adminAddresses": ["0x" + "AB" * 20],
                "initialFeeConfig": {"gasLimit": 9, "minBaseFee": 2},
            }
        },
        {
            "rewardManagerConfig": {
                "blockTimestamp": 6,
                "initialRewardConfig": {"allowFeeRecipients": True},
            }
        },
        {"gasPriceManagerConfig": {"blockTimestamp": 6, "initialGasPriceConfig": {"targetGas": 8}}},
        {
            "contractNativeMinterConfig": {
                "blockTimestamp": 8,
                "initialMint": {"0x" + "EF" * 20: "256"},
            }
        },
        {"feeManagerConfig": {"blockTimestamp": 10, "disable": True}},
    ],
}


def test_field_names_of_genesis_and_upgrade_file_are_read_in_any_case() -> None:
    genesis = json.loads(recorded_genesis("l1-0"))
    expected = chain_config(
        json.dumps(genesis).encode(), json.dumps(UPGRADES).encode(), {"etna": 1}
    )
    other_genesis, other_upgrades = (
        json.dumps(in_other_case(value)).encode() for value in (genesis, UPGRADES)
    )
    assert b"FEEcONFIG" in other_genesis
    assert b"PRECOMPILEuPGRADES" in other_upgrades
    assert chain_config(other_genesis, other_upgrades, {"etna": 1}) == expected
    resource = evm_genesis(json.dumps(genesis).encode())
    assert resource is not None
    assert evm_genesis(other_genesis) == resource


def test_the_keys_of_precompiles_are_read_exactly() -> None:
    genesis = json.loads(recorded_genesis("l1-0"))
    genesis["config"] |= {"WARPconfig": {"blockTimestamp": 1}}
    genesis["config"].pop("warpConfig", None)
    assert (
        "warpConfig"
        not in chain_config(json.dumps(genesis).encode(), b"{}", {}).genesis_precompiles
    )
    resource = evm_genesis(json.dumps(genesis).encode())
    assert resource is not None
    assert isinstance(resource.config, GenesisConfig)
    assert resource.config.warp_config is UNSET
    with pytest.raises(
        NotSubnetEvm, match="the upgrade file cannot be read: unknown precompile config: WarpConfig"
    ):
        chain_config(recorded_genesis("l1-0"), b'{"precompileUpgrades":[{"WarpConfig":{}}]}', {})


def test_an_error_says_which_file_cannot_be_read() -> None:
    with pytest.raises(NotSubnetEvm, match=r"^the upgrade file cannot be read"):
        chain_config(
            recorded_genesis("l1-0"),
            b'{"precompileUpgrades":[{"warpConfig":{"blockTimestamp":"x"}}]}',
            {},
        )
    with pytest.raises(NotSubnetEvm, match=r"^the genesis cannot be read"):
        chain_config(b'{"config":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"{}", {})
    with pytest.raises(NotSubnetEvm, match=r"^the genesis cannot be read"):
        chain_config(b'{"config":{"feeConfig":{},"warpConfig":7}}', b"{}", {})


@pytest.mark.parametrize(
    "upgrades", [b"[]", b'{"precompileUpgrades":[{"nope":{}}]}', b'{"precompileUpgrades":[{}]}']
)
def test_an_upgrade_file_that_a_node_would_refuse_is_refused(upgrades: bytes) -> None:
    with pytest.raises(NotSubnetEvm):
        chain_config(recorded_genesis("l1-0"), upgrades, {})


def test_igloo_is_behind_helicon_in_configurations_and_rules_if_nodes_or_files_name_it() -> None:
    without = recorded_config("l1-0")
    assert "iglooTimestamp" not in without.as_json()
    assert "IsIgloo" not in without.rules_at(NOW_S)["avalancheRules"]
    unscheduled = chain_config(
        recorded_genesis("l1-0"), b"{}", {**upgrade_times(), "igloo": UNSCHEDULED_S}
    )
    assert unscheduled.as_json()["iglooTimestamp"] == UNSCHEDULED_S
    assert list(unscheduled.rules_at(NOW_S)["avalancheRules"])[-2:] == ["IsHelicon", "IsIgloo"]
    assert not unscheduled.rules_at(NOW_S)["avalancheRules"]["IsIgloo"]
    overridden = recorded_config("l1-0", {"networkUpgradeOverrides": {"iglooTimestamp": NOW_S}})
    assert overridden.as_json()["iglooTimestamp"] == NOW_S
    assert overridden.as_json()["upgrades"] == {
        "networkUpgradeOverrides": {"iglooTimestamp": NOW_S}
    }
    assert overridden.rules_at(NOW_S)["avalancheRules"]["IsIgloo"]
    assert not overridden.rules_at(NOW_S - 1)["avalancheRules"]["IsIgloo"]
