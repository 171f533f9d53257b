"""`warpseal serve` without a config file: the nodes of a network, a node, and EVM chains by the URL
of their RPC.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_main import NODE, exit_code
from tests.cli.test_main import _no_settings_of_this_machine as _no_settings_of_this_machine
from tests.cli.test_serve_index import get_json
from tests.eventually import until
from tests.indexer.evm_chains import transfer_blocks
from tests.indexer.evm_node import EvmReplayNode, serving_evm
from tests.integration.daemon import run_network
from tests.integration.process import run_command, start_command
from warpseal.cli.evm_chain import find_blockchain_id
from warpseal.errors import StartupError
from warpseal.warp.ids import ID_BYTES, id_text
from warpseal.warp.message import WARP_PRECOMPILE
from warpseal_simnet.plan import Plan

EVM_CHAIN_ID = 99_999
OWN_ID = id_text(EVM_CHAIN_ID.to_bytes(ID_BYTES, "big"))


def settings(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Return the values and the sources that `config check` prints."""
    assert exit_code("config", "check", *arguments) == 0
    rows = [
        line.split(maxsplit=1)
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("  ")
    ]
    return {row[0]: json.JSONDecoder().raw_decode(row[1])[0] for row in rows}


@pytest.mark.parametrize(
    ("flags", "node"),
    [
        (("--network", "fuji"), "https://api.avax-test.network:443"),
        (("--network", "mainnet"), "https://api.avax.network:443"),
        (("--node", "http://127.0.0.1:9650"), "http://127.0.0.1:9650"),
    ],
)
def test_one_flag_names_the_nodes(
    flags: tuple[str, ...], node: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = settings(capsys, *flags)
    assert (values["p-chain-api"], values["info-api"]) == ([node], [node])
    # A flag wins over the file, and the flag of a key over the short one.
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"p-chain-api": NODE, "info-api": NODE}))
    values = settings(capsys, str(file), *flags, "--info-api", "http://127.0.0.1:9")
    assert (values["p-chain-api"], values["info-api"]) == ([node], ["http://127.0.0.1:9"])


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (
            ("--network", "fuji", "--node", "http://127.0.0.1:9650"),
            "not allowed with argument --network",
        ),
        (("--network", "fujii"), "did you mean fuji?"),
        (("--node", "127.0.0.1:9650"), "write http://127.0.0.1:9650"),
        (("--node", "http://127.0.0.1:9650/ext/bc/P"), "use http://127.0.0.1:9650"),
        (("--evm", "ftp://127.0.0.1"), "expected http:// or https://"),
    ],
)
def test_a_wrong_flag_is_wrong_usage(
    flags: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("serve", *flags) == 2
    assert reason in capsys.readouterr().err


async def test_the_id_of_a_chain_is_of_its_url_else_its_warp_contract_else_evm_chain_id() -> None:
    in_url, in_contract = bytes([1]) * 32, bytes([2]) * 32
    replies: dict[str, bytes | None] = {
        "warp": in_contract,
        "no-warp": b"",
        "refuses": None,
        "zero": bytes(32),
    }
    # The URL has the id: no node is called.
    for text in (id_text(in_url), f"0x{in_url.hex()}"):
        assert find_blockchain_id(f"http://127.0.0.1:9/ext/bc/{text}/rpc") == in_url
    results: dict[str, bytes | str] = {}
    for name, reply in replies.items():
        node = EvmReplayNode(transfer_blocks(1), call=lambda to, data, block, reply=reply: reply)  # type: ignore[misc]
        async with serving_evm(node):
            try:
                results[name] = await asyncio.to_thread(
                    find_blockchain_id, f"{node.url}/ext/bc/C/rpc"
                )
            except StartupError as error:
                results[name] = str(error)
    assert (results["warp"], results["no-warp"]) == (in_contract, EVM_CHAIN_ID.to_bytes(32, "big"))
    # A guess would begin another index.
    assert "does not say which chain it serves: " in str(results["refuses"])
    assert "reports 0 as the id of its chain" in str(results["zero"])


async def test_a_devnet_is_indexed_by_its_url_alone(tmp_path: Path) -> None:
    addresses: list[bytes] = []

    def call(to: bytes, data: bytes, block: object) -> bytes:
        addresses.append(to)
        return b""

    devnet = EvmReplayNode(transfer_blocks(6), call=call)
    async with run_network(Plan(validators=4, l1s=())) as network, serving_evm(devnet):
        nodes = ("--node", network.node_uri, "--evm", devnet.url, "--data-dir", tmp_path / "data")
        ports = (
            "--api-host",
            "127.0.0.1",
            "--api-port",
            0,
            "--metrics-port",
            0,
            "--allow-private-ips",
            "true",
        )
        async with start_command(
            "serve", *nodes, *ports, "--index-low-priority", "false"
        ) as daemon:
            url, _ = await daemon.listening()

            async def is_indexed() -> bool:
                ended = await run_command("index", "status", *nodes, "--json")
                chains = json.loads(ended.stdout)["chains"] if ended.code == 0 else []
                return [(chain["chain"], chain.get("height")) for chain in chains] == [(OWN_ID, 6)]

            await until(is_indexed)
            (chain,) = (await get_json(f"{url}/v1/chains"))["chains"]
            assert (chain["chainId"], chain["platformChainId"]) == (str(EVM_CHAIN_ID), OWN_ID)
            assert (await get_json(f"{url}/v1/chains/{EVM_CHAIN_ID}/blocks/1"))[
                "blockNumber"
            ] == "1"
            daemon.terminate()
            assert await daemon.ended() == 0
        assert WARP_PRECOMPILE in addresses
