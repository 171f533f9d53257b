"""The story of an L1 tells every transaction of a life, and what it says to ask is true."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal

import pytest

from tests.simnet.sessions import small_network
from warpseal.chains.p_txs import parse_p_tx
from warpseal.errors import NoMessage
from warpseal.l1.attestation import derive_attestation
from warpseal.simnet import main, p_chain_verifier
from warpseal.simnet.l1_scenario import SCENARIO_L1, L1Scenario
from warpseal.simnet.plan import L1Plan

KINDS = [
    "ConvertSubnetToL1Tx",
    "RegisterL1ValidatorTx",
    "SetL1ValidatorWeightTx",
    "SetL1ValidatorWeightTx",
    "IncreaseL1ValidatorBalanceTx",
    "DisableL1ValidatorTx",
    "SetL1ValidatorWeightTx",
]


async def test_every_step_is_issued_then_accepted_and_says_what_to_ask() -> None:
    lines: list[str] = []
    network = small_network(messages=0, l1s=(L1Plan(2), SCENARIO_L1))
    await L1Scenario(network, "http://here:1", 0, lines.append).tell()
    told = [one for one in network.p_chain.transactions if (one.height or 0) > 20]
    assert [one.kind for one in told] == KINDS
    assert len(lines) == 1 + 4 * len(told) + 1
    for place, one in enumerate(told):
        issued, before, accepted, after = lines[1 + 4 * place : 5 + 4 * place]
        assert f"{one.kind} {one.text} is issued" in issued
        assert f"{one.text} is accepted at height {one.height}" in accepted
        path = f": GET http://here:1/v1/signatureAggregator/fuji/aggregateSignatures/{one.text}"
        assert (before[:5], before[5:]) == ("  404", path)
        assert after.endswith(path)
        try:
            derive_attestation(parse_p_tx(one.raw), network.network_id)
            assert after.startswith("  201")
        except NoMessage:
            assert after.startswith("  400")
    removal = told[-1].attested
    assert removal is not None
    assert p_chain_verifier.refusal_of(network.state, removal.unsigned, removal.justification) is None
    assert len(network.state.current_set(network.subnets[-1].subnet_id)) == 4


async def test_the_command_tells_the_story_and_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    words = ("--validators", "2", "--messages", "0", "--l1-story", "--story-pace", "0", "--api-port", "1234")
    task = asyncio.create_task(main.run(parser.parse_args(words)))
    shown = ""
    async with asyncio.timeout(20):
        while "runs on until" not in shown:
            await asyncio.sleep(0.05)
            shown += capsys.readouterr().out
            assert not task.done(), task.exception()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 10) == 0
    assert shown.startswith("simnet ready")
    assert len(re.findall(r"GET http://127\.0\.0\.1:1234/v1/\S+/[1-9A-HJ-NP-Za-km-z]{40,60}\n", shown)) == 14


async def test_a_story_can_be_broken_off() -> None:
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    words = ("--validators", "2", "--messages", "0", "--l1-story", "--story-pace", "60")
    task = asyncio.create_task(main.run(parser.parse_args(words)))
    await asyncio.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 10) == 0
