"""Unspent outputs of an address at one node: all pages, within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.chains.p_vectors import checked_hex
from tests.node.recorded_node import RecordedNode, open_upstream
from warpseal.chains.components import TransferOutput, Utxo
from warpseal.chains.ids import AssetID, TxID
from warpseal.node import state
from warpseal.upstream.errors import NodeUnavailable

ADDRESS = "P-custom18jma8ppw3nhx5r4ap8clazz0dps7rv5u9xde7p"


def output_text(number: int) -> str:
    tx_id = bytes([number // 256, number % 256]) * 16
    amount = (number + 1).to_bytes(8, "big")
    type_id = (7).to_bytes(4, "big")
    return checked_hex(bytes(2) + tx_id + bytes(4) + bytes(32) + type_id + amount + bytes(16))


TEXTS = [output_text(number) for number in range(1_500)]


def page(texts: list[str], end: int) -> dict[str, Any]:
    return {
        "numFetched": str(len(texts)),
        "utxos": texts,
        "endIndex": {"address": ADDRESS, "utxo": f"{end}"},
    }


def serve_pages(params: Mapping[str, Any]) -> Any:
    """Return the page behind the place in the params, as a node does."""
    first = int(params["startIndex"]["utxo"]) if "startIndex" in params else 0
    last = first + params["limit"]
    return page(TEXTS[first:last], min(last, len(TEXTS)))


async def test_all_pages_are_read() -> None:
    node = RecordedNode({"platform.getUTXOs": serve_pages})
    async with open_upstream(node) as upstream:
        outputs = await (await upstream.state.first_available()).p_outputs(ADDRESS)
    assert sum(output.output.amount for output in outputs) == sum(range(1, 1_501))
    expected = TransferOutput(1, 0, 0, ())
    assert outputs[0] == Utxo(TxID(bytes(32)), 0, AssetID(bytes(32)), expected)
    assert node.calls["platform.getUTXOs"] == 2


async def test_endless_and_oversized_pages_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_MAX_PAGES", 5)
    endless = RecordedNode({"platform.getUTXOs": lambda _: page(TEXTS[:1_024], 1)})
    oversized = RecordedNode({"platform.getUTXOs": lambda _: page(TEXTS, 1)})
    for node, calls in ((endless, 5), (oversized, 1)):
        async with open_upstream(node) as upstream:
            source = await upstream.state.first_available()
            with pytest.raises(NodeUnavailable):
                await source.p_outputs(ADDRESS)
        assert node.calls["platform.getUTXOs"] == calls
