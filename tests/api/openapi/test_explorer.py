"""`/docs` and its files: from this daemon only, under a strict policy, and cached."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import msgspec

from tests.api.fixtures import MESSAGE, SIGNED, V1, ApiSetup, client_of
from warpseal.aggregation.service import SignedRequest
from warpseal.api.openapi.document import document
from warpseal.api.openapi.explorer import DOCUMENT_PATH, EXPLORER_PATH
from warpseal.resources.chains import PUBLIC_CHAINS
from warpseal.warp.message import Hash, UnsignedMessage


async def test_the_document_is_served_to_every_client_and_revalidated() -> None:
    limited = ApiSetup().with_settings(
        rate_limit_per_minute=1, rate_limit_loopback=True, require_api_key=True
    )
    async with client_of(limited) as client:
        async with client.get(DOCUMENT_PATH) as reply:
            assert reply.content_type == "application/json"
            body = await reply.json()
            tag = reply.headers["etag"]
        async with client.get(DOCUMENT_PATH, headers={"If-None-Match": tag}) as reply:
            assert reply.status == 304
    assert body == json.loads(msgspec.json.encode(document()))
    assert body["openapi"] == "3.1.0"


async def document_of(setup: ApiSetup) -> dict[str, Any]:
    async with client_of(setup) as client, client.get(DOCUMENT_PATH) as reply:
        body: dict[str, Any] = await reply.json()
    return body


def example_of(body: dict[str, Any], path: str) -> tuple[str, bytes]:
    """Return the network and the message of an example."""
    operation = body["paths"][path]["post"]
    ((_, content),) = operation["requestBody"]["content"].items()
    (example,) = content["examples"].values()
    return operation["parameters"][0]["example"], bytes.fromhex(example["value"]["message"])


async def test_examples_are_of_the_daemons_network_and_of_a_message_that_it_has_signed() -> None:
    path = V1.replace("fuji", "{network}")
    for network_id, name in ((1, "mainnet"), (5, "fuji")):
        setup = ApiSetup(network_id=network_id)
        network_name, raw = example_of(await document_of(setup), path)
        message = UnsignedMessage.parse(raw)
        # Before the first signature: that the C-Chain's first block was accepted.
        assert (network_name, message.network_id, message.source_chain_id) == (
            name,
            network_id,
            PUBLIC_CHAINS[network_id].c,
        )
        assert Hash.parse(message.payload).hash.hex().startswith("31ced5b9")
        async with client_of(setup) as client:
            tag = (await client.get(DOCUMENT_PATH)).headers["etag"]
            setup.aggregator.first_signed = SignedRequest(SIGNED)
            async with client.get(DOCUMENT_PATH, headers={"If-None-Match": tag}) as reply:
                body = await reply.json()
        assert example_of(body, path) == (name, MESSAGE.raw)
        response = body["paths"][path]["post"]["responses"]["201"]["content"]["application/json"][
            "example"
        ]
        assert response == {"signedMessage": SIGNED.hex()}
        verify = body["paths"][path.replace("aggregateSignatures", "verify")]["post"][
            "requestBody"
        ]["content"]
        (example,) = verify["application/json"]["examples"].values()
        assert example["value"] == {"signedMessage": SIGNED.hex(), "destinationBlockchainId": "C"}
    other = ApiSetup(network_id=12345).with_settings(network_names=("mine",))
    assert example_of(await document_of(other), path)[0] == "mine"


async def test_the_explorer_and_its_files_come_from_the_daemon_and_are_cached() -> None:
    async with client_of(ApiSetup()) as client:
        async with client.get(EXPLORER_PATH) as reply:
            assert reply.content_type == "text/html"
            policy = dict(
                rule.split(" ", 1) for rule in reply.headers["content-security-policy"].split("; ")
            )
            page = await reply.text()
        assert (policy["default-src"], policy["script-src"], policy["style-src"]) == (
            "'none'",
            "'self'",
            "'self'",
        )
        links = re.findall(r"(?:href|src)=\"([^\"]*)\"", page)
        addresses = [link for link in links if link not in ("data:,", DOCUMENT_PATH)]
        assert len(addresses) == 4
        for address in addresses:
            assert re.fullmatch(r"/docs/[a-z.-]+\?v=[0-9a-f]+", address)
            async with client.get(address) as reply:
                assert reply.status == 200
                assert reply.content_type == (
                    "text/css" if ".css" in address else "text/javascript"
                )
                assert "immutable" in reply.headers["cache-control"]
                assert reply.headers["x-content-type-options"] == "nosniff"
                tag = reply.headers["etag"]
            async with client.get(address, headers={"If-None-Match": tag}) as reply:
                assert reply.status == 304
        for path in ("/docs/", "/docs/index.html", "/docs/..%2F__init__.py"):
            assert (await client.get(path)).status == 404, path
    # Its code would bring a template engine and a YAML parser into the daemon.
    assert "swagger_ui" not in sys.modules
