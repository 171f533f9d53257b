"""In endpoint of a real EVM node: calls, batches, writes, filters, subscriptions, failover, the fee
manager's state.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from tests.eventually import TIMEOUT_S
from tests.forwarding.evm.anvil import anvil
from tests.forwarding.evm.evm import call_in_batch, open_chain, open_proxy, recorded_config
from tests.forwarding.evm.test_endpoint import serve_chain
from warpseal.forwarding.evm.subnet_evm import FEE_MANAGER_ADDRESS

FIRST = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
SECOND = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
# Eight words, 1 to 8, for getFeeConfig(); the word 3 for anything else.
_WORDS = "".join(f"60{number + 1:02x}60{32 * number:02x}52" for number in range(8))
FEE_MANAGER_CODE = (
    f"0x60003560e01c635fbbc0d2146019576003600052602060 00f35b{_WORDS}6101006000f3".replace(" ", "")
)


async def test_calls_batches_and_writes_reach_a_real_node() -> None:
    async with anvil() as node, serve_chain(node.url) as endpoint:
        assert (await endpoint.rpc(("eth_chainId", []))).json["result"] == "0x7a69"
        send = {"from": FIRST, "to": SECOND, "value": "0x1"}
        batch = (
            await endpoint.rpc(
                ("eth_blockNumber", []), ("eth_sendTransaction", [send]), ("debug_x", [])
            )
        ).json
        assert batch[0]["result"] == "0x0"
        assert batch[2]["error"]["code"] == -32601
        assert (await endpoint.rpc(("eth_getTransactionByHash", [batch[1]["result"]]))).json[
            "result"
        ]["to"].lower() == SECOND.lower()
        filter_id = (await endpoint.rpc(("eth_newPendingTransactionFilter", []))).json["result"]
        assert (await endpoint.rpc(("eth_getFilterChanges", [filter_id]))).json["result"] == []


async def test_heads_are_published_on_a_websocket() -> None:
    async with (
        anvil() as node,
        serve_chain(node.url, ws=(node.ws,)) as endpoint,
        AsyncExitStack() as stack,
    ):
        client = await stack.enter_async_context(endpoint.socket())
        await client.send_json(
            {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}
        )
        subscription = (await client.receive_json(timeout=TIMEOUT_S))["result"]
        await endpoint.rpc(("evm_mine", []))
        head = await client.receive_json(timeout=TIMEOUT_S)
        assert head["params"]["subscription"] == subscription
        assert head["params"]["result"]["number"] == "0x1"


async def test_an_evm_chain_fails_over_between_two_nodes() -> None:
    async with (
        anvil() as node,
        open_proxy(node.port) as first_proxy,
        open_proxy(node.port) as second_proxy,
    ):
        urls = (first_proxy.url.removesuffix("/rpc"), second_proxy.url.removesuffix("/rpc"))
        async with serve_chain(*urls) as endpoint:
            tasks = [asyncio.create_task(endpoint.rpc(("eth_blockNumber", []))) for _ in range(20)]
            first_proxy.cut()
            assert {(await reply).json["result"] for reply in tasks} == {"0x0"}
            assert (await endpoint.rpc(("eth_gasPrice", []))).status == 200
            second_proxy.cut()
            assert (await endpoint.rpc(("eth_gasPrice", []))).json["error"]["code"] == -32000


async def rpc(url: str, method: str, *params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
        return (await reply.json())["result"]


async def test_the_state_of_a_fee_manager_is_read() -> None:
    enabled = {"precompileUpgrades": [{"feeManagerConfig": {"blockTimestamp": 1}}]}
    async with (
        anvil() as node,
        open_chain(node.url, config=recorded_config("l1-0", enabled)) as endpoint,
    ):
        await rpc(node.url, "anvil_setCode", FEE_MANAGER_ADDRESS, FEE_MANAGER_CODE)
        fees = await call_in_batch(endpoint.forwarder, "eth_feeConfig", "latest")
        assert list(fees["feeConfig"].values()) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert fees["lastChangedAt"] == 3
        assert "feeManagerConfig" in await call_in_batch(
            endpoint.forwarder, "eth_getActivePrecompilesAt"
        )
