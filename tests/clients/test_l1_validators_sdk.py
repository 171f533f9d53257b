"""The third published SDK, which has no function for other pages of the Data API, reads the
validators of L1s.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.published import Call, outcomes
from tests.clients.recorded_network import RecordedDaemon
from tests.clients.subjects import L1_NODE, NETWORK, SUBNET, VALIDATION

pytestmark = pytest.mark.asyncio(loop_scope="module")
FUNCTION = "primaryNetwork.listL1Validators"


async def test_glacier_sdk_reads_validators_of_l1s_page_by_page(recorded: RecordedDaemon) -> None:
    async def read(**request: Any) -> list[dict[str, Any]]:
        calls: list[Call] = [(FUNCTION, {"network": NETWORK, **request})]
        return await outcomes("glacier.mjs", recorded.daemon.api_url, calls=calls)

    plain = (
        await recorded.daemon.get(
            f"/v1/networks/{NETWORK}/l1Validators?includeInactiveL1Validators=true"
        )
    ).body
    (whole,) = await read(includeInactiveL1Validators=True)
    assert whole["result"] == plain
    validators: list[Any] = []
    token = None
    while token != "":
        (page,) = await read(includeInactiveL1Validators=True, pageSize=2, pageToken=token)
        assert page["result"]["blockHeight"] == plain["blockHeight"]
        validators += page["result"]["validators"]
        token = page["result"].get("nextPageToken", "")
    assert validators == plain["validators"]
    assert len(validators) == 5
    assert sum(item["remainingBalance"] > 0 for item in validators) == 3
    ((of_subnet,), (of_node,), (of_id,), (wrong,)) = (
        await read(subnetId=SUBNET),
        await read(nodeId=L1_NODE),
        await read(l1ValidationId=VALIDATION, includeInactiveL1Validators=True),
        await read(nodeId="x"),
    )
    assert {item["subnetId"] for item in of_subnet["result"]["validators"]} == {SUBNET}
    assert {item["nodeId"] for item in of_node["result"]["validators"]} == {L1_NODE}
    assert [item["validationId"] for item in of_id["result"]["validators"]] == [VALIDATION]
    assert (wrong["error"]["status"], wrong["error"]["body"]["detail"]["field"]) == (400, "nodeId")
