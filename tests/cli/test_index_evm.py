"""The commands of `warpseal index` for EVM chains as processes, without a primary chain in the
index.
"""

from __future__ import annotations

import csv
import fcntl
import json
import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.chains.p_vectors import genesis_chains
from tests.cli.test_serve_index import get_json
from tests.eventually import until
from tests.index.evm.fixtures import CHAIN_ID, IS_ERC721, open_writer
from tests.index.evm.histories import History
from tests.indexer.evm_chains import recorded_chain, transfer_blocks
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from tests.indexer.replay import ReplayNode, serving
from tests.integration.process import run_command, start_command
from warpseal.index.database import reading_index
from warpseal.index.evm.database import evm_index_url
from warpseal.index.settings import IndexSettings
from warpseal.store.locks import has_writer
from warpseal.warp.ids import PRIMARY_NETWORK, id_text


async def read_status(config: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code of `index status`, and the chains that it shows."""
    ended = await run_command("index", "status", "--config", config, "--json", *arguments)
    assert ended.code in (0, 1), ended.stderr
    return ended.code, json.loads(ended.stdout)["chains"] if ended.stdout else []


async def test_evm_chains_are_indexed_without_index_chains_and_go_on_after_kill_9(
    tmp_path: Path,
) -> None:
    recorded, made_up = recorded_chain("localnet", "l1-0"), transfer_blocks(30, has_roots=False)
    nodes = EvmReplayNode(recorded, tip=5), EvmReplayNode(made_up)
    nodes[1].receipts[7] = b"[]"
    async with AsyncExitStack() as stack:
        p_chain = ReplayNode()
        await stack.enter_async_context(serving(p_chain))
        await stack.enter_async_context(serving_evm(*nodes))
        chains: list[dict[str, Any]] = [
            {
                "blockchain-id": id_text(node.chain.blockchain_id),
                "rpc": [node.url],
                "index": {"traces": "off"},
            }
            for node in nodes
        ]
        config = tmp_path / "config.json"
        chains[0]["info"] = {"chain-name": "Recorded"}
        aliases = tmp_path / "aliases.json"
        aliases.write_text(json.dumps({id_text(recorded.blockchain_id): ["own"]}))
        names = {"chain-aliases-file": str(aliases)}
        own = {
            **names,
            "evm-chains": chains,
            "data-dir": str(tmp_path / "data"),
            "index-low-priority": False,
        }
        config.write_text(json.dumps({"p-chain-api": p_chain.url, "info-api": p_chain.url, **own}))
        first = await stack.enter_async_context(start_command("index", "run", "--config", config))
        place = tmp_path / "data" / "88888" / "evm"
        assert await first.read_line() == f"warpseal is indexing: network=88888 index={place}\n"
        statuses: dict[str, dict[str, Any]] = {}

        async def is_as_expected() -> bool:
            code, listed = await read_status(config)
            statuses.update({chain["chain"]: chain for chain in listed})
            heights = [chain.get("height") for chain in listed]
            return code == 1 and sorted(heights, key=str) == [nodes[0].height, 6]

        await until(is_as_expected)
        url = evm_index_url(IndexSettings(), place.parent, made_up.blockchain_id)
        engine = reading_index(url, IndexSettings())
        with engine.connect() as connection:
            assert has_writer(connection, url.path)
            first.kill()
            await first.ended()
            assert not has_writer(connection, url.path)
        engine.dispose()
        stopped = statuses[id_text(made_up.blockchain_id)]
        assert (stopped["stopped"], stopped["stoppedAt"], stopped["evmChainId"]) == (
            "wrong_receipt_count",
            7,
            99_999,
        )
        nodes[0].tip = None
        nodes[1].receipts.clear()
        # Only the named chain goes on.
        name = id_text(recorded.blockchain_id)
        second = await stack.enter_async_context(
            start_command("index", "run", "--config", config, "--chain", name)
        )
        expected = {"chain": name, "evmChainId": 12_345, "height": recorded.tip, "lagSeconds": 0}

        async def is_at_head() -> bool:
            code, (chain,) = await read_status(config, "--chain", "12345")
            return code == 0 and {key: chain.get(key) for key in expected} == expected

        await until(is_at_head)
        second.terminate()
        assert await second.ended() == 0
        _, listed = await read_status(config)
        assert sorted(chain["height"] for chain in listed) == [6, recorded.tip]
        unknown = await run_command("index", "status", "--config", config, "--chain", "7")
        assert unknown.code == 1
        assert unknown.stderr.startswith(
            "warpseal: --chain 7: no such chain; the names are p, x, c, "
        )
        for other_name in (name, "12345", "recorded", "OWN"):
            assert other_name == name or other_name.lower() in unknown.stderr
            code, (chain,) = await read_status(config, "--chain", other_name)
            assert (code, chain["chain"]) == (0, name)
        verified = await run_command("index", "verify", "--config", config, "--chain", "Recorded")
        assert (verified.code, verified.stderr) == (0, "")
        assert verified.stdout.endswith("compared, 0 wrong\n")
        nodes[0].is_down = True
        verified = await run_command("index", "verify", "--config", config, "--chain", name)
        assert (verified.code, "WRONG" in verified.stdout) == (3, False)
        assert verified.stdout.splitlines()[-1].startswith("not enough compared: 1 of ")
        nodes[0].is_down = False
        file = place / f"{id_text(made_up.blockchain_id)}.db"
        with sqlite3.connect(file) as database:
            database.execute("UPDATE blocks SET gas_used = x'01'")
        verified = await run_command("index", "verify", "--config", config)
        assert verified.code == 1
        wrong = [line for line in verified.stdout.splitlines() if line.startswith("WRONG")]
        assert wrong
        assert all(
            line.startswith(f"WRONG  {id_text(made_up.blockchain_id)}: block ") for line in wrong
        )


async def test_the_status_shows_the_chains_of_a_postgresql_database_that_are_not_configured(
    tmp_path: Path, postgres_url: str
) -> None:
    with open_writer(postgres_url) as writer:
        writer.set_interfaces(IS_ERC721)
        writer.write(History(5).blocks(30))
    configured = id_text(bytes([7]) * 32)
    config = tmp_path / "config.json"
    node = "http://127.0.0.1:1"
    chains = [{"blockchain-id": configured, "rpc": [node], "index": True}]
    nodes = {"p-chain-api": node, "info-api": node, "index-l1s-at": node, "evm-chains": chains}
    config.write_text(
        json.dumps({**nodes, "index-url": postgres_url, "tracked-subnet-ids": [configured]})
    )
    code, chain_rows = await read_status(config)
    heights = {chain["chain"]: chain.get("height") for chain in chain_rows}
    assert (code, heights) == (0, {id_text(CHAIN_ID): 29, configured: None})


async def test_rows_of_an_evm_chain_are_exported_as_json_lines_and_csv(tmp_path: Path) -> None:
    index_url = f"sqlite:///{tmp_path}/index.db"
    history = History(5)
    with open_writer(index_url) as writer:
        writer.set_interfaces(IS_ERC721)
        writer.write(history.blocks(30))
    config = tmp_path / "config.json"
    node = "http://127.0.0.1:1"
    config.write_text(json.dumps({"p-chain-api": node, "info-api": node, "index-url": index_url}))
    lines = await run_command(
        "index", "export", "transfers", "--config", config, "--chain", id_text(CHAIN_ID)
    )
    rows = [json.loads(line) for line in lines.stdout.splitlines()]
    assert lines.stderr == f"exported {len(rows)} transfers of {id_text(CHAIN_ID)}\n"
    assert (lines.code, len(rows) > 10) == (0, True)
    output = tmp_path / "transfers.csv"
    table = await run_command(
        "index", "export", "transfers", "--config", config, "--format", "csv", "--output", output
    )
    assert (table.code, table.stdout) == (0, "")
    with output.open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {name: str(field) for name, field in row.items()} for row in rows
        ]
    unknown = await run_command("index", "export", "blocks", "--config", config, "--chain", "7")
    names = f"p, x, c, {id_text(CHAIN_ID)}, 43112"
    assert (unknown.code, unknown.stderr) == (
        1,
        f"warpseal: --chain 7: no such chain; the names are {names}\n",
    )


async def test_a_daemon_indexes_the_l1s_of_a_node_and_its_health_names_a_chain_that_stopped(
    tmp_path: Path,
) -> None:
    intact, broken = (
        transfer_blocks(12, 4, has_roots=False),
        transfer_blocks(30, 5, has_roots=False),
    )
    subnet_id = id_text(bytes([9]) * 32)
    chains = {
        subnet_id: [id_text(intact.blockchain_id)],
        id_text(PRIMARY_NETWORK): list(genesis_chains()),
    }
    p_chain = ReplayNode(
        replies={"platform.validates": lambda params: {"blockchainIDs": chains[params["subnetID"]]}}
    )
    nodes = EvmReplayNode(intact), EvmReplayNode(broken, receipts={7: b"[]"})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(p_chain))
        await stack.enter_async_context(serving_evm(*nodes))
        name = id_text(broken.blockchain_id)
        config = tmp_path / "config.json"
        keys = {
            "p-chain-api": p_chain.url,
            "info-api": p_chain.url,
            "data-dir": str(tmp_path / "data"),
            "api-port": 0,
            "metrics-port": 0,
            "health-check-frequency": "1s",
            "index-low-priority": False,
            "evm-chains": [{"blockchain-id": name, "rpc": [nodes[1].url], "index": True}],
            "index-l1s-at": nodes[0].url,
            "tracked-subnet-ids": [subnet_id],
        }
        config.write_text(json.dumps(keys))
        # Another process indexes one of the chains for a while.
        folder = tmp_path / "data" / "88888"
        folder.mkdir(parents=True)
        lock = stack.enter_context(
            (folder / f"index-{id_text(intact.blockchain_id)}.lock").open("w")
        )
        fcntl.flock(lock, fcntl.LOCK_EX)
        daemon = await stack.enter_async_context(start_command("serve", "--config", config))
        url, _ = await daemon.listening()
        checks: dict[str, Any] = {}

        async def is_reported() -> bool:
            checks.update((await get_json(f"{url}/ext/health"))["checks"])
            if "stopped" in (checks.get("evm-index", {}).get("message") or {}).get(name, {}):
                lock.close()
            indexes = checks.get("evm-index", {}).get("message") or {}
            return (
                indexes.get(id_text(intact.blockchain_id), {}).get("height") == "12"
                and "stopped" in indexes[name]
            )

        await until(is_reported)
        reason = (
            f"indexing the {name} stopped at block 7: wrong_receipt_count (1 transactions, 0"
            " receipts)"
        )
        assert checks["evm-index"]["error"] == reason
        assert checks["evm-index"]["message"][name]["height"] == "6"
        ready = await get_json(f"{url}/ready")
        assert reason in ready["degraded"]
        assert ready["index"][id_text(intact.blockchain_id)]["height"] == "12"
        daemon.terminate()
        assert await daemon.ended() == 0
