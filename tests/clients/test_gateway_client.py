"""@avalanche-sdk/client calls the primary network through the gateway, and gets what nodes were
recorded to answer.
"""

from __future__ import annotations

from typing import Any, Final

from tests.clients.published import Call, outcomes
from tests.forwarding.primary.serving import (
    TX_ID,
    GatewayNode,
    recorded,
    serve_gateway,
    serve_nodes,
)

C_RPC: Final = "/ext/bc/C/rpc"
_PARTS: Final = {"platform": "pChain", "avm": "xChain", "avax": "cChain", "info": "info"}
_LACKING: Final = {
    "platform.getBlock",
    "platform.getBalance",
    "platform.getValidatorFeeConfig",
    "platform.getValidatorFeeState",
}
"""Methods that the client has no function for."""


def function_of(row: dict[str, Any]) -> str:
    """Return the client's function of a recorded call."""
    service, _, name = row["method"].partition(".")
    chain = (
        row["path"].split("/")[3].lower() + "Chain"
        if "/bc/" in row["path"] or "/index/" in row["path"]
        else ""
    )
    part = {"index": f"indexBlock.{chain}", "proposervm": f"proposervm.{chain}"}.get(
        service
    ) or _PARTS[service]
    return f"{part}.{name}"


def as_text(value: Any) -> Any:
    """Return a result with its numbers as texts: the client makes large integers of some texts and
    numbers.
    """
    if isinstance(value, dict):
        return {name: as_text(item) for name, item in value.items()}
    if isinstance(value, list):
        return [as_text(item) for item in value]
    return str(value) if type(value) is int else value


async def test_every_client_function_gets_the_recorded_result() -> None:
    rows = [row for row in recorded() if row["method"] not in _LACKING]
    calls: list[Call] = [(C_RPC, function_of(row), row["params"]) for row in rows]
    writes: list[Call] = [
        (C_RPC, f"{part}.issueTx", {"tx": "0x00"}) for part in ("pChain", "xChain", "cChain")
    ]
    node = GatewayNode()
    async with serve_nodes(node), serve_gateway([node.url]) as served:
        results = await outcomes("node_api.mjs", served.url, calls=[*calls, *writes])
    for row, outcome in zip(rows, results, strict=False):
        assert (outcome["sent"][0]["path"], outcome["sent"][0]["body"]["method"]) == (
            row["path"],
            row["method"],
        )
        assert as_text(outcome.get("result")) == as_text(row["result"]), (row["method"], outcome)
    assert [outcome["result"]["txID"] for outcome in results[-3:]] == [TX_ID] * 3
    assert len(rows) > 50
