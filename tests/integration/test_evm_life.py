"""A daemon and its index process from the first block of an EVM chain on: pages, new blocks and reindexing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eth_abi.abi import encode

from tests.api.data import evm_history as h
from tests.clients.recorded_network import daemon_of
from tests.eventually import until
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
            document = {"name": f"Cat {int.from_bytes(data[4:])}", "attributes": [{"value": self.colour}]}
            return encode(["string"], [f"data:application/json,{json.dumps(document)}"])
        return None


async def test_a_chain_is_indexed_and_served_and_its_metadata_reindexed(tmp_path: Path) -> None:
    cats = Cats()
    node = EvmReplayNode(h.CHAIN, tip=2, call=cats)
    async with serving(ReplayNode()) as primary, serving_evm(node):
        chains = [{"blockchain-id": id_text(h.CHAIN.blockchain_id), "rpc": [node.url], "index": True}]
        file = write_config_file(tmp_path, primary, index_chains=[], evm_chains=chains)
        async with start_command("serve", "--config", file) as command, daemon_of(command) as daemon:
            await until_indexed(daemon, 2)
            minted = await daemon.get(TOKENS)
            assert [(token["name"], token["metadata"]["name"]) for token in minted.body["tokens"]] == [
                ("Cats", f"Cat {number}") for number in (1, 2, 3)
            ]
            node.tip = None
            await until_indexed(daemon, h.CHAIN.tip)
            held = {
                owner: [
                    item["tokenId"]
                    for item in (await daemon.get(COLLECTIBLES.format(h.text(owner)))).body["collectibleBalances"]
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
            assert [line for line in command.stderr if " WARNING " in line or " ERROR " in line] == []


async def until_indexed(daemon: Daemon, height: int) -> None:
    async def is_indexed() -> bool:
        answer = await daemon.get(h.PATH)
        return f"height={height}" in answer.headers.get("x-warpseal-index", "").split(";")

    await until(is_indexed)


async def post(daemon: Daemon, path: str) -> int:
    async with daemon.session.post(daemon.api_url + path) as answer:
        return answer.status
