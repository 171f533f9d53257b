"""The head that a client sees never goes back: lagging nodes are not called while another node is
up.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from tests.eventually import stopped_clock
from tests.forwarding.evm.evm import (
    GENESIS_HASH,
    SETTINGS,
    Node,
    call,
    call_in_batch,
    open_chain,
    open_proxy,
    serve_node,
)
from tests.forwarding.evm.test_forwarder import single
from warpseal.forwarding.evm.methods import head_in, reveals_head
from warpseal.upstream.pool import HeadGrowth


def node_at(height: int, name: str) -> Node:
    """Return a node that is so far and reveals_head its name as the price of gas."""
    node = Node(replies={"eth_gasPrice": name})

    def rule(method: str, params: list[Any]) -> Any:
        genesis = {"number": "0x0", "hash": GENESIS_HASH}
        latest = {"number": hex(height), "hash": "0x" + "22" * 32}
        results = {
            "eth_chainId": "0x7a69",
            "eth_blockNumber": hex(height),
            "eth_getTransactionReceipt": {"blockNumber": hex(height)},
        }
        if method == "eth_getBlockByNumber":
            return genesis if params[0] == "0x0" else latest
        return results[method]

    node.rule = rule
    return node


async def test_a_node_that_returns_with_fewer_blocks_is_behind() -> None:
    first, second = node_at(0x20, "first"), node_at(0x10, "second")
    async with (
        serve_node(first),
        serve_node(second),
        open_proxy(first.port) as proxy,
        open_chain(proxy.url, second.url) as chain,
    ):
        await chain.pool.check()
        assert await call_in_batch(chain.forwarder, "eth_gasPrice") == "first"
        proxy.cut()
        with stopped_clock() as clock:
            assert await call_in_batch(chain.forwarder, "eth_gasPrice") == "second"
            first.rule = node_at(0x5, "first").rule
            proxy.is_cut = False
            clock.advance(SETTINGS.retry_after_s)
            await chain.pool.check()
            assert chain.pool.failures() == {}
            assert await call_in_batch(chain.forwarder, "eth_gasPrice") == "second"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("eth_blockNumber", ()),
        ("eth_getBlockByNumber", ("latest", False)),
        ("eth_getBlockByNumber", ("0x15", True)),
        ("eth_getTransactionReceipt", ("0x" + "33" * 32,)),
    ],
)
@pytest.mark.parametrize("in_a_batch", [False, True])
async def test_a_block_that_a_client_has_seen_stays_available_to_it(
    method: str, params: tuple[Any, ...], in_a_batch: bool
) -> None:
    first, second = node_at(0x10, "first"), node_at(0x10, "second")
    async with serve_node(first), serve_node(second), open_chain(first.url, second.url) as chain:
        await chain.pool.check()
        with stopped_clock() as clock:
            first.status = 503
            second.rule = node_at(0x15, "second").rule
            if in_a_batch:
                await chain.forwarder.forward_batch([call(method, *params), call("eth_gasPrice")])
            else:
                await single(chain.forwarder, method, *params)
            first.status = 200
            clock.advance(SETTINGS.retry_after_s)
            assert await call_in_batch(chain.forwarder, "eth_gasPrice") == "second", (
                "the first may not have that block"
            )
            await chain.pool.check()
            first.rule = node_at(0x16, "first").rule
            await call_in_batch(chain.forwarder, "eth_blockNumber")
            chain.pool.note_head(chain.pool.nodes[0], 0x16)
            assert await call_in_batch(chain.forwarder, "eth_gasPrice") == "first"


async def test_the_growth_of_a_chain_and_the_lag_of_a_node_are_those_of_the_last_minute() -> None:
    first, second = node_at(0x20, "first"), node_at(0x10, "second")
    async with serve_node(first), serve_node(second), open_chain(first.url, second.url) as chain:
        with stopped_clock() as clock:
            await chain.pool.check()
            assert chain.pool.head_growth() == HeadGrowth(None, 16, None)
            clock.advance(10.0)
            chain.pool.note_head(chain.pool.nodes[0], 0x2A)
            chain.pool.note_head(chain.pool.nodes[1], 0x24)
            assert chain.pool.head_growth() == HeadGrowth(1.0, 6, 3.0)
            clock.advance(70.0)
            assert chain.pool.head_growth() == HeadGrowth(None, 6, None)


def test_a_pending_block_does_not_reveal_a_head() -> None:
    assert not reveals_head(call("eth_getBlockByNumber", "pending", False))
    assert reveals_head(call("eth_getBlockByNumber", "latest", False))
    assert not reveals_head(call("eth_getBalance", "0x00", "latest"))


@pytest.mark.parametrize(
    ("result", "height"),
    [
        ("0x10", 16),
        ({"number": "0x11", "transactions": [{"blockNumber": "0x9"}]}, 17),
        ({"blockNumber": "0x12"}, 18),
        (None, None),
        ({"number": None}, None),
        ({"number": 7}, None),
        ("nope", None),
        ([], None),
        ("0x" + "f" * 40, None),
    ],
)
def test_a_result_reveals_a_height_or_no_height(result: object, height: int | None) -> None:
    assert head_in(Raw(json.dumps(result).encode())) == height
