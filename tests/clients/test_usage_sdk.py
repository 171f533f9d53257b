"""The one published SDK that has endpoint 16 reads usage in every group, and its errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.data.fixtures import client_of
from tests.api.data.test_usage import call, recorded
from tests.clients.published import Call, outcomes
from tests.usage.test_sums import NOW
from warpseal.api.data.bodies import UsageGrouping

FUNCTION = "dataApiUsageMetrics.getPrimaryNetworkRpcUsageMetrics"
GROUPS = [group for group in UsageGrouping if group is not UsageGrouping.NONE]
VALUES = ["eth_call", "/ext/bc/C/rpc", "200", "DE", "EU", "curl"]


def filter_of(group: str, value: str) -> dict[str, Any]:
    """Return a request with a filter by one value of a group."""
    return {"network": "fuji", "timeInterval": "hourly", "groupBy": group, group: value}


async def test_glacier_sdk_reads_usage_in_every_group(tmp_path: Path) -> None:
    calls: list[Call] = [(FUNCTION, {"network": "fuji"})]
    calls += [
        (FUNCTION, filter_of(group, value)) for group, value in zip(GROUPS, VALUES, strict=True)
    ]
    calls += [(FUNCTION, {"network": "mainnet"})]
    async with (
        recorded(tmp_path, [call(NOW - 60), call(NOW - 30)]) as setup,
        client_of(setup) as client,
    ):
        total, *groups, refused = await outcomes(
            "glacier.mjs", str(client._base_url).rstrip("/"), calls=calls
        )
    (metric,) = total["result"]["metrics"]
    assert (metric["values"][0]["groupedBy"], metric["values"][0]["totalRequests"]) == ("None", 2)
    assert "groupValue" not in metric["values"][0]
    values = [group["result"]["metrics"][0]["values"][0] for group in groups]
    assert [
        (value["groupedBy"], value["groupValue"], value["totalRequests"]) for value in values
    ] == [(group.value, value, 2) for group, value in zip(GROUPS, VALUES, strict=True)]
    error = refused["error"]
    assert (error["kind"], error["status"], error["body"]["code"]) == (
        "ApiError",
        404,
        "network_not_served",
    )
