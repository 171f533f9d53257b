"""Endpoints 3 to 8 of a running daemon over the recorded network's index, walked by a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.openapi.sample_requests import example_requests
from tests.indexer.replay import ReplayNode
from tests.integration.daemon import Daemon
from tests.integration.indexed_daemon import fetch_all, run_recorded_daemon, run_synthetic_daemon
from tests.ledger.recorded import params, replayed
from tests.node.recorded_node import node_id, recorded_result
from warpseal.api.openapi.examples import load_examples
from warpseal.chains.ids import parse_address
from warpseal.ledger.utxo_flow import address_from_public_key
from warpseal.resources.text import account_text
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, id_text, node_id_text

FUJI = "/v1/networks/fuji"
P, X, C = (f"{FUJI}/blockchains/{chain}-chain" for chain in "pxc")
WALLET = "custom18jma8ppw3nhx5r4ap8clazz0dps7rv5u9xde7p"
ACCOUNT = "0x8db97c7cece249c2b98bdc0226cc4c2a57bf52fc"
X_ID, C_ID = id_text(params().x_chain_id), id_text(params().c_chain_id)
VALIDATOR = node_id("4goFX7FYw8deiZyaZNTHdQd7cmEn1smtS")
L1_VALIDATOR = node_id("3i4HtiRnwBb5YAhpn9RahuTgAkpPNUkxK")
SECONDS_OF_2026 = range(1_767_225_600, 1_830_297_600)


def node() -> ReplayNode:
    """A node that lists the validators that it sees."""
    result = recorded_result("platform.getCurrentValidators", subnetID=id_text(PRIMARY_NETWORK))
    return ReplayNode(
        replies={
            "platform.getCurrentValidators": result,
            "info.peers": recorded_result("info.peers"),
        }
    )


async def txs_of(daemon: Daemon, path: str, **query: str) -> list[dict[str, Any]]:
    """Return all transactions that a query finds, in pages of 3."""
    words = "&".join(f"{name}={value}" for name, value in query.items())
    return await fetch_all(
        daemon, f"{path}/transactions" + (f"?{words}" if words else ""), "transactions", 3
    )


async def assert_examples_hold(daemon: Daemon, *operations: str) -> None:
    """Assert that example requests of the OpenAPI document are answered as it says."""
    names = set(operations)
    for request in example_requests():
        if request.name in names:
            body, example = (
                (await daemon.get(request.path)).body,
                load_examples()[request.name].response,
            )
            # Page tokens are sealed with a key of the daemon.
            assert body.pop("nextPageToken", "") != example.get("nextPageToken", "-")
            assert body == {
                name: value for name, value in example.items() if name != "nextPageToken"
            }
            names.remove(request.name)
    assert names == set()


async def test_transactions_are_found_by_address_account_validation_type_and_time(
    tmp_path: Path,
) -> None:
    async with run_recorded_daemon(tmp_path) as daemon:
        all_p = await txs_of(daemon, P)
        of_wallet = await txs_of(daemon, P, addresses=f"P-{WALLET},{WALLET}", sortOrder="asc")
        since = of_wallet[5]["blockTimestamp"]
        later = await txs_of(
            daemon, P, addresses=WALLET, startTimestamp=str(since), sortOrder="asc"
        )
        earlier = await txs_of(
            daemon, P, addresses=WALLET, endTimestamp=str(since - 1), sortOrder="asc"
        )
        moves = await txs_of(daemon, P, addresses=WALLET, txTypes="ImportTx,ExportTx")
        changed = next(tx for tx in all_p if tx["txType"] == "IncreaseL1ValidatorBalanceTx")
        validation = changed["l1ValidatorDetails"][0]["validationId"]
        of_validation = await txs_of(daemon, P, l1ValidationId=validation)
        of_account = await txs_of(daemon, C, addresses=ACCOUNT)
        on_x = await txs_of(daemon, X, addresses=f"X-{WALLET}")
        refused = [
            (await daemon.get(f"{P}/transactions?{name}")).body
            for name in ("txTypes=BaseTx", "startTimestamp=1")
        ]
        on_c_by_id = await txs_of(daemon, f"{FUJI}/blockchains/{C_ID}")
    assert [tx["blockNumber"] for tx in all_p] == sorted(
        (tx["blockNumber"] for tx in all_p), key=int, reverse=True
    )
    assert later + earlier != []
    assert [tx["txHash"] for tx in (*earlier, *later)] == [tx["txHash"] for tx in of_wallet]
    assert sorted(tx["txType"] for tx in moves) == ["ExportTx", "ExportTx", "ImportTx", "ImportTx"]
    assert changed["txHash"] in [tx["txHash"] for tx in of_validation]
    assert of_validation == [tx for tx in all_p if validation in str(tx.get("l1ValidatorDetails"))]
    assert [tx["txType"] for tx in of_account] == [tx["txType"] for tx in on_c_by_id]
    assert len(on_x) == 14
    assert [body["detail"]["field"] for body in refused] == ["txTypes", "startTimestamp"]


async def test_imports_and_exports_link_the_chains(tmp_path: Path) -> None:
    async with run_recorded_daemon(tmp_path) as daemon:
        of = {
            chain: await txs_of(daemon, path)
            for chain, path in {id_text(P_CHAIN): P, X_ID: X, C_ID: C}.items()
        }
    listed_txs = {tx["txHash"]: tx for txs in of.values() for tx in txs}
    ties = 0
    for chain, txs in of.items():
        for tx in txs:
            if tx["txType"] == "ImportTx":
                assert tx["destinationChain"] == chain
                (spent,) = tx["consumedUtxos"]
                export = listed_txs[spent["txHash"]]
                assert (export["txType"], export["sourceChain"]) == ("ExportTx", tx["sourceChain"])
                (utxo_row,) = [
                    utxo for utxo in export["emittedUtxos"] if utxo["utxoId"] == spent["utxoId"]
                ]
                assert utxo_row["consumingTxHash"] == tx["txHash"]
                assert (utxo_row["createdOnChainId"], utxo_row["consumedOnChainId"]) == (
                    export["sourceChain"],
                    chain,
                )
                ties += 1
    assert ties == 6


async def test_signers_own_the_outputs_and_accounts(tmp_path: Path) -> None:
    async with run_recorded_daemon(tmp_path) as daemon:
        on_x, on_c = await txs_of(daemon, X), await txs_of(daemon, C)
        (sdk,) = [tx for tx in await sdk_txs(tmp_path) if tx["txHash"] == on_c[0]["txHash"]]
    keys = 0
    for tx in (*on_x, *on_c):
        for utxo in (*tx["consumedUtxos"], *tx["emittedUtxos"]):
            owners = [parse_address(text)[1] for text in utxo["addresses"]]
            for signer in utxo.get("credentials", ()):
                assert address_from_public_key(bytes.fromhex(signer["publicKey"][2:])) in owners
                assert len(signer["signature"]) == 2 + 2 * 65
                keys += 1
        for evm_input in tx.get("evmInputs", ()):
            assert evm_input["fromAddress"] == account_text(bytes.fromhex(ACCOUNT[2:]))
            (signer,) = evm_input["credentials"]
            assert signer["publicKey"].startswith(("0x02", "0x03"))
            keys += 1
    assert keys > 20
    assert sdk["evmOutputs"] == on_c[0]["evmOutputs"]


async def test_an_output_of_a_chain_that_is_not_indexed_shows_its_spending_input(
    tmp_path: Path,
) -> None:
    async with run_recorded_daemon(tmp_path, index_chains=["c"]) as daemon:
        imports = await txs_of(daemon, C, addresses=f"C-{WALLET}", txTypes="ImportTx")
        elsewhere = await daemon.get(f"{X}/transactions")
    assert len(imports) == 2
    for tx in imports:
        (spent,) = tx["consumedUtxos"]
        assert (spent["incomplete"], spent["addresses"], spent["threshold"]) == (True, [WALLET], 1)
        assert (spent["amount"], spent["createdOnChainId"]) == (
            tx["amountUnlocked"][0]["amount"],
            tx["sourceChain"],
        )
        assert "utxoBytes" not in spent
        (signer,) = spent["credentials"]
        assert (
            address_from_public_key(bytes.fromhex(signer["publicKey"][2:]))
            == parse_address(WALLET)[1]
        )
    assert (elsewhere.status, elsewhere.body["detail"]["missing"]) == (404, "the x-chain")


async def sdk_txs(folder: Path) -> list[dict[str, Any]]:
    """Return the C-Chain's transactions as SDKs read them."""
    async with run_recorded_daemon(folder / "sdk", compat="sdk") as daemon:
        return await txs_of(daemon, C)


async def test_blocks_of_every_chain_are_filtered_by_time(tmp_path: Path) -> None:
    async with run_recorded_daemon(tmp_path) as daemon:
        blocks = {
            path: await fetch_all(daemon, f"{path}/blocks", "blocks", 4) for path in (P, X, C)
        }
        times = [block["blockTimestamp"] for block in blocks[C]]
        some = await fetch_all(
            daemon, f"{C}/blocks?startTimestamp={times[-2]}&endTimestamp={times[1]}", "blocks", 2
        )
    assert {path: [int(item["blockNumber"]) for item in of] for path, of in blocks.items()} == {
        P: list(range(19, -1, -1)),
        X: list(range(13, -1, -1)),
        C: list(range(10, -1, -1)),
    }
    assert some == [
        block for block in blocks[C] if times[-2] <= block["blockTimestamp"] <= times[1]
    ]
    assert sum(block["txCount"] for block in blocks[C]) == 4
    for of in blocks.values():
        assert [item["parentHash"] for item in of[:-1]] == [item["blockHash"] for item in of[1:]]
        assert all(
            item["txCount"] == len(item["transactions"]) and item["blockSizeBytes"] > 0
            for item in of
        )
    last = blocks[P][0]
    assert (last["currentSupply"], last["activeL1Validators"]) == (str(replayed().p[-1].supply), 3)
    assert last["proposerDetails"]["proposerNodeId"].startswith("NodeID-")


async def test_blockchains_and_the_chains_of_an_address_are_found(tmp_path: Path) -> None:
    async with run_recorded_daemon(tmp_path) as daemon:
        created = [tx for tx in await txs_of(daemon, P) if tx["txType"] == "CreateChainTx"]
        results = [(await daemon.get(f"{FUJI}/blockchains/{tx['txHash']}")).body for tx in created]
        p_chain, x_chain = [(await daemon.get(path)).body for path in (P, X)]
        unknown = await daemon.get(f"{FUJI}/blockchains/{id_text(bytes(31) + bytes([1]))}")
        touched = await daemon.get(
            f"{FUJI}/addresses:listChainIds?addresses={WALLET},{ACCOUNT},P-{WALLET}"
        )
        await assert_examples_hold(
            daemon,
            "listLatestPrimaryNetworkTransactions",
            "listLatestPrimaryNetworkBlocks",
            "getChainIdsForAddresses",
        )
    assert [item["blockchainId"] for item in results] == [tx["txHash"] for tx in created]
    assert [item["createBlockNumber"] for item in results] == [tx["blockNumber"] for tx in created]
    assert {item["evmChainId"] for item in results} >= {0, 12345, 88888}
    assert all(("genesisData" in item) != ("genesisDataHex" in item) for item in results)
    assert (p_chain["blockchainName"], p_chain["createBlockNumber"], p_chain["evmChainId"]) == (
        "P-Chain",
        "0",
        0,
    )
    assert p_chain["createBlockTimestamp"] in SECONDS_OF_2026
    assert x_chain["blockchainId"] == X_ID
    assert (unknown.status, unknown.body["error"], unknown.body["statusCode"]) == (
        404,
        "Not Found",
        404,
    )
    assert touched.body["addresses"] == [
        {"address": WALLET, "blockchainIds": [id_text(P_CHAIN), X_ID, C_ID]},
        {"address": ACCOUNT, "blockchainIds": [C_ID]},
        {"address": f"P-{WALLET}", "blockchainIds": [id_text(P_CHAIN), X_ID, C_ID]},
    ]


async def test_subnets_have_validations_and_an_l1_has_none(tmp_path: Path) -> None:
    async with run_recorded_daemon(tmp_path, node()) as daemon:
        reply = await daemon.get(f"{FUJI}/validators/{node_id_text(VALIDATOR)}")
        removed = await daemon.get(
            f"{FUJI}/validators/{node_id_text(VALIDATOR)}?validationStatus=removed"
        )
        of_l1 = await daemon.get(f"{FUJI}/validators/{node_id_text(L1_VALIDATOR)}")
    by_subnet = {validator["subnetId"]: validator for validator in reply.body["validators"]}
    primary, (permissioned,) = by_subnet.pop(id_text(PRIMARY_NETWORK)), by_subnet.values()
    assert {item["validationStatus"] for item in (primary, permissioned)} == {"active"}
    assert (primary["delegationFee"], primary["delegatorCount"], primary["amountDelegated"]) == (
        "1",
        0,
        "0",
    )
    assert primary["delegationCapacity"] == "2000000000000000"
    assert primary["potentialRewards"] == primary["rewards"]
    assert primary["potentialRewards"]["validationRewardAmount"] == "662900438817712"
    assert primary["stakePercentage"] == 33.33333333
    assert primary["geolocation"] is None
    assert set(primary["validatorHealth"]) == {
        "reachabilityPercent",
        *(f"benched{chain}ChainRequestsPercent" for chain in "PXC"),
    }
    assert 0 <= primary["uptimePerformance"] <= 100
    assert "delegationFee" not in permissioned
    assert removed.body == {"validators": []}
    assert (of_l1.status, of_l1.body) == (200, {"validators": []})


async def test_the_four_states_of_a_made_up_history_have_their_rewards(tmp_path: Path) -> None:
    async with run_synthetic_daemon(tmp_path) as daemon:
        txs = await fetch_all(daemon, f"{P}/transactions", "transactions")
        nodes = sorted({tx["nodeId"] for tx in txs if "nodeId" in tx})
        over = [
            item
            for status in ("completed", "removed")
            for name in nodes
            for item in await fetch_all(
                daemon,
                f"{FUJI}/validators/{name}?validationStatus={status}&sortOrder=asc",
                "validators",
                1,
            )
        ]
        rewards = await fetch_all(
            daemon, f"{FUJI}/rewards?nodeIds={','.join(nodes)}", "historicalRewards", 2
        )
        await assert_examples_hold(daemon, "listHistoricalPrimaryNetworkRewards")
    paid = {
        item["txHash"]: item["rewards"]
        for item in over
        if "rewardTxHash" in item.get("rewards", ())
    }
    assert {item["validationStatus"] for item in over} == {"completed", "removed"}
    assert all(
        {"removeTxHash", "removeTimestamp"} <= item.keys()
        for item in over
        if item["validationStatus"] == "removed"
    )
    own = [
        reward
        for reward in rewards
        if reward["rewardType"] == "VALIDATOR" and reward["txHash"] in paid
    ]
    assert len(own) > 3
    for item in own:
        assert paid[item["txHash"]]["validationRewardAmount"] == item["reward"]["amount"]
        assert paid[item["txHash"]]["rewardTxHash"] == item["rewardTxHash"]
    assert {reward["rewardType"] for reward in rewards} == {
        "VALIDATOR",
        "DELEGATOR",
        "VALIDATOR_FEE",
    }
