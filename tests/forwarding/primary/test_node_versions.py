"""The list of the gateway in front of each version of a node: replies and refusals are the node's
own.
"""

from __future__ import annotations

import json

import aiohttp
import pytest

from tests.forwarding.primary.serving import AVAX, INFO, P, X, serve_gateway
from tests.simnet.sessions import Clock, small_network
from warpseal.forwarding.primary.methods import KNOWN_METHODS
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.versions import DEPRECATED_METHODS, VERSIONS, lacks

PATHS = {"platform": P, "avm": X, "avax": AVAX, "info": INFO}
JSON = "application/json"
LASTING = (
    "platform.getUTXOs",
    "platform.getTx",
    "avm.getUTXOs",
    "avm.getTx",
    "avax.getAtomicTx",
    "info.upgrades",
)


@pytest.mark.parametrize("name", VERSIONS)
async def test_each_version_of_a_node_answers_the_methods_of_the_gateway_itself(name: str) -> None:
    version = VERSIONS[name]
    settings, missing = NodeSettings(clock=Clock(), version=version), set[str]()
    async with (
        small_network(settings=settings, messages=0) as network,
        serve_gateway([network.node_uri]) as served,
        aiohttp.ClientSession() as session,
    ):
        await served.until_checked()
        for method in sorted(name for name in KNOWN_METHODS if name.partition(".")[0] in PATHS):
            path = PATHS[method.partition(".")[0]]
            body = json.dumps({"jsonrpc": "2.0", "method": method, "params": {}, "id": 1}).encode()
            reply = await served.send("POST", path, body, content_type=JSON)
            async with session.post(
                network.node_uri + path, data=body, headers={"content-type": JSON}
            ) as response:
                assert reply == (
                    response.status,
                    response.headers["content-type"],
                    await response.read(),
                ), method
            error = json.loads(reply[2]).get("error")
            if error is not None and "can't find method" in error["message"]:
                assert (reply[0], error["code"], error["data"]) == (200, -32_000, None)
                missing.add(method)
    removed = (*DEPRECATED_METHODS, "avax.getAtomicTxStatus")
    assert {method for method in removed if lacks(version, method)} == missing & set(removed)
    assert not missing & set(LASTING)
