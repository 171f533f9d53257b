"""Shares that outlive the process that asked for them, and shares that no daemon ever asked for:
all are used.
"""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import aiohttp
import pytest

from tests.eventually import finish, until
from tests.integration.daemon import (
    AGGREGATE_PATH,
    build_config,
    run_daemon,
    run_network,
    write_config_file,
)
from tests.integration.message_verifier import verify_signed_message
from tests.integration.process import start_command
from tests.store.fixtures import shares_in
from tests.store.signed import create_store
from warpseal.bls import sign
from warpseal.store.access import open_exclusive
from warpseal.store.export_import import Importer
from warpseal.store.jsonl import open_lines
from warpseal.store.url import StoreUrl
from warpseal.warp.message import UnsignedMessage
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, Plan, parse_rule

GET = "/v1/signatureAggregator/fuji/aggregateSignatures/"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the url of an empty store; the test runs over each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


def requests_by_validator(network: SimulatedNetwork) -> list[int]:
    return [validator.counts.app_requests for validator in network.validators]


async def test_after_a_kill_in_the_middle_of_a_collection_only_the_missing_are_asked(
    store_url: str, tmp_path: Path
) -> None:
    plan = Plan(validators=1, l1s=(L1Plan(validators=4),), rules=(parse_rule("l1-0/2-3:silent"),))
    async with run_network(plan) as network:
        config = write_config_file(network, tmp_path, {"store-url": store_url})
        l1 = network.subnets[1].subnet_id
        body = {"message": network.messages_of(l1)[0].unsigned.raw.hex()}
        async with (
            start_command("serve", "--config", config) as daemon,
            aiohttp.ClientSession() as session,
        ):
            api_url, _ = await daemon.listening()
            request = asyncio.create_task(post(session, api_url, body))
            await until(lambda: shares_in(store_url) == 2)
            daemon.kill()
            with pytest.raises(aiohttp.ClientError):
                await request
        network.set_behaviour(range(len(network.validators)), "")
        before = requests_by_validator(network)
        async with (
            start_command("serve", "--config", config) as daemon,
            aiohttp.ClientSession() as session,
        ):
            api_url, _ = await daemon.listening()
            signed = (await finish(post(session, api_url, body)))["signed-message"]
        verdict = verify_signed_message(network, signed, bytes.fromhex(body["message"]), l1, 67)
        assert len(verdict.signers) >= 3
        counts = requests_by_validator(network)
        more = [after - earlier for earlier, after in zip(before, counts, strict=True)]
        assert more[:3] == [0, 0, 0]
        assert sum(more) >= 1


async def post(
    session: aiohttp.ClientSession, api_url: str, body: dict[str, str]
) -> dict[str, str]:
    async with session.post(api_url + AGGREGATE_PATH, json=body) as response:
        reply: dict[str, str] = await response.json()
        return reply


async def test_shares_signed_elsewhere_serve_an_l1_whose_validators_cannot_be_reached(
    store_url: str, tmp_path: Path
) -> None:
    plan = Plan(validators=1, l1s=(L1Plan(validators=4),), rules=(parse_rule("l1-0/all:closed"),))
    async with run_network(plan) as network:
        l1 = network.subnets[1].subnet_id
        unsigned = network.messages_of(l1)[0].unsigned
        conversion = network.p_chain.conversion_of(l1)
        assert conversion.attested is not None
        config = build_config(network, tmp_path, {"store-url": store_url})
        await asyncio.to_thread(create_store, store_url)
        await asyncio.to_thread(
            import_shares, network, store_url, [unsigned, conversion.attested.unsigned]
        )
        async with run_daemon(config) as daemon:
            reply = await daemon.post(AGGREGATE_PATH, {"message": unsigned.raw.hex()})
            verify_signed_message(network, reply.signed, unsigned.raw, l1, 67)
            reply = await daemon.get(GET + conversion.text)
            verify_signed_message(network, reply.signed, conversion.attested.unsigned.raw, l1, 67)
        assert sum(requests_by_validator(network)[1:]) == 0


def import_shares(
    network: SimulatedNetwork, store_url: str, messages: list[UnsignedMessage]
) -> None:
    """Let three of the four validators sign by hand, and import what they signed."""
    lines: list[dict[str, object]] = [{"format": "warpseal-store", "version": 1}]
    for message in messages:
        for validator in network.validators[1:4]:
            signature = sign(validator.identity.bls_secret, message.raw).hex()
            line = {
                "type": "share",
                "unsignedMessage": message.raw.hex(),
                "publicKey": validator.bls_key.hex(),
            }
            lines.append({**line, "signature": signature})
    complaints: list[str] = []
    with open_exclusive(StoreUrl.parse(store_url)) as engine:
        importer = Importer(
            engine, lambda number, reason: complaints.append(f"{number}: {reason}"), for_ever=True
        )
        importer.run(
            open_lines(io.BytesIO("\n".join(map(json.dumps, lines)).encode()))[1], lambda _: None
        )
    assert complaints == []
