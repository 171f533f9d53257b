"""`/docs` and its files: from this daemon only, under a strict policy, and cached."""

from __future__ import annotations

import json
import re
import sys

import msgspec

from tests.api.fixtures import ApiSetup, client_of
from warpseal.api.data.settings import DataApiSettings
from warpseal.api.openapi.document import document
from warpseal.api.openapi.explorer import DOCUMENT_PATH, EXPLORER_PATH


async def test_the_document_is_served_to_every_client_and_revalidated() -> None:
    limited = DataApiSettings(rate_limit_per_minute=1, rate_limit_loopback=True, require_api_key=True)
    async with client_of(ApiSetup(data=limited)) as client:
        async with client.get(DOCUMENT_PATH) as reply:
            assert reply.content_type == "application/json"
            body = await reply.json()
            tag = reply.headers["etag"]
        async with client.get(DOCUMENT_PATH, headers={"If-None-Match": tag}) as reply:
            assert reply.status == 304
    assert body == json.loads(msgspec.json.encode(document()))
    assert body["openapi"] == "3.1.0"


async def test_the_explorer_and_its_files_come_from_the_daemon_and_are_cached() -> None:
    async with client_of(ApiSetup()) as client:
        async with client.get(EXPLORER_PATH) as reply:
            assert reply.content_type == "text/html"
            policy = dict(rule.split(" ", 1) for rule in reply.headers["content-security-policy"].split("; "))
            page = await reply.text()
        assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
        links = re.findall(r"(?:href|src)=\"([^\"]*)\"", page)
        addresses = [link for link in links if link not in ("data:,", DOCUMENT_PATH)]
        assert len(addresses) == 3
        for address in addresses:
            assert re.fullmatch(r"/docs/[a-z.-]+\?v=[0-9a-f]+", address)
            async with client.get(address) as reply:
                assert reply.status == 200
                assert reply.content_type == ("text/css" if ".css" in address else "text/javascript")
                assert "immutable" in reply.headers["cache-control"]
                assert reply.headers["x-content-type-options"] == "nosniff"
                tag = reply.headers["etag"]
            async with client.get(address, headers={"If-None-Match": tag}) as reply:
                assert reply.status == 304
        for path in ("/docs/", "/docs/index.html", "/docs/..%2F__init__.py"):
            assert (await client.get(path)).status == 404, path
    # Its code would bring a template engine and a YAML parser into the daemon.
    assert "swagger_ui" not in sys.modules
