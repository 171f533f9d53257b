"""Clients generated from the OpenAPI document sign, page and read an error; `make clients` builds
them first.
"""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests import paths
from tests.clients.recorded_network import RecordedDaemon, recorded_network
from tests.clients.subjects import NETWORK
from tests.eventually import TIMEOUT_S
from tests.integration.daemon import build_config, run_daemon, run_network
from tests.integration.indexed_daemon import fetch_all
from tests.integration.message_verifier import verify_signed_message
from warpseal.warp.ids import PRIMARY_NETWORK
from warpseal_simnet.plan import Plan

pytestmark = pytest.mark.asyncio(loop_scope="module")
_BUILD = paths.ROOT / ".venv" / "generated"
_COMMANDS = {
    "python": (str(_BUILD / "tools" / "bin" / "python"), "client.py"),
    "go": (str(_BUILD / "go" / "client"),),
    "typescript": ("node", "client.js"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def history(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RecordedDaemon]:
    """Run a daemon with an index."""
    async with recorded_network(tmp_path_factory.mktemp("history")) as recorded:
        await recorded.until_indexed_whole()
        yield recorded


async def run_client(language: str, *arguments: str) -> dict[str, Any]:
    """Run the program of a generated client; return the object that it prints."""
    process = await asyncio.create_subprocess_exec(
        *_COMMANDS[language], *arguments, cwd=_BUILD / language, stdout=PIPE, stderr=PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    outcome: dict[str, Any] = json.loads(output)
    return outcome


@pytest.mark.parametrize("language", _COMMANDS)
async def test_a_generated_client_signs_pages_and_reads_an_error(
    history: RecordedDaemon, tmp_path: Path, language: str
) -> None:
    async with (
        run_network(Plan(validators=4, messages=1)) as network,
        run_daemon(build_config(network, tmp_path)) as signer,
    ):
        await signer.until_ready()
        message = network.messages_of(PRIMARY_NETWORK)[0]
        outcome = await run_client(
            language, signer.api_url, message.unsigned.raw.hex(), history.daemon.api_url
        )
    verify_signed_message(
        network, outcome["signedMessage"], message.unsigned.raw, PRIMARY_NETWORK, 67
    )
    path = f"/v1/networks/{NETWORK}/blockchains/p-chain/transactions"
    transactions = await fetch_all(history.daemon, path, "transactions")
    assert len(transactions) > 3
    assert outcome["transactions"] == [transaction["txHash"] for transaction in transactions]
    assert outcome["error"] == {"status": 400, "code": "not_a_warp_message"}
