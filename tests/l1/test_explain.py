"""Explanations of requests: every part, every check in order, and no signature request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec.json import encode

from tests.l1.fixtures import L1Setup, build_request, started_l1_service
from tests.l1.test_service import QUICK, validation_id_of
from warpseal.messages.errors import SigningBlocked
from warpseal.store.values import BlockRange, L1Transaction, SigningBlock, SigningBlockKind
from warpseal.validators.balances import FIXED_HEIGHT_ADVICE, UNDERFUNDED_ADVICE
from warpseal.warp.ids import P_CHAIN, ChainID, SubnetID, id_text
from warpseal.warp.message import UnsignedMessage
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.plan import L1Plan, Plan
from warpseal_simnet.rpc import Outage, OutageKind


async def explain(running: L1Setup, transaction: Transaction, **changes: Any) -> dict[str, Any]:
    result = await running.messages.explain(build_request(transaction.tx_id, **changes))
    parsed: dict[str, Any] = json.loads(encode(result))
    return parsed


def outcomes(result: dict[str, Any]) -> dict[str, bool | None]:
    return {check["check"]: check["ok"] for check in result["checks"]}


def reason(result: dict[str, Any], name: str) -> str:
    """Return why a check has its result."""
    text: str = next(check["why"] for check in result["checks"] if check["check"] == name)
    return text


async def test_a_message_that_would_be_signed_passes_every_check(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        result = await explain(running, registration)
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
            "validationId": id_text(validation_id_of(registration)),
            "registered": True,
        }
        assert result["transaction"]["type"] == "RegisterL1ValidatorTx"
        # The node says only that the transaction is accepted by its own height.
        assert result["transaction"]["pChainHeightAtMost"] == str(running.network.p_chain.height)
        assert "pChainHeight" not in result["transaction"]
        assert result["truth"] == {"state": "true"}
        height = running.network.p_chain.height
        assert reason(result, "validation_exists") == f"at a node of height {height}"
        assert result["signingSubnetId"] == id_text(running.l1)
        assert result["pChainHeight"] == {"height": "20", "source": "epoch"}
        assert result["weights"] == {
            "total": "4000",
            "required": "2680",
            "withKey": "4000",
            "validators": 4,
        }
        assert result["stored"] == {"signatures": 0, "shares": 0, "weight": "0"}
        assert running.count_signature_requests() == 0
        await running.messages.get(build_request(registration.tx_id))
        stored = (await explain(running, registration))["stored"]
        assert stored["signatures"] == 1
        assert int(stored["weight"]) >= 2_680


async def test_a_stored_transaction_is_explained_with_its_height(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        height = conversion.height
        assert height is not None
        row = L1Transaction(
            conversion.tx_id, height, 0, bytes(32), 0, conversion.kind, conversion.raw
        )
        await running.store.l1.append(
            P_CHAIN, BlockRange(height, height, bytes(32), bytes(32)), [row], []
        )
        result = await explain(running, conversion)
        assert result["transaction"]["pChainHeight"] == str(height)
        assert "pChainHeightAtMost" not in result["transaction"]
        assert reason(result, "conversion_recorded") == "a conversion is valid forever"


async def test_the_quorum_is_at_least_that_of_the_managers_chain(tmp_path: Path) -> None:
    async def find_quorum(_: ChainID) -> int:
        return 80

    async with started_l1_service(tmp_path, settings=QUICK, find_quorum=find_quorum) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        for quorum, is_default, required in (
            (67, False, "3200"),
            (90, False, "3600"),
            (90, True, "3200"),
        ):
            result = await explain(running, conversion, quorum=quorum, is_default_quorum=is_default)
            assert result["weights"]["required"] == required


async def test_a_subnet_that_may_not_sign_fails_the_signing_allowed_check(tmp_path: Path) -> None:
    refused: list[SubnetID | None] = []

    def refuse(_: UnsignedMessage, subnet_id: SubnetID | None) -> None:
        if subnet_id in refused:
            raise SigningBlocked(SigningBlock(SigningBlockKind.SENDER, "0x", "stolen key", 1))

    async with started_l1_service(tmp_path, settings=QUICK, check_signing=refuse) as running:
        conversion = running.network.p_chain.conversion_of(running.l1)
        assert (await explain(running, conversion))["failing"] is None
        refused.append(running.l1)
        result = await explain(running, conversion)
        assert result["failing"] == "signing_allowed"
        assert reason(result, "signing_allowed").endswith("stolen key")


async def test_a_search_that_does_not_end_is_explained_with_its_progress(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        removal = running.network.p_chain.remove(validation_id_of(registration))
        # What comes before the search is in memory then.
        await running.messages.manager_chain(build_request(removal.tx_id))
        await explain(running, running.network.p_chain.conversion_of(running.l1))
        running.network.nodes[0].rpc.outages["platform.getSubnets"] = Outage(OutageKind.HANG)
        running.follower["percent"] = 12.5
        result = await explain(running, removal, timeout_s=2.0)
        assert outcomes(result)["justification"] is None
        assert result["justification"]["progress"]["follower"] == {"percent": 12.5}


async def test_an_unknown_transaction_fails_the_first_check(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        result = await running.messages.explain(build_request(bytes(31) + b"\x01"))
        assert result.failing == "transaction_accepted"
        assert result.transaction.status == "Unknown"
        await running.network.nodes[0].down()
        result = await running.messages.explain(build_request(bytes(31) + b"\x02"))
        assert (result.failing, [(check.check, check.ok) for check in result.checks]) == (
            None,
            [("transaction_accepted", None)],
        )


async def test_a_transaction_without_a_message_fails_the_has_message_check(tmp_path: Path) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        result = await explain(running, running.network.p_chain.base())
        assert result["failing"] == "has_message"
        assert result["transaction"]["type"] == "BaseTx"


async def test_a_superseded_message_is_explained_with_the_current_state_and_the_refusal_code(
    tmp_path: Path,
) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        first = running.network.p_chain.set_weight(validation_id_of(registration), 2_000)
        running.network.p_chain.set_weight(validation_id_of(registration), 3_000)
        result = await explain(running, first)
        assert result["failing"] == "latest_weight"
        assert result["truth"]["state"] == "superseded"
        assert result["truth"]["now"] == {"nonce": "1", "weight": "3000"}
        assert "code 16" in reason(result, "latest_weight")


async def test_the_origin_of_a_removal_is_explained_by_its_source_or_the_progress(
    tmp_path: Path,
) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1)
        removal = running.network.p_chain.remove(validation_id_of(registration))
        running.follower["percent"] = 12.5
        result = await explain(running, removal)
        assert outcomes(result)["justification"] is None
        assert result["justification"]["hex"] is None
        assert result["justification"]["progress"]["follower"] == {"percent": 12.5}
        result = await explain(running, removal, justification=b"nonsense")
        assert outcomes(result)["justification"] is False
        result = await explain(running, removal, registration_tx_id=registration.tx_id)
        assert result["failing"] is None
        assert removal.attested is not None
        assert result["justification"] == {
            "hex": "0x" + removal.attested.justification.hex(),
            "source": "caller",
        }
        assert outcomes(result)["validation_removed"] is True


async def test_a_quorum_that_weight_without_keys_makes_impossible_is_explained(
    tmp_path: Path,
) -> None:
    async with started_l1_service(tmp_path, settings=QUICK) as running:
        registration = running.network.p_chain.register(running.l1, weight=6_000)
        running.network.p_chain.disable(validation_id_of(registration))
        running.network.advance(10)
        result = await explain(running, registration, height=0)
        assert result["failing"] == "quorum_possible"
        assert result["weights"] == {
            "total": "10000",
            "required": "6700",
            "withKey": "4000",
            "validators": 4,
        }
        inactive = {"validationId": id_text(validation_id_of(registration)), "weight": "6000"}
        assert [{key: item[key] for key in inactive} for item in result["inactive"]] == [inactive]
        assert reason(result, "quorum_possible") == (
            f"4000 of 10000 can sign, 6700 must. {UNDERFUNDED_ADVICE}"
        )
        # At a height of the past a balance that is topped up changes nothing.
        height = int(result["pChainHeight"]["height"])
        result = await explain(running, registration, height=height)
        assert reason(result, "quorum_possible").endswith(FIXED_HEIGHT_ADVICE)


async def test_the_proposed_height_is_used_if_the_epoch_is_older_than_the_l1(
    tmp_path: Path,
) -> None:
    plan = Plan(
        validators=3, l1s=(L1Plan(validators=3, unconverted=True),), messages=0, epoch_blocks=40
    )
    async with started_l1_service(tmp_path, plan, QUICK) as running:
        conversion = running.network.p_chain.convert(running.network.subnets[-1].subnet_id)
        reply = await running.messages.get(build_request(conversion.tx_id))
        result = await explain(running, conversion)
        assert (reply.height, reply.height_source) == (21, "proposed")
        assert result["pChainHeight"] == {"height": "21", "source": "proposed"}
        assert result["failing"] is None
        assert (
            reason(result, "p_chain_height")
            == "chosen by: proposed, since the height of the epoch (20) has no validators"
        )


async def test_a_just_converted_l1_fails_the_validator_set_check(tmp_path: Path) -> None:
    l1s = (L1Plan(validators=3, unconverted=True),)
    plan = Plan(validators=3, l1s=l1s, messages=0, epoch_blocks=40, proposed_lag=2)
    async with started_l1_service(tmp_path, plan, QUICK) as running:
        conversion = running.network.p_chain.convert(running.network.subnets[-1].subnet_id)
        result = await explain(running, conversion)
        assert result["pChainHeight"]["source"] == "proposed"
        assert result["failing"] == "validator_set"
