"""`?explain=true` of a whole daemon: it names the failing check, sends no signature request and is
always 200.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.integration.l1_daemon import L1_PLAN, attested_message, run_l1_network, validation_id_of
from warpseal.validators.balances import FIXED_HEIGHT_ADVICE, UNDERFUNDED_ADVICE
from warpseal.warp.ids import cb58_encode, id_text
from warpseal.warp.l1_messages import bootstrap_validation_id
from warpseal_simnet.plan import L1Plan, parse_rule

BLIND = {"bootstrap_indices": 0}


async def test_explain_names_the_failing_check_and_sends_no_signature_request(
    tmp_path: Path,
) -> None:
    async with run_l1_network(tmp_path, L1_PLAN, {"follow-p-chain": False}, l1=BLIND) as running:
        p_chain = running.network.p_chain
        waiting = p_chain.base(later=True)
        registration = p_chain.register(running.l1)
        first = p_chain.set_weight(validation_id_of(registration), 700)
        second = p_chain.set_weight(validation_id_of(registration), 800)
        disabling = p_chain.disable(validation_id_of(registration))
        removal = p_chain.remove(bootstrap_validation_id(running.l1, 1))
        (x_payment, *_) = running.network.x_transactions
        cases = {
            "5" * 4: None,
            waiting.text: "transaction_accepted",
            cb58_encode(b"\x05" * 32): "transaction_accepted",
            disabling.text: "has_message",
            cb58_encode(x_payment): "has_message",
            first.text: "latest_weight",
            second.text: None,
            registration.text: None,
            p_chain.conversion_of(running.l1).text: None,
            removal.text: None,
        }
        del cases["5" * 4]
        for tx_hash, failing in cases.items():
            result = await running.daemon.explanation(tx_hash)
            assert result["failing"] == failing, result
        result = await running.daemon.explanation(removal, justification="00")
        assert result["failing"] == "justification"
        assert running.count_signature_requests() == 0


async def test_explain_reports_the_message_its_signers_and_its_proof(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path) as running:
        removal = running.network.p_chain.remove(bootstrap_validation_id(running.l1, 1))
        result = await running.daemon.explanation(removal)
        attested = attested_message(removal)
        assert result["message"]["hex"] == "0x" + attested.unsigned.raw.hex()
        assert result["message"]["fields"] == {
            "validationId": id_text(validation_id_of(removal)),
            "registered": False,
        }
        assert result["justification"]["hex"] == "0x" + attested.justification.hex()
        assert result["signingSubnetId"] == id_text(running.l1)
        assert result["pChainHeight"] == {"height": "20", "source": "epoch"}
        assert result["weights"] == {
            "total": "4000",
            "required": "2680",
            "withKey": "4000",
            "validators": 4,
        }
        assert result["stored"]["signatures"] == 0
        await running.deliver(removal)
        assert (await running.daemon.explanation(removal))["stored"]["signatures"] == 1


async def test_explain_names_an_impossible_quorum(tmp_path: Path) -> None:
    plan = replace(L1_PLAN, l1s=(L1Plan(validators=4),), rules=(parse_rule("l1-0/0-1:inactive"),))
    async with run_l1_network(tmp_path, plan) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        explained = await running.daemon.explanation(conversion)
        assert explained["failing"] == "quorum_possible"
        # The inactive validators are named as the error names them.
        error = (await running.expect_error(503, "quorum_not_reached", conversion)).detail
        assert len(explained["inactive"]) == 2
        assert explained["inactive"] == [
            validator for validator in error["validators"] if validator["reason"] == "inactive"
        ]
        why = {check["check"]: check["why"] for check in explained["checks"]}["quorum_possible"]
        assert why.endswith(UNDERFUNDED_ADVICE)
        assert UNDERFUNDED_ADVICE in error["hints"]
        at_height = await running.daemon.explanation(conversion, pChainHeight=20)
        why = {check["check"]: check["why"] for check in at_height["checks"]}["quorum_possible"]
        assert why.endswith(f"{UNDERFUNDED_ADVICE} {FIXED_HEIGHT_ADVICE}")


async def test_explain_reports_unknown_results_without_a_node(tmp_path: Path) -> None:
    async with run_l1_network(tmp_path) as running:
        await running.daemon.until_ready()
        registration = running.network.p_chain.register(running.l1)
        await running.network.nodes[0].down()
        result = await running.daemon.explanation(registration, timeoutSeconds=1)
        assert result["failing"] is None
        assert [check["ok"] for check in result["checks"]] == [None]
        assert running.count_signature_requests() == 0
