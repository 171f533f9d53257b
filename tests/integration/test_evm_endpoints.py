"""Endpoints 9 to 15 of a running daemon, over the index of an EVM chain and its node."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.api.data import evm_history as h
from tests.eventually import until
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from tests.integration.daemon import Daemon, build_config, run_daemon, run_network
from warpseal.daemon.usage import open_metrics_database
from warpseal.warp.ids import id_text
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan

CHAIN_ID = id_text(h.CHAIN.blockchain_id)
TOKENS = f"{h.PATH}/nfts/collections/{h.text(h.CATS)}/tokens"


def entry(node: EvmReplayNode, **more: Any) -> dict[str, Any]:
    return {"blockchain-id": CHAIN_ID, "rpc": [node.url], **more}


def write_index(tmp_path: Path, network: SimulatedNetwork, written_at: int | None = None) -> Path:
    """Write the index of the chain, and return the folder of the network.

    written_at: time of the indexer's last status; None if it wrote none
    """
    folder = tmp_path / "data" / str(network.plan.network_id)
    folder.mkdir(parents=True)
    with h.open_writer(folder) as writer:
        h.write_history(writer)
        if written_at is not None:
            status = h.status_of(h.CHAIN, reported_at=written_at, written_at=written_at)
            writer.write_status(status)
    return folder


async def test_a_daemon_serves_the_index_of_an_evm_chain(tmp_path: Path) -> None:
    described = tmp_path / "data" / "contracts" / CHAIN_ID / f"{h.text(h.CATS)}.json"
    described.parent.mkdir(parents=True)
    described.write_text(json.dumps({"name": "Described"}))
    async with (
        run_network(Plan(validators=2)) as network,
        serving_evm(EvmReplayNode(h.CHAIN)) as (node,),
    ):
        write_index(tmp_path, network, written_at=1)
        keys = {
            "evm-chains": [entry(node, index={"metadata": "asked"}, info={"chainName": "Mine"})],
        }
        async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
            chain = await daemon.get(h.PATH)
            chains = await daemon.get("/v1/chains")
            block = await daemon.get(f"/v1/chains/{CHAIN_ID}/blocks/{h.CHAIN.tip}")
            tokens = await daemon.get(TOKENS)
            reindexed = await post(daemon, f"{TOKENS}/1:reindex")
            unknown = await daemon.get("/v1/chains/1")
            status = await daemon.get("/status.json")
            metrics = await daemon.metrics()
    own = f"{daemon.api_url}/ext/bc/{CHAIN_ID}/rpc"
    assert (chain.body["chainName"], chain.body["rpcUrl"], chain.body["status"]) == (
        "Mine",
        own,
        "OK",
    )
    assert chains.body == {"chains": [chain.body]}
    assert (block.body["blockHash"], block.body["cumulativeTransactions"]) == (
        h.CHAIN.hashes[-1],
        "12",
    )
    assert [token["name"] for token in tokens.body["tokens"]] == ["Described"] * 2
    # No indexer runs, and what it wrote last is old.
    assert "stale" in tokens.headers["x-warpseal-index"].split(";")
    assert reindexed == 503
    assert (unknown.status, unknown.body["code"]) == (404, "unknown_chain")
    (index_entry,) = (row for row in status.body["chains"] if row["kind"] == "index")
    assert (index_entry["name"], index_entry["evmChainId"], index_entry["height"]) == (
        CHAIN_ID,
        h.CHAIN.evm_chain_id,
        str(h.CHAIN.tip),
    )
    assert index_entry["internalHeight"] == index_entry["height"]
    assert "the indexer does not run" in index_entry["waiting"]
    assert metrics[f'warpseal_index_height{{chain="{CHAIN_ID}"}}'] == h.CHAIN.tip
    assert metrics[f'warpseal_index_pages_total{{chain="{CHAIN_ID}",kind="tokens"}}'] >= 1


async def test_the_metrics_api_is_on_the_api_port_and_alone_on_a_port_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    day = h.block_time(0) // 86_400 * 86_400
    tps = f"/v1/avg_tps/{h.CHAIN.evm_chain_id}?to={day}"
    async with (
        run_network(Plan(validators=2)) as network,
        serving_evm(EvmReplayNode(h.CHAIN)) as (node,),
    ):
        # While the index has all of its node's blocks, the newest day is today.
        folder = write_index(tmp_path, network, written_at=int(time.time()))
        keys = {
            "evm-chains": [entry(node, index=True)],
            "metrics-api-port": 0,
            "require-api-key": True,
        }
        async with run_daemon(build_config(network, tmp_path, keys)) as daemon:
            first_day = await daemon.get(tps)
            newest = await daemon.get("/v1/avg_tps/total?pageSize=1")
            chain = await daemon.get(h.PATH)
            (listening,) = (
                record for record in caplog.records if record.getMessage() == "listening"
            )
            own = f"http://{vars(listening)['metrics_api']}"
            alone = [await get_json(daemon, own + path) for path in (tps, h.PATH, "/health")]
    assert first_day.status == 200
    assert first_day.body["results"] == [{"timestamp": day, "value": 1.5}]
    assert newest.status == 200
    assert newest.body["nextPageToken"]
    assert (folder / "metrics.db").stat().st_size
    assert (chain.status, chain.body["code"]) == (401, "api_key_required")
    assert alone[0] == (200, first_day.body)
    assert (alone[1][0], alone[1][1]["code"]) == (404, "not_found")
    # /docs is not on this port.
    assert re.fullmatch("no such path(; did you mean [^ ]*\\?)?", *alone[1][1]["message"])
    assert alone[2][1]["status"] in ("up", "down")


async def test_a_metrics_database_that_never_answers_holds_up_nothing(tmp_path: Path) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with (
        await asyncio.start_server(accept, "127.0.0.1", 0) as server,
        run_network(Plan(validators=2)) as network,
        serving_evm(EvmReplayNode(h.CHAIN)) as (node,),
    ):
        folder = write_index(tmp_path, network)
        url = f"postgresql://user@127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"
        config = build_config(
            network, tmp_path, {"evm-chains": [entry(node, index=True)], "metrics-db-url": url}
        )
        async with open_metrics_database(config, folder) as database:
            # It is yielded before its first connection has failed.
            assert database is not None
            assert database.is_up
        async with run_daemon(config) as daemon:
            first_day = await daemon.get(f"/v1/avg_tps/{h.CHAIN.evm_chain_id}?to={h.block_time(0)}")
            chain = await daemon.get(h.PATH)
    assert (first_day.status, len(first_day.body["results"])) == (200, 1)
    assert chain.status == 200


async def test_a_chain_without_an_index_is_described_and_its_blocks_come_from_its_node(
    tmp_path: Path,
) -> None:
    async with (
        run_network(Plan(validators=2)) as network,
        serving_evm(EvmReplayNode(h.CHAIN)) as (node,),
        run_daemon(build_config(network, tmp_path, {"evm-chains": [entry(node)]})) as daemon,
    ):
        chain = await daemon.get(f"/v1/chains/{CHAIN_ID}")
        block = await daemon.get(f"/v1/chains/{CHAIN_ID}/blocks/3")
        tokens = await daemon.get(f"/v1/chains/{CHAIN_ID}/nfts/collections/{h.text(h.CATS)}/tokens")
    assert (chain.body["chainId"], chain.body["enabledFeatures"]) == (str(h.CHAIN.evm_chain_id), [])
    assert (block.headers["x-warpseal-source"], block.body["txCount"]) == ("node", 3)
    assert (tokens.status, tokens.body["code"]) == (404, "index_not_enabled")


async def test_the_l1s_that_a_node_serves_are_served_without_being_configured(
    tmp_path: Path,
) -> None:
    plan = Plan(validators=2, l1s=(L1Plan(validators=2),))
    async with run_network(plan) as network, serving_evm(EvmReplayNode(h.CHAIN)) as (node,):
        subnet = next(subnet for subnet in network.subnets if subnet.manager_chain_id is not None)
        assert subnet.manager_chain_id is not None
        chain_id = id_text(subnet.manager_chain_id)
        keys = {"index-l1s-at": node.url, "tracked-subnet-ids": [id_text(subnet.subnet_id)]}
        async with run_daemon(build_config(network, tmp_path, keys)) as daemon:

            async def is_found() -> bool:
                chains = (await daemon.get("/v1/chains")).body["chains"]
                return chain_id in [chain["platformChainId"] for chain in chains]

            await until(is_found)
            chain = await daemon.get(f"/v1/chains/{h.CHAIN.evm_chain_id}")
            block = await daemon.get(f"/v1/chains/{chain_id}/blocks/3")
            tokens = await daemon.get(TOKENS)
    assert (chain.body["platformChainId"], chain.body["subnetId"]) == (
        chain_id,
        id_text(subnet.subnet_id),
    )
    assert (chain.body["status"], chain.body["enabledFeatures"]) == ("OK", ["nftIndexing"])
    assert block.body["blockHash"] == h.CHAIN.hashes[3]
    # No indexer runs.
    assert (tokens.status, tokens.body["code"]) == (503, "index_not_ready")


async def post(daemon: Daemon, path: str) -> int:
    async with daemon.session.post(daemon.api_url + path) as response:
        return response.status


async def get_json(daemon: Daemon, url: str) -> tuple[int, Any]:
    async with daemon.session.get(url) as response:
        return response.status, await response.json()
