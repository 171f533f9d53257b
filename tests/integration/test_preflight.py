"""The preflight of a whole daemon: what it signs verifies, and what the P-Chain has taken is known
from the store.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.daemon import Daemon
from tests.integration.l1_daemon import run_l1_network, validation_id_of
from warpseal.chains.p_txs import RegisterL1ValidatorTx, parse_p_tx
from warpseal.cli.main import main
from warpseal.warp.ids import P_CHAIN, ChainID, id_text
from warpseal_simnet.plan import L1Plan, Plan

PLAN = Plan(validators=3, l1s=(L1Plan(validators=4, spare=1),), messages=0, epoch_s=3_600)
PATH = "/v1/signatureAggregator/fuji/verify"


async def preflight(daemon: Daemon, signed: str, destination_id: ChainID) -> dict[str, Any]:
    reply = await daemon.post(
        PATH, {"signedMessage": signed, "destinationBlockchainId": id_text(destination_id)}
    )
    assert reply.status == 200, reply.body
    return reply.body


async def test_a_signed_message_verifies_and_a_registration_is_known_after_the_removal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with run_l1_network(tmp_path, PLAN) as running:
        network, daemon = running.network, running.daemon
        await daemon.until_ready()
        chain_id = network.manager(running.l1).chain_id
        registration = network.p_chain.register(running.l1)
        signed = (await running.deliver(registration)).signed
        body = await preflight(daemon, signed, chain_id)
        assert (body["verifiesNow"], body["statement"]["kind"]) == (True, "L1ValidatorRegistration")
        assert network.verify_next(chain_id, bytes.fromhex(signed)).accepted
        flags = ("--destination", id_text(chain_id), "--data-dir", str(tmp_path / "data"), "--json")
        code = await asyncio.to_thread(main, ("message", "verify", signed, *flags))
        assert (code, json.loads(capsys.readouterr().out)["verifiesNow"]) == (0, True)

        unsigned_tx = parse_p_tx(registration.raw).unsigned
        assert isinstance(unsigned_tx, RegisterL1ValidatorTx)
        message = unsigned_tx.signed_message().encode().hex()
        assert (await preflight(daemon, message, P_CHAIN))["statement"][
            "reason"
        ] == "already_delivered"
        network.p_chain.remove(validation_id_of(registration))
        network.advance(1)
        await daemon.until_indexed(network.p_chain.height - 1)
        statement = (await preflight(daemon, message, P_CHAIN))["statement"]
        assert (statement["accepted"], statement["reason"]) == (False, "already_delivered")
