"""The running daemon on the recorded network: derived responses, API keys and rate limits."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.eventually import TIMEOUT_S
from tests.forwarding.evm.evm import (
    CHAIN,
    Node,
    capture_all_logs,
    exchanges,
    missing,
    recorded,
    replay,
)
from tests.forwarding.evm.evm import serve_node as serving
from tests.forwarding.evm.test_subnet_evm import L1S, expected, rows
from tests.integration.daemon import Daemon, build_config, run_daemon
from tests.recorded.recording import RECORDING
from warpseal.cli.main import main
from warpseal.forwarding.evm.methods import SUBNET_EVM
from warpseal.warp.ids import id_text
from warpseal_simnet.recorded import recorded_network


def blockchain_id(chain: str) -> str:
    return next(
        str(row["blockchainID"])
        for row in recorded()
        if row.get("chain") == chain and "genesis" in row
    )


def file_of(folder: Path, upgrades: object) -> str:
    """Write an upgrade file and return its path."""
    folder.mkdir(exist_ok=True)
    file = folder / "upgrade.json"
    file.write_text(json.dumps(upgrades))
    return str(file)


@asynccontextmanager
async def fronting(
    folder: Path, nodes: Mapping[str, Node], **keys: object
) -> AsyncIterator[Daemon]:
    """Run a daemon on the recorded network, in front of a node for each blockchain id; all upgrade
    files are empty.
    """
    upgrade_file = file_of(folder, {})
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(recorded_network(RECORDING))
        chains = []
        for chain_id, node in nodes.items():
            await stack.enter_async_context(serving(node))
            ws = node.url.replace("http", "ws", 1).replace("/rpc", "/ws")
            entry = {"blockchain-id": chain_id, "rpc": [node.url], "ws": [ws]}
            chains.append({**entry, "upgrade-file": upgrade_file})
        settings = {name.replace("_", "-"): value for name, value in keys.items()}
        config = build_config(network, folder, {"evm-chains": chains, **settings})
        yield await stack.enter_async_context(run_daemon(config))


async def ask(
    daemon: Daemon, chain_id: str, method: str, params: list[Any]
) -> tuple[Any, str | None]:
    """Return the outcome of a call, and who it is from."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reply = await daemon.post(f"/ext/bc/{chain_id}/rpc", body)
    assert reply.status == 200
    reply_error = reply.body.get("error")
    outcome = (reply_error["code"], reply_error["message"]) if reply_error else reply.body["result"]
    return outcome, reply.headers.get("x-warpseal-source")


async def test_derived_responses_equal_every_recorded_response(tmp_path: Path) -> None:
    for source in ("derived", "node"):
        lacks = SUBNET_EVM if source == "derived" else ()
        nodes = {blockchain_id(chain): Node(rule=replay(chain, *lacks)) for chain in L1S}
        async with fronting(tmp_path / source, nodes) as daemon:
            for chain in L1S:
                for row in rows(chain):
                    response = await ask(daemon, blockchain_id(chain), row["method"], row["params"])
                    assert response == (expected(row), source), row


@pytest.mark.parametrize("lacks", [(), SUBNET_EVM], ids=["node", "derived"])
async def test_timestamps_may_be_text_in_node_and_derived_responses(
    tmp_path: Path, lacks: tuple[str, ...]
) -> None:
    chain_id, moment = blockchain_id("l1-0"), 1795226806
    refusal = (
        -32602,
        "invalid argument 0: json: cannot unmarshal string into Go value of type uint64",
    )
    async with fronting(tmp_path, {chain_id: Node(rule=replay("l1-0", *lacks))}) as daemon:
        for method in ("eth_getActiveRulesAt", "eth_getActivePrecompilesAt"):
            now, then = [
                (await ask(daemon, chain_id, method, params))[0] for params in ([], [moment])
            ]
            for text, expected in (
                ("latest", now),
                (str(moment), then),
                (hex(moment), then),
                ("soon", refusal),
            ):
                assert (await ask(daemon, chain_id, method, [text]))[0] == expected, text


async def test_derived_responses_keep_their_place_in_a_batch_and_work_on_a_websocket(
    tmp_path: Path,
) -> None:
    chain_id = blockchain_id("l1-0")
    node = Node(rule=replay("l1-0", *SUBNET_EVM))
    expected = [
        exchanges("l1-0", method)[0]["result"] for method in ("eth_getChainConfig", "eth_feeConfig")
    ]
    methods = (
        "eth_getChainConfig",
        "eth_chainId",
        "eth_feeConfig",
        "debug_x",
        "eth_getActiveRulesAt",
    )
    batch = [
        {"jsonrpc": "2.0", "id": f"n{n}", "method": method, "params": []}
        for n, method in enumerate(methods)
    ]
    async with fronting(tmp_path, {chain_id: node}) as daemon:
        url = f"{daemon.api_url}/ext/bc/{chain_id}"
        async with daemon.session.post(url + "/rpc", json=batch) as reply:
            responses = [await reply.json()]
            assert reply.headers["x-warpseal-source"] == "derived"
        async with daemon.session.ws_connect(url + "/ws") as client:
            await client.send_json(batch)
            responses.append(await client.receive_json(timeout=TIMEOUT_S))
        for replies in responses:
            assert [response["id"] for response in replies] == ["n0", "n1", "n2", "n3", "n4"]
            assert [replies[0]["result"], replies[2]["result"]] == expected
            assert replies[1]["result"] == "0x3039"
            assert replies[3]["error"]["code"] == -32601
            assert replies[4]["result"]["avalancheRules"]["IsSubnetEVM"] is True


async def test_a_chain_of_another_vm_keeps_the_refusal_of_its_node(tmp_path: Path) -> None:
    node = Node(replies={"eth_feeConfig": missing("eth_feeConfig")})
    async with fronting(tmp_path, {id_text(CHAIN): node}) as daemon:
        refusal = (-32601, "the method eth_feeConfig does not exist/is not available")
        assert await ask(daemon, id_text(CHAIN), "eth_feeConfig", []) == (refusal, "node")


async def test_callers_without_a_key_have_limits_that_count_each_entry(tmp_path: Path) -> None:
    chain_id = blockchain_id("l1-0")
    limits = {"rate_limit_per_minute": 5, "rate_limit_loopback": True}
    async with fronting(tmp_path, {chain_id: Node(rule=replay("l1-0"))}, **limits) as daemon:
        url = f"{daemon.api_url}/ext/bc/{chain_id}"
        batch = [
            {"jsonrpc": "2.0", "id": n, "method": "eth_chainId", "params": []} for n in range(4)
        ]
        async with daemon.session.post(url + "/rpc", json=batch) as reply:
            assert reply.status == 200
        async with daemon.session.post(url + "/rpc", json=batch) as reply:
            assert reply.status == 429
            assert int(reply.headers["retry-after"]) > 0
            assert [
                (response["id"], response["error"]["code"]) for response in await reply.json()
            ] == [(n, -32005) for n in range(4)]
        async with daemon.session.ws_connect(url + "/ws") as client:
            await client.send_json(batch[0])
            assert (await client.receive_json(timeout=TIMEOUT_S))["error"]["code"] == -32005
        with pytest.raises(aiohttp.WSServerHandshakeError) as error:
            await daemon.session.ws_connect(url + "/ws")
        assert error.value.status == 429
        assert error.value.headers is not None
        assert int(error.value.headers["retry-after"]) > 0


async def test_a_key_in_the_query_authorizes_a_wallet_and_is_not_forwarded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain_id, node = blockchain_id("l1-0"), Node(rule=replay("l1-0"))
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
    with capture_all_logs() as log:
        async with fronting(tmp_path, {chain_id: node}, require_api_key=True) as daemon:
            await daemon.until_ready()
            assert main(["key", "create", "wallet", "--data-dir", str(tmp_path / "data")]) == 0
            key = capsys.readouterr().out.strip()
            url = f"{daemon.api_url}/ext/bc/{chain_id}"
            for query, status in (("", 401), ("?apikey=nope", 403), (f"?apikey={key}", 200)):
                async with daemon.session.post(f"{url}/rpc{query}", json=call) as reply:
                    assert reply.status == status
            async with daemon.session.ws_connect(f"{url}/ws?apikey={key}") as client:
                await client.send_json(call)
                assert (await client.receive_json(timeout=TIMEOUT_S))["result"] == "0x3039"
            for query, status in (("", 401), ("?apikey=nope", 403)):
                with pytest.raises(aiohttp.WSServerHandshakeError) as error:
                    await daemon.session.ws_connect(f"{url}/ws{query}")
                assert error.value.status == status
    assert f"/ext/bc/{chain_id}/rpc" in log.getvalue()
    assert key not in log.getvalue()
    assert key not in json.dumps([dict(headers) for headers in node.headers])
    assert not any(key.encode() in body for body in node.bodies)
