"""The bodies that @avalanche-sdk/client was recorded with are answered by a running daemon."""

from __future__ import annotations

from pathlib import Path

from tests.clients.node_exchanges import C_RPC, EXCHANGES
from tests.clients.recorded_network import recorded_network


async def test_every_recorded_body_gets_a_response(tmp_path: Path) -> None:
    async with recorded_network(tmp_path, index_chains=[], api_admin_enabled=True) as recorded:
        await recorded.until_there(C_RPC)
        for number, exchange in enumerate(EXCHANGES):
            body = {
                "jsonrpc": "2.0",
                "id": number,
                "method": exchange.method,
                "params": exchange.params,
            }
            reply = await recorded.daemon.post(exchange.path, body)
            assert (reply.status, reply.body["jsonrpc"], reply.body["id"]) == (
                200,
                "2.0",
                number,
            ), exchange
            assert reply.headers["content-type"].startswith("application/json")
            exchange.assert_reply(reply.body)
        # What was given another name is what it was.
        call = {"jsonrpc": "2.0", "id": 0, "method": "health.liveness", "params": {}}
        assert (await recorded.daemon.post("/ext/well", call)).body == (
            await recorded.daemon.post("/ext/health", call)
        ).body
