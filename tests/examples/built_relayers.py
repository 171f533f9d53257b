"""The relayers in Go and TypeScript of `examples`; `make clients` builds them first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests import paths
from tests.examples.route import Route, open_route, relay_messages
from warpseal_simnet.report import free_ports

pytestmark = pytest.mark.asyncio(loop_scope="module")
_BUILD = paths.ROOT / ".venv" / "generated" / "examples"
_COMMANDS = {
    "go": (str(_BUILD / "go" / "relayer"),),
    "typescript": ("node", str(_BUILD / "typescript" / "relayer.js")),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def route(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Route]:
    """Run the chains, their validators and the daemon once for both relayers."""
    async with open_route(tmp_path_factory.mktemp("route"), *free_ports(1)) as opened:
        yield opened


@pytest.mark.parametrize("language", _COMMANDS)
async def test_a_relayer_delivers_waits_refuses_and_misses_nothing(
    route: Route, tmp_path: Path, language: str
) -> None:
    await relay_messages(route, _COMMANDS[language], tmp_path)
