"""The L1 scenario issues and accepts every kind of transaction, and prints the right statuses."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal

import pytest

from tests.eventually import finish, until
from tests.simnet.sessions import small_network, state_at_tip
from warpseal.chains.p_txs import parse_p_tx
from warpseal.messages.attestation import derive_attestation
from warpseal.messages.errors import NoMessage
from warpseal_simnet import main, p_chain_verifier
from warpseal_simnet.l1_scenario import SCENARIO_L1, L1Scenario
from warpseal_simnet.plan import L1Plan

KINDS = [
    "ConvertSubnetToL1Tx",
    "RegisterL1ValidatorTx",
    "SetL1ValidatorWeightTx",
    "SetL1ValidatorWeightTx",
    "IncreaseL1ValidatorBalanceTx",
    "DisableL1ValidatorTx",
    "SetL1ValidatorWeightTx",
]


async def test_each_step_is_issued_then_accepted_with_the_expected_status() -> None:
    lines: list[str] = []
    network = small_network(messages=0, l1s=(L1Plan(2), SCENARIO_L1))
    await L1Scenario(network, "http://here:1", 0, lines.append).run()
    accepted_txs = [tx for tx in network.p_chain.transactions if (tx.height or 0) > 20]
    assert [tx.kind for tx in accepted_txs] == KINDS
    assert len(lines) == 1 + 4 * len(accepted_txs) + 1
    for place, tx in enumerate(accepted_txs):
        issued, before, accepted, after = lines[1 + 4 * place : 5 + 4 * place]
        assert f"{tx.kind} {tx.text} is issued" in issued
        assert f"{tx.text} is accepted at height {tx.height}" in accepted
        path = f": GET http://here:1/v1/signatureAggregator/fuji/aggregateSignatures/{tx.text}"
        assert (before[:5], before[5:]) == ("  404", path)
        assert after.endswith(path)
        try:
            derive_attestation(parse_p_tx(tx.raw), network.network_id)
            assert after.startswith("  201")
        except NoMessage:
            assert after.startswith("  400")
    removal = accepted_txs[-1].attested
    assert removal is not None
    assert (
        p_chain_verifier.refusal_of(
            state_at_tip(network.state), removal.unsigned, removal.justification
        )
        is None
    )
    assert len(network.state.current_set(network.subnets[-1].subnet_id)) == 4


async def test_the_command_runs_the_scenario_and_continues(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    words = (
        "--validators",
        "2",
        "--messages",
        "0",
        "--l1-story",
        "--story-pace",
        "0",
        "--api-port",
        "1234",
    )
    task = asyncio.create_task(main.run(parser.parse_args(words)))
    output = ""

    def is_complete() -> bool:
        nonlocal output
        output += capsys.readouterr().out
        assert not task.done(), task.exception()
        return "continues until" in output

    await until(is_complete)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await finish(task) == 0
    assert output.startswith("simnet ready")
    assert (
        len(
            re.findall(r"GET http://127\.0\.0\.1:1234/v1/\S+/[1-9A-HJ-NP-Za-km-z]{40,60}\n", output)
        )
        == 14
    )


async def test_a_scenario_can_be_interrupted() -> None:
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    words = ("--validators", "2", "--messages", "0", "--l1-story", "--story-pace", "60")
    task = asyncio.create_task(main.run(parser.parse_args(words)))
    await asyncio.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await finish(task) == 0
