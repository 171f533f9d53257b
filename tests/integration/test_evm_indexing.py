"""A daemon and its index process from the first block of an EVM chain on: pages, new blocks,
reindexing, metrics.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eth_abi.abi import encode

from tests.api.data import evm_history as h
from tests.clients.recorded_network import daemon_of
from tests.eventually import until
from tests.indexer.evm_chains import GENESIS_TIME, MadeUpChain, Tx, erc20_transfer, erc721_transfer
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from tests.indexer.replay import ReplayNode, serving
from tests.integration.daemon import Daemon
from tests.integration.indexed_daemon import write_config_file
from tests.integration.process import start_command
from warpseal.chains.evm.contract_calls import (
    ERC721_INTERFACE,
    NAME,
    SYMBOL,
    supports_interface_call,
    token_uri_call,
)
from warpseal.warp.ids import id_text

CATS = h.text(h.CATS)
TOKENS = f"{h.PATH}/nfts/collections/{CATS}/tokens"
COLLECTIBLES = f"{h.PATH}/addresses/{{}}/balances:listCollectibles?contractAddress={CATS}"


class Cats:
    """An ERC-721 contract with metadata in its token URIs."""

    def __init__(self) -> None:
        self.colour = "red"

    def __call__(self, to: bytes, data: bytes, block: Any) -> bytes | None:
        if to != h.CATS:
            return None
        if data[:4] == supports_interface_call(ERC721_INTERFACE)[:4]:
            return encode(["bool"], [data[4:8] in (ERC721_INTERFACE, bytes.fromhex("01ffc9a7"))])
        if data in (NAME, SYMBOL):
            return encode(["string"], ["Cats" if data == NAME else "CAT"])
        if data[:4] == token_uri_call(0)[:4]:
            document = {
                "name": f"Cat {int.from_bytes(data[4:])}",
                "attributes": [{"value": self.colour}],
            }
            return encode(["string"], [f"data:application/json,{json.dumps(document)}"])
        return None


async def test_a_chain_is_indexed_and_served_and_its_metadata_reindexed(tmp_path: Path) -> None:
    cats = Cats()
    node = EvmReplayNode(h.CHAIN, tip=2, call=cats)
    async with serving(ReplayNode()) as primary, serving_evm(node):
        chains = [
            {"blockchain-id": id_text(h.CHAIN.blockchain_id), "rpc": [node.url], "index": True}
        ]
        file = write_config_file(tmp_path, primary, index_chains=[], evm_chains=chains)
        async with (
            start_command("serve", "--config", file) as command,
            daemon_of(command) as daemon,
        ):
            await until_indexed(daemon, 2)

            async def are_described() -> bool:
                minted = (await daemon.get(TOKENS)).body["tokens"]
                names = [
                    (token.get("name"), (token.get("metadata") or {}).get("name"))
                    for token in minted
                ]
                return names == [("Cats", f"Cat {number}") for number in (1, 2, 3)]

            await until(are_described)
            node.tip = None
            await until_indexed(daemon, h.CHAIN.tip)
            held = {
                owner: [
                    item["tokenId"]
                    for item in (await daemon.get(COLLECTIBLES.format(h.text(owner)))).body[
                        "collectibleBalances"
                    ]
                ]
                for owner in (h.ALICE, h.BOB)
            }
            assert held == {h.ALICE: ["1"], h.BOB: ["2"]}
            before = (await daemon.get(f"{TOKENS}/1")).body["metadata"]
            cats.colour = "blue"
            assert await post(daemon, f"{TOKENS}/1:reindex") == 201

            async def is_new() -> bool:
                metadata = (await daemon.get(f"{TOKENS}/1")).body["metadata"]
                return bool(metadata["attributes"] == '[{"value":"blue"}]')

            await until(is_new)
            after = (await daemon.get(f"{TOKENS}/1")).body["metadata"]
            assert after["metadataLastUpdatedTimestamp"] >= before["metadataLastUpdatedTimestamp"]
            assert await post(daemon, f"{TOKENS}/1:reindex") == 429
            # No validator answers.
            lines = [line for line in command.stderr if " no quorum after start " not in line]
            assert [line for line in lines if " WARNING " in line or " ERROR " in line] == []


async def test_metrics_of_a_chain_follow_its_index_while_pages_keep_their_block(
    tmp_path: Path,
) -> None:
    builder = MadeUpChain(seed=31, evm_chain_id=31_337)
    coin, nft, alice, bob, carol = map(builder.address, ("coin", "nft", "alice", "bob", "carol"))
    mints = [
        erc20_transfer(coin, h.ZERO, owner, amount)
        for owner, amount in ((alice, 10**24), (bob, 50))
    ]
    mints += [erc721_transfer(nft, h.ZERO, alice, token) for token in (1, 2)]
    builder.add([Tx(alice, coin, tuple(mints))], seconds=50_000)
    spent = (erc20_transfer(coin, alice, carol, 10**24), erc721_transfer(nft, alice, bob, 2))
    builder.add([Tx(alice, coin, spent), Tx(bob, carol)], seconds=50_000)
    builder.add([Tx(bob, carol)], seconds=50_000)
    node, base = (
        EvmReplayNode(builder.chain, tip=1),
        f"/v2/chains/{builder.chain.evm_chain_id}/contracts",
    )
    balances, holders = f"{base}/{h.text(coin)}/balances", f"{base}/{h.text(nft)}/nfts:listHolders"
    day = (GENESIS_TIME + 50_000) // 86_400 * 86_400
    async with serving(ReplayNode()) as primary, serving_evm(node):
        chain_id = id_text(builder.chain.blockchain_id)
        chains = [
            {
                "blockchain-id": chain_id,
                "rpc": [node.url],
                "index": {"holders": True, "metadata": "off"},
            }
        ]
        file = write_config_file(tmp_path, primary, index_chains=[], evm_chains=chains)
        async with (
            start_command("serve", "--config", file) as command,
            daemon_of(command) as daemon,
        ):
            await until_indexed(daemon, 1, builder.chain.evm_chain_id)
            first = (await daemon.get(f"{balances}?threshold=10&pageSize=1")).body
            node.tip = None
            await until_indexed(daemon, builder.chain.tip, builder.chain.evm_chain_id)
            second = (
                await daemon.get(f"{balances}?pageToken={first['nextPageToken']}&pageSize=5")
            ).body
            ever = (await daemon.get(f"{balances}?threshold=10")).body
            lately = (
                await daemon.get(f"{balances}?threshold=10&startTimestamp={GENESIS_TIME + 150_000}")
            ).body
            of_nft = (await daemon.get(holders)).body
            tps = (await daemon.get(f"/v1/avg_tps/{chain_id}?to={day + 86_400}")).body
            # No validator answers.
            lines = [line for line in command.stderr if " no quorum after start " not in line]
            assert [line for line in lines if " WARNING " in line or " ERROR " in line] == []
    responses = (first, second, ever, lately)
    pages = [
        [(entry["address"], entry["sortKey"]) for entry in response["addresses"]]
        for response in responses
    ]
    assert pages[0] + pages[1] == [(h.text(alice), 10**24), (h.text(bob), 50)]
    assert "nextPageToken" not in second
    assert pages[2] == [(h.text(carol), 10**24), (h.text(bob), 50), (h.text(alice), 0)]
    assert pages[3] == [(h.text(carol), 10**24), (h.text(bob), 50)]
    assert {entry["address"]: entry["sortKey"] for entry in of_nft["addresses"]} == {
        h.text(alice): 1,
        h.text(bob): 1,
    }
    assert (of_nft["totalHolders"], of_nft["totalTokens"]) == (2, 2)
    # Block 1 is alone on its day; blocks 2 and 3 are on the next one.
    assert tps["results"] == [
        {"timestamp": day + 86_400, "value": 3 / 100_000},
        {"timestamp": day, "value": 0.0},
    ]


async def until_indexed(daemon: Daemon, height: int, chain_id: int = h.CHAIN.evm_chain_id) -> None:
    async def is_indexed() -> bool:
        response = await daemon.get(f"/v1/chains/{chain_id}")
        return f"height={height}" in response.headers.get("x-warpseal-index", "").split(";")

    await until(is_indexed)


async def post(daemon: Daemon, path: str) -> int:
    async with daemon.session.post(daemon.api_url + path) as response:
        return response.status
