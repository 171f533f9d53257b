"""The commands of `warpseal index` as processes: `run`, `status` and `verify`."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from msgspec.structs import replace

from tests.chains.p_vectors import genesis_bytes
from tests.eventually import until
from tests.index.evm import fixtures as evm
from tests.index.evm.histories import History
from tests.index.evm.test_histories import write
from tests.indexer.replay import ReplayNode, serving
from tests.indexer.rows import query, rows
from tests.integration.process import ABSENT_NODES, run_command, start_command
from warpseal.cli.index import describe_chain
from warpseal.cli.main import main
from warpseal.indexer.verify import IndexFinding
from warpseal.resources.progress import NOT_BEGUN, ChainProgress

P_CHAIN = ChainProgress(chain="p-chain", height=50, node_height=100, block_time=1_000)


def config_file(folder: Path, node: ReplayNode, **more: object) -> Path:
    """Return a config file that indexes everything of a node."""
    genesis = folder / "genesis.zst"
    genesis.write_bytes(zstandard.compress(genesis_bytes("localnet")))
    api = {"base-url": node.url}
    keys = {
        "p-chain-api": api,
        "info-api": api,
        "data-dir": str(folder / "data"),
        "index-chains": ["p", "x", "c"],
    }
    file = folder / "config.json"
    # At low priority it would not run while other tests run.
    own = {"genesis-file": str(genesis), "index-low-priority": False}
    file.write_text(json.dumps(keys | own | more))
    return file


async def run_index(*arguments: object) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    ended = await run_command("index", *arguments)
    return ended.code, ended.stdout + ended.stderr


def read_heights(config: Path) -> list[int]:
    """Return the indexed heights of the chains."""
    folder = Path(json.loads(config.read_text())["data-dir"]) / "88888"
    if not (folder / "index.db").exists():
        return []
    with suppress(sqlite3.OperationalError):
        return [row[0] for row in query(folder, "SELECT height FROM chains ORDER BY chain")]
    return []


async def until_indexed(config: Path, expected: list[int]) -> None:
    """Wait until the index has these heights of its chains."""
    await until(lambda: read_heights(config) == expected)


async def test_index_run_continues_after_kill_9_and_exits_with_0_on_sigterm(tmp_path: Path) -> None:
    node = ReplayNode(tips={"P": 9, "X": 4, "C": 7})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(node))
        config = config_file(tmp_path, node)
        first = await stack.enter_async_context(start_command("index", "run", "--config", config))
        await until_indexed(config, [9, 4, 7])
        first.kill()
        await first.ended()
        node.tips.clear()
        second = await stack.enter_async_context(start_command("index", "run", "--config", config))
        assert (await second.read_line()).startswith(
            "warpseal is indexing: network=88888 index=sqlite:///"
        )
        code, output = await run_index("run", "--config", config)
        assert (code, output.startswith(f"warpseal: process {second.pid} fills the index")) == (
            1,
            True,
        )
        code, output = await run_index("rebuild", "--config", config)
        assert (code, output.startswith(f"warpseal: process {second.pid} fills the index")) == (
            1,
            True,
        )
        await until_indexed(config, [19, 13, 10])
        code, output = await run_index("status", "--config", config, "--json")
        chains = json.loads(output)["chains"]
        assert (code, [(chain["height"], chain["nodeHeight"]) for chain in chains]) == (
            0,
            [(19, 19), (13, 13), (10, 10)],
        )
        second.terminate()
        assert await second.ended() == 0
        code, output = await run_index("verify", "--config", config, "--sample", "4")
        assert (code, output.splitlines()[-1][-8:]) == (0, " 0 wrong"), output
        folder = tmp_path / "data" / "88888"
        before, sets = rows(folder), query(folder, "SELECT * FROM set_changes")
        with sqlite3.connect(folder / "index.db") as database:
            for table in ("set_members", "set_changes", "set_snapshots"):
                database.execute(f"DELETE FROM {table}")
        node.call_counts.clear()
        code, output = await run_index("rebuild", "--config", config)
        assert (code, output.startswith("rebuilt the rows of sqlite:///")) == (0, True), output
        assert (rows(folder), query(folder, "SELECT * FROM set_changes")) == (before, sets)
        assert not {name for name in node.call_counts if "Block" in name or "Container" in name}


def test_rebuild_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rebuild = ["index", "rebuild", "--data-dir", str(tmp_path), *ABSENT_NODES]
    assert main(rebuild) == 1
    assert "no index process has used" in capsys.readouterr().err
    assert main([*rebuild, "--network", "5"]) == 1
    assert "5/index.db" in capsys.readouterr().err
    for network in ("1", "5"):
        (tmp_path / network).mkdir()
        (tmp_path / network / "index.db").touch()
    assert main(rebuild) == 1
    assert "choose one with --network" in capsys.readouterr().err
    assert main([*rebuild, "--network", "5"]) == 1
    assert "schema version None" in capsys.readouterr().err


async def test_status_names_a_chain_that_waits_and_why(tmp_path: Path) -> None:
    node = ReplayNode(tips={"P": 9, "C": 7}, replies={"avm.getHeight": "nonsense"})
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(node))
        config = config_file(tmp_path, node)
        await stack.enter_async_context(start_command("index", "run", "--config", config))
        await until_indexed(config, [9, 7])
        chains: dict[str, dict[str, Any]] = {}

        async def is_waiting() -> bool:
            _, output = await run_index("status", "--config", config, "--json")
            chains.update({chain["chain"]: chain for chain in json.loads(output)["chains"]})
            waiting: str = chains["x-chain"].get("waiting", "")
            return waiting.startswith("no node answers: node 0: avm.getHeight: ")

        await until(is_waiting)
        assert chains["p-chain"]["height"] == 9
        assert "waiting" not in chains["p-chain"]
        node.replies.clear()
        await until_indexed(config, [9, 13, 7])
        _, output = await run_index("status", "--config", config)
        assert "chain x-chain, height 13" in output


def test_a_chain_that_waits_for_minutes_has_the_time_in_its_line() -> None:
    description = describe_chain(replace(P_CHAIN, waiting="no node answers", waiting_since=880))
    assert (description["waiting"], description["waitingSince"]) == (
        "no node answers",
        "1970-01-01T00:14:40Z",
    )


def test_the_pace_of_an_indexer_that_no_longer_reports_is_not_shown() -> None:
    now = int(time.time())
    running = replace(P_CHAIN, blocks_per_s=5.0, eta_s=10.0, updated_at=now)
    description = describe_chain(running)
    assert (description["blocksPerSecond"], description["etaSeconds"]) == (5.0, 10)
    stopped = describe_chain(replace(running, updated_at=now - 120))
    assert "blocksPerSecond" not in stopped
    assert stopped["waiting"].startswith("the indexer does not run: its last report is 12")


def test_a_chain_that_the_indexer_has_not_begun_with_waits_for_it() -> None:
    assert describe_chain(ChainProgress(chain="x-chain", waiting=NOT_BEGUN)) == {
        "chain": "x-chain",
        "waiting": "the indexer has not begun with this chain",
    }


def damage(config: Path, pages: slice) -> Path:
    """Overwrite pages of the index; return its path."""
    path = Path(json.loads(config.read_text())["data-dir"]) / "88888" / "index.db"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    for page in range(len(content) // 4096)[pages]:
        content[page * 4096 : (page + 1) * 4096] = b"x" * 4096
    path.write_bytes(content)
    return path


async def stopped_index(stack: AsyncExitStack, folder: Path) -> Path:
    """Index everything of a node, which runs on, and stop; return the config file."""
    node = ReplayNode()
    await stack.enter_async_context(serving(node))
    config = config_file(folder, node)
    async with start_command("index", "run", "--config", config) as indexer:
        await until_indexed(config, [19, 13, 10])
        indexer.terminate()
        await indexer.ended()
    return config


async def test_a_damaged_index_is_reported_in_one_sentence_until_it_is_made_again(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        config = await stopped_index(stack, tmp_path)
        path = damage(config, slice(None))
        for command in ("verify", "status"):
            code, output = await run_index(command, "--config", config)
            (sentence,) = [line for line in output.splitlines() if line.startswith("warpseal: ")]
            assert (code, sentence.startswith("warpseal: index_damaged: sqlite://")) == (1, True), (
                sentence
            )
            assert f"delete {path}, {path}-wal and {path}-shm" in sentence
            assert "Traceback" not in output
        second = await stack.enter_async_context(start_command("index", "run", "--config", config))
        damage_line = await second.until_logged("index is damaged")
        for name in ("index.db", "index.db-wal", "index.db-shm"):
            path.with_name(name).unlink(missing_ok=True)
        await until_indexed(config, [19, 13, 10])
        second.terminate()
        assert await second.ended() == 0
        later = "".join(second.stderr).partition(damage_line)[2]
        assert ("index is damaged" in later, "Traceback" in later) == (False, False)


async def test_damage_that_only_the_indexer_meets_is_in_the_status_of_every_chain(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        config = await stopped_index(stack, tmp_path)
        # The index of the table of stored blocks, which only a writer reads.
        damage(config, slice(2, 3))
        second = await stack.enter_async_context(start_command("index", "run", "--config", config))
        await second.until_logged("the index is damaged")

        async def is_reported() -> bool:
            code, output = await run_index("status", "--config", config)
            return (code, output.count("stopped index_damaged")) == (1, 3)

        await until(is_reported)
        assert len([line for line in second.stderr if "damaged" in line]) == 1


async def test_verify_finds_damaged_pages(tmp_path: Path) -> None:
    node = ReplayNode()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(node))
        config = config_file(tmp_path, node)
        indexer = await stack.enter_async_context(start_command("index", "run", "--config", config))
        await until_indexed(config, [19, 13, 10])
        indexer.terminate()
        await indexer.ended()
        damage(config, slice(20, None))
        code, output = await run_index("verify", "--config", config)
        assert (code, output.splitlines()[-1].startswith("warpseal: index_damaged: ")) == (1, True)


async def test_verify_fails_at_once_without_an_index_or_if_no_node_answers(tmp_path: Path) -> None:
    node = ReplayNode()
    async with serving(node):
        config = config_file(tmp_path, node)
        code, output = await run_index("verify", "--config", config)
    assert (code, output.splitlines()[-1].startswith("warpseal: no index in ")) == (1, True)
    code, output = await run_index("verify", "--config", config)
    assert (code, output.splitlines()[-1].startswith("warpseal: ")) == (1, True)
    assert "info.getNetworkID" in output


async def test_the_index_process_has_the_lowest_priority_by_default(tmp_path: Path) -> None:
    async with serving(ReplayNode()) as node, AsyncExitStack() as stack:
        config = config_file(tmp_path, node, **{"index-low-priority": True})
        process = await stack.enter_async_context(start_command("index", "run", "--config", config))
        await process.read_line()
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE


async def test_the_index_process_keeps_its_priority_if_index_low_priority_is_off(
    tmp_path: Path,
) -> None:
    async with (
        serving(ReplayNode()) as node,
        start_command("index", "run", "--config", config_file(tmp_path, node)) as process,
    ):
        await process.read_line()
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER


async def test_the_index_process_exits_when_its_standard_input_closes(tmp_path: Path) -> None:
    async with (
        serving(ReplayNode()) as node,
        start_command(
            "index", "run", "--config", config_file(tmp_path, node), "--ends-with-stdin"
        ) as process,
    ):
        await process.read_line()
        process.stdin.close()
        assert await process.ended() == 0


async def test_index_run_fails_if_index_chains_is_empty(tmp_path: Path) -> None:
    async with serving(ReplayNode()) as node:
        code, output = await run_index(
            "run", "--config", config_file(tmp_path, node, **{"index-chains": []})
        )
    assert (code, "there is nothing to index" in output) == (1, True)


def findings(chain: str, compared: int, others: int, **fields: Any) -> list[IndexFinding]:
    """Return findings of a chain, of which some were not compared."""
    whole = [IndexFinding(f"{chain}: block {number}", chain=chain) for number in range(compared)]
    return whole + [
        IndexFinding(
            f"{chain}: token {number}", is_compared=False, reason="no node", chain=chain, **fields
        )
        for number in range(others)
    ]


@pytest.mark.parametrize(
    ("findings", "code", "last"),
    [
        (findings("", 9, 0) + findings("C", 1, 16), 3, "not enough compared: 1 of 17 of C"),
        (findings("", 1, 3), 3, "not enough compared: 1 of 4 of the primary chains"),
        (findings("C", 8, 8), 0, "8 of 16 compared, 0 wrong"),
        (findings("C", 1, 16, is_comparable=False), 0, "1 of 17 compared, 0 wrong"),
        (findings("C", 0, 2), 1, "0 of 2 compared, 0 wrong"),
        (
            [*findings("C", 1, 16), IndexFinding("C: block 3", "hash differs", chain="C")],
            1,
            "2 of 18 compared, 1 wrong",
        ),
    ],
)
def test_verify_says_if_not_enough_was_compared_and_exits_with_3(
    findings: list[IndexFinding],
    code: int,
    last: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def verified(*_: Any) -> tuple[IndexFinding, ...]:
        return tuple(findings)

    monkeypatch.setattr("warpseal.cli.index.verify_index", verified)
    assert main(("index", "verify", "--data-dir", str(tmp_path), *ABSENT_NODES)) == code
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_verify_prints_one_note_for_a_contract_and_no_controls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remarks = [
        IndexFinding(f"C: token {n}", remark="it says \x1b[31m", contract="0xaa", chain="C")
        for n in range(3)
    ]
    single = IndexFinding("C: token 9", remark="another", contract="0xbb", chain="C")

    async def verified(*_: Any) -> tuple[IndexFinding, ...]:
        return (*remarks, single)

    monkeypatch.setattr("warpseal.cli.index.verify_index", verified)
    assert main(("index", "verify", "--data-dir", str(tmp_path), *ABSENT_NODES)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NOTE   C: contract 0xaa: 3 holdings, such as C: token 0: it says ?[31m",
        "NOTE   C: token 9: another",
        "4 of 4 compared, 0 wrong",
    ]


def test_status_of_an_evm_chain_names_the_first_block_that_no_node_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/index.db"
    with evm.open_writer(url) as writer:
        write(writer, History(5).blocks(10))
        writer.traces.write(0, 9, [], [3, 4])
    place = ("--index-url", url, "--data-dir", str(tmp_path))
    assert main(("index", "status", "--json", "--chain", "43112", *place, *ABSENT_NODES)) == 0
    (chain,) = json.loads(capsys.readouterr().out)["chains"]
    assert chain["internalHeight"] == 2
    assert chain["internalGap"].startswith("no node traces block 3: one with pruning-enabled false")
