"""The explanation of a request: everything that is known, every check in order, and no validator asked to sign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.l1.test_service import QUICK, validation
from tests.l1.world import World, wanted, world
from warpseal.simnet.ledger import Transaction
from warpseal.simnet.plan import L1Plan, Plan
from warpseal.warp.ids import id_text


async def explained(running: World, transaction: Transaction, **changes: Any) -> dict[str, Any]:
    result = await running.messages.explain(wanted(transaction.tx_id, **changes))
    parsed: dict[str, Any] = json.loads(json.dumps(result))
    assert parsed == result
    return parsed


def outcomes(result: dict[str, Any]) -> dict[str, bool | None]:
    return {check["check"]: check["ok"] for check in result["checks"]}


async def test_a_message_that_would_be_signed_passes_every_check(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        result = await explained(running, registration)
        assert result["failing"] is None
        assert list(outcomes(result)) == [
            "transaction_accepted",
            "has_message",
            "p_chain_message",
            "justification",
            "validation_exists",
            "signing_subnet",
            "p_chain_height",
            "validator_set",
            "quorum_possible",
        ]
        assert set(outcomes(result).values()) == {True}
        assert registration.attested is not None
        assert result["message"]["hex"] == "0x" + registration.attested.unsigned.raw.hex()
        assert result["message"]["fields"] == {
            "validationId": id_text(validation(registration)),
            "registered": True,
        }
        assert result["transaction"]["type"] == "RegisterL1ValidatorTx"
        assert result["signingSubnetId"] == id_text(running.l1)
        assert result["pChainHeight"] == {"height": "20", "source": "epoch"}
        assert result["weights"] == {"total": "4000", "required": "2680", "withKey": "4000", "validators": 4}
        assert result["stored"] == {"signatures": 0, "shares": 0, "weight": "0"}
        assert running.asked() == 0
        await running.messages.get(wanted(registration.tx_id))
        stored = (await explained(running, registration))["stored"]
        assert stored["signatures"] == 1
        assert int(stored["weight"]) >= 2_680


async def test_an_unknown_transaction_is_a_check_that_fails(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        result = await running.messages.explain(wanted(bytes(31) + b"\x01"))
        assert result["failing"] == "transaction_accepted"
        assert result["transaction"]["status"] == "Unknown"
        await running.network.nodes[0].down()
        result = await running.messages.explain(wanted(bytes(31) + b"\x02"))
        assert (result["failing"], outcomes(result)) == (None, {"transaction_accepted": None})


async def test_a_type_without_a_message_is_named(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        result = await explained(running, running.network.p_chain.base())
        assert result["failing"] == "has_message"
        assert result["transaction"]["type"] == "BaseTx"


async def test_a_superseded_message_says_what_is_true_now_and_which_refusal_it_would_meet(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        first = running.network.p_chain.set_weight(validation(registration), 2_000)
        running.network.p_chain.set_weight(validation(registration), 3_000)
        result = await explained(running, first)
        assert result["failing"] == "latest_weight"
        assert result["truth"]["state"] == "superseded"
        assert result["truth"]["now"] == {"nonce": "1", "weight": "3000"}
        assert "code 16" in next(check["why"] for check in result["checks"] if check["check"] == "latest_weight")


async def test_the_origin_of_a_removal_is_named_or_its_progress(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        removal = running.network.p_chain.remove(validation(registration))
        running.follower["percent"] = 12.5
        result = await explained(running, removal)
        assert outcomes(result)["justification"] is None
        assert result["justification"]["hex"] is None
        assert result["justification"]["progress"]["follower"] == {"percent": 12.5}
        result = await explained(running, removal, justification=b"nonsense")
        assert outcomes(result)["justification"] is False
        result = await explained(running, removal, registration_tx_id=registration.tx_id)
        assert result["failing"] is None
        assert removal.attested is not None
        assert result["justification"] == {"hex": "0x" + removal.attested.justification.hex(), "source": "caller"}
        assert outcomes(result)["validation_removed"] is True


async def test_a_quorum_that_weight_without_keys_makes_impossible_is_told(tmp_path: Path) -> None:
    async with world(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1, weight=6_000)
        running.network.p_chain.disable(validation(registration))
        running.network.advance(10)
        result = await explained(running, registration, height=0)
        assert result["failing"] == "quorum_possible"
        assert result["weights"] == {"total": "10000", "required": "6700", "withKey": "4000", "validators": 4}


async def test_the_height_is_the_proposed_one_where_the_epoch_is_older_than_the_l1(tmp_path: Path) -> None:
    plan = Plan(validators=3, l1s=(L1Plan(validators=3, unconverted=True),), messages=0, epoch_blocks=40)
    async with world(tmp_path, plan, QUICK) as running:
        conversion = running.network.p_chain.convert(running.network.subnets[-1].subnet_id)
        answer = await running.messages.get(wanted(conversion.tx_id))
        result = await explained(running, conversion)
        assert (answer.height, answer.height_source) == (21, "proposed")
        assert result["pChainHeight"] == {"height": "21", "source": "proposed"}
        assert result["failing"] is None
        why = next(check["why"] for check in result["checks"] if check["check"] == "p_chain_height")
        assert why == "chosen by: proposed, since the height of the epoch (20) has no validators"


async def test_an_l1_that_is_too_young_to_sign_has_no_validators_yet(tmp_path: Path) -> None:
    l1s = (L1Plan(validators=3, unconverted=True),)
    plan = Plan(validators=3, l1s=l1s, messages=0, epoch_blocks=40, proposed_lag=2)
    async with world(tmp_path, plan, QUICK) as running:
        conversion = running.network.p_chain.convert(running.network.subnets[-1].subnet_id)
        result = await explained(running, conversion)
        assert result["pChainHeight"]["source"] == "proposed"
        assert result["failing"] == "validator_set"
