"""The daemon in front of a real EVM node: forwarded calls, published heads, and responses derived
from its state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.eventually import TIMEOUT_S, until
from tests.forwarding.evm.anvil import Anvil, anvil
from tests.forwarding.evm.evm import open_proxy, recorded_config
from tests.forwarding.evm.test_anvil import FEE_MANAGER_CODE, FIRST, SECOND
from tests.forwarding.evm.test_daemon_derived import ask, blockchain_id, file_of
from tests.integration.daemon import Daemon, build_config, run_daemon
from tests.recorded.recording import RECORDING
from warpseal.forwarding.evm.subnet_evm import FEE_MANAGER_ADDRESS
from warpseal_simnet.recorded import recorded_network

CHAIN = blockchain_id("l1-0")
UPGRADES = {
    "precompileUpgrades": [{"feeManagerConfig": {"blockTimestamp": 1, "adminAddresses": [FIRST]}}]
}


@asynccontextmanager
async def fronting(node: Anvil, folder: Path, *rpc: str, **keys: object) -> AsyncIterator[Daemon]:
    """Run a daemon in front of a node.

    rpc: its URLs, where they are not its own.
    """
    entry = {"blockchain-id": CHAIN, "rpc": list(rpc or (node.url,)), "ws": [node.ws]}
    chain = {**entry, "upgrade-file": file_of(folder, UPGRADES)}
    settings = {name.replace("_", "-"): value for name, value in keys.items()}
    async with recorded_network(RECORDING) as network:
        config = build_config(network, folder, {"evm-chains": [chain], **settings})
        async with run_daemon(config) as daemon:
            yield daemon


async def result(daemon: Daemon, method: str, *params: Any) -> Any:
    return (await ask(daemon, CHAIN, method, list(params)))[0]


async def test_calls_batches_writes_and_heads_of_a_real_node(tmp_path: Path) -> None:
    async with anvil() as node, fronting(node, tmp_path) as daemon:
        assert await result(daemon, "eth_chainId") == "0x7a69"
        url = f"{daemon.api_url}/ext/bc/{CHAIN}"
        async with daemon.session.ws_connect(url + "/ws") as client:
            await client.send_json(
                {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}
            )
            subscription = (await client.receive_json(timeout=TIMEOUT_S))["result"]
            send = {"from": FIRST, "to": SECOND, "value": "0x1"}
            batch = [
                {"jsonrpc": "2.0", "id": "w", "method": "eth_sendTransaction", "params": [send]},
                {"jsonrpc": "2.0", "id": "d", "method": "debug_traceTransaction", "params": []},
                {
                    "jsonrpc": "2.0",
                    "id": "r",
                    "method": "eth_getBalance",
                    "params": [SECOND, "latest"],
                },
            ]
            async with daemon.session.post(url + "/rpc", json=batch) as reply:
                replies = await reply.json()
            assert [response["id"] for response in replies] == ["w", "d", "r"]
            assert replies[1]["error"]["code"] == -32601
            await result(daemon, "evm_mine")
            head = await client.receive_json(timeout=TIMEOUT_S)
            assert head["params"]["subscription"] == subscription
            assert head["params"]["result"]["number"] == "0x1"
        receipt = await result(daemon, "eth_getTransactionReceipt", replies[0]["result"])
        assert receipt["status"] == "0x1"


async def test_the_state_of_a_fee_manager_is_read_at_the_requested_block(tmp_path: Path) -> None:
    async with anvil() as node, fronting(node, tmp_path) as daemon:
        await result(daemon, "evm_mine")
        await result(daemon, "anvil_setCode", FEE_MANAGER_ADDRESS, FEE_MANAGER_CODE)
        fees, source = await ask(daemon, CHAIN, "eth_feeConfig", ["latest"])
        assert source == "derived"
        assert list(fees["feeConfig"].values()) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert fees["lastChangedAt"] == 3
        assert await result(daemon, "eth_feeConfig", "0x1") == fees
        assert await result(daemon, "eth_feeConfig", "0x99") == (
            -32000,
            "cannot query unfinalized data",
        )
        code, _ = await result(daemon, "eth_feeConfig", "0x0")
        assert code == -32000, "there was no state of it yet"
        active = await result(daemon, "eth_getActivePrecompilesAt", 1)
        assert active["feeManagerConfig"]["adminAddresses"] == [FIRST.lower()]
        chain_config = await result(daemon, "eth_getChainConfig")
        assert chain_config["upgrades"] == recorded_config("l1-0", UPGRADES).as_json()["upgrades"]


async def test_an_evm_chain_fails_over_between_two_nodes_and_health_reports_it(
    tmp_path: Path,
) -> None:
    async with (
        anvil() as node,
        open_proxy(node.port) as first_proxy,
        open_proxy(node.port) as second_proxy,
    ):
        urls = tuple(proxy.url.removesuffix("/rpc") for proxy in (first_proxy, second_proxy))
        async with fronting(node, tmp_path, *urls, health_check_frequency="1s") as daemon:
            assert await result(daemon, "eth_blockNumber") == "0x0"
            first_proxy.cut()
            for _ in range(5):
                assert await result(daemon, "eth_blockNumber") == "0x0"
            second_proxy.cuts_replies = True
            unsure = (-32000, "the node did not answer; it may have done what it was asked")
            assert await result(daemon, "evm_mine") == unsure
            second_proxy.cut()

            async def is_unhealthy() -> bool:
                check = (await daemon.get("/ext/health")).body["checks"].get(f"evm-{CHAIN}", {})
                return "no node of this chain can be reached" in check.get("error", "")

            await until(is_unhealthy)


async def test_a_node_of_another_chain_is_refused_and_health_reports_it(tmp_path: Path) -> None:
    async with anvil() as node, anvil("--chain-id", "5") as other:  # noqa: SIM117
        async with fronting(
            node, tmp_path, node.url, other.url, health_check_frequency="1s"
        ) as daemon:

            async def is_reported() -> bool:
                check = (await daemon.get("/ext/health")).body["checks"].get(f"evm-{CHAIN}", {})
                return "rpc[1] is of another chain: chain id 5" in check.get("error", "")

            await until(is_reported)
            assert await result(daemon, "eth_chainId") == "0x7a69"
