"""A daemon that has indexed the recorded network; and which tests are collected.

Those with published clients are where `make test` could install them (they come from npm).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.clients.published import are_installed
from tests.clients.recorded_network import RecordedDaemon, recorded_network

_NEED_THEM = (
    "test_data_api_sdks.py",
    "test_gateway_client.py",
    "test_l1_validators_sdk.py",
    "test_node_client.py",
    "test_usage_sdk.py",
)
collect_ignore = [] if are_installed() else [*_NEED_THEM]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recorded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RecordedDaemon]:
    """Run the daemon once for all tests of a module; they only read."""
    async with recorded_network(tmp_path_factory.mktemp("recorded")) as network:
        await network.until_indexed_whole()
        yield network
