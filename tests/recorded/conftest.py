"""The whole daemon on the recorded network, started once for all tests of a module."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import pytest_asyncio
import uvloop

from tests.integration.daemon import Daemon
from tests.recorded.recording import RECORDING
from tests.recorded.starting import started
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.recorded import recorded_network


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on the loop that the daemon prefers."""
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network() -> AsyncIterator[SimulatedNetwork]:
    """The recorded network over real TLS; at the end no peer may have done anything wrong."""
    async with recorded_network(RECORDING) as network:
        yield network
        assert network.violations.by_kind() == {}, network.violations.latest


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(
    network: SimulatedNetwork, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Daemon]:
    """A daemon with the network's own config file."""
    async with started(network, tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon
