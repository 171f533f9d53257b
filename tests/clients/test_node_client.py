"""@avalanche-sdk/client drives every function that it has of a node's interfaces against a running
daemon.
"""

from __future__ import annotations

from pathlib import Path

from tests.clients.node_exchanges import C_RPC, EXCHANGES, L1_RPC
from tests.clients.published import Call, outcomes
from tests.clients.recorded_network import recorded_network
from warpseal.warp.ids import parse_id
from warpseal.warp.justification import L1ValidatorRegistrationJustification

REGISTERED = "2JRupqWf57oyuM9ARJ218CTRSKvfzcQaKYh6x4fHMjonVzY2Fd"
SUBNET = "2XvG1bxvmQNASMVQXBFCsuXScDv3VDCMee6MaLNfDkkmvrjvy5"


async def test_every_client_function_gets_its_response(tmp_path: Path) -> None:
    justified = (
        L1_RPC,
        "getRegistrationJustification",
        {"validationID": REGISTERED, "subnetIDStr": SUBNET},
    )
    calls: list[Call] = [(L1_RPC, "functions", {})]
    calls += [
        (
            exchange.path if exchange.path == C_RPC else L1_RPC,
            exchange.function,
            dict(exchange.arguments or {}),
        )
        for exchange in EXCHANGES
    ]
    async with recorded_network(tmp_path, index_chains=[], api_admin_enabled=True) as recorded:
        await recorded.until_there(C_RPC)
        result = await outcomes("node_api.mjs", recorded.daemon.api_url, calls=[*calls, justified])
    has = result[0]["result"]
    driven = {exchange.function for exchange in EXCHANGES} | {"getRegistrationJustification"}
    assert {f"{part}.{name}" for part in ("admin", "health") for name in has[part]} | set(
        has["public"]
    ) == driven
    for exchange, item in zip(EXCHANGES, result[1:-1], strict=True):
        exchange.assert_reply(item)
        ((request),) = item["sent"]
        assert (request["path"], request["type"]) == (exchange.path, "application/json")
        assert (request["body"]["method"], request["body"]["params"]) == (
            exchange.method,
            exchange.params,
        )
    raw = bytes.fromhex(result[-1]["result"]["justification"])
    assert L1ValidatorRegistrationJustification.parse(raw).validation_id == parse_id(REGISTERED)
