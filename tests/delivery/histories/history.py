"""One history: events, a message that the daemon signs for a destination, and blocks there that
verify it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.delivery.histories import clock
from tests.delivery.histories.setup import EPOCH_S, WINDOW_S, HistorySetup
from tests.delivery.histories.subjects import Subject, choose_subject
from tests.integration.daemon import AGGREGATE_V1_PATH, Reply
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, SubnetID, id_text, parse_id
from warpseal.warp.message import SignedMessage, UnsignedMessage, encode_signers
from warpseal_simnet.destination import ReceivedMessage, RefusalCode, canonical_keys, verify_for_set
from warpseal_simnet.proposervm import NO_EPOCH
from warpseal_simnet.signing import sign
from warpseal_simnet.validator_sets import SetEntry
from warpseal_simnet.warp_config import DEFAULT_QUORUM, WarpRule

VERIFY_PATH: Final = "/v1/signatureAggregator/fuji/verify"
_HURRY_S: Final = 2
_SHORTFALLS: Final = ("quorum_not_reached", "quorum_impossible", "no_validators")
# A node has one error for two cases that callers distinguish: a change that was made, and a nonce
# that is too low.
_SYNONYMS: Final = {
    RefusalCode.STALE_NONCE: {"stale_nonce", "already_delivered"},
    RefusalCode.NO_VALIDATION: {"no_validation", "already_delivered"},
}


class HistoryError(AssertionError):
    """The daemon foretold something that did not happen, or did not foretell what did."""


@dataclass
class History:
    """The run of one history.

    log: lines for the report of a failure.
    counts: number of each outcome.
    asked_at: Unix seconds of the last request.
    was_hurried: whether its time was made to pass faster.
    """

    setup: HistorySetup
    rng: Random
    number: int
    counts: Counter[str]
    log: list[str] = field(default_factory=list)
    asked_at: float = 0.0
    was_hurried: bool = False

    async def run(self) -> None:
        """Run it. Raises HistoryError."""
        for _ in range(self.rng.randint(0, 6)):
            self.setup.act(self.rng)
        subject = choose_subject(self.setup, self.rng, self.number)
        self.note(
            f"{id_text(subject.unsigned.source_chain_id)} to {id_text(subject.destination_id)}"
        )
        for _ in range(self.rng.choice((0, 0, 0, 1, 2))):
            self.setup.act(self.rng)
        await self.setup.settle()
        if self.rng.random() < 0.3:
            await self._check_foreign_signature(subject)
        if self.rng.random() < 0.05:
            await self._check_race(subject)
            return
        fields = self._options()
        reply = await self._ask(subject, fields)
        self.note(f"{fields} -> {reply.status} {reply.body.get('code', '')}")
        if reply.status == 201:
            await self._check_signed(subject, fields, reply)
        else:
            await self._check_refused(subject, fields, reply)

    def note(self, text: str) -> None:
        """Add a line to the report of a failure."""
        self.log.append(text)

    def require(self, holds: object, text: str) -> None:
        """Raise HistoryError unless a claim is true."""
        if not holds:
            raise HistoryError(text)

    def _options(self) -> dict[str, Any]:
        """Return fields that most requests do not have."""
        rng, fields = self.rng, dict[str, Any]()
        if rng.random() < 0.15:
            fields["quorumPercentage"] = rng.choice((1, 50, 67, 85, 100))
        if rng.random() < 0.15:
            current = self.setup.network.p_chain.height
            fields["pChainHeight"] = rng.choice((0, current, current - 1, current - 3))
        if rng.random() < 0.04:
            fields["signingSubnetId"] = id_text(rng.choice((PRIMARY_NETWORK, *self.setup.subnets)))
        return fields

    async def _ask(
        self, subject: Subject, fields: Mapping[str, Any], *, wants_report: bool = True
    ) -> Reply:
        """Return the daemon's reply; time passes while it waits for validators that do not sign."""
        daemon, transaction = self.setup.daemon, subject.transaction
        common = {"report": wants_report, "timeoutSeconds": 8, **fields}
        if (
            subject.is_for_manager(self.setup)
            and transaction is not None
            and "signingSubnetId" not in fields
        ):
            query = {**common, "report": str(wants_report).lower()}
            request = asyncio.create_task(daemon.l1_message(transaction, **query))
        else:
            message = {
                "message": subject.unsigned.raw.hex(),
                "justification": subject.justification.hex(),
                "destinationBlockchainId": id_text(subject.destination_id),
            }
            request = asyncio.create_task(daemon.post(AGGREGATE_V1_PATH, {**message, **common}))
        self.asked_at, self.was_hurried = time.time(), False
        while not request.done():
            if await clock.is_idle(request):
                self.was_hurried = True
                clock.skip(_HURRY_S)
        return request.result()

    async def _check_foreign_signature(self, subject: Subject) -> None:
        """Check the preflight of a message that validators signed at some height without the
        daemon.
        """
        state, signer = self.setup.network.state, self._signer(subject)
        heights = (
            self.setup.proposer(subject.destination_id).verifying_height,
            state.heights.proposed,
        )
        height = self.rng.choice((*heights, state.heights.current - self.rng.randrange(9)))
        try:
            signed = sign(state, subject.unsigned, signer, height)
        except RuntimeError:
            return
        self.counts["signed without the daemon"] += 1
        await self._check_preflight(subject, signed.encode())

    async def _check_race(self, subject: Subject) -> None:
        """Let the destination's epoch end while the daemon signs; its message verifies at the
        height that it names.
        """
        network, chain_id = self.setup.network, subject.destination_id
        clock.skip(self.rng.choice((0, EPOCH_S)))
        await self.setup.settle()
        request = asyncio.create_task(self._ask(subject, {}))
        await asyncio.sleep(self.rng.uniform(0, 0.02))
        for _ in range(3):
            network.build_block(chain_id)
        reply = await request
        self.counts[f"raced: {reply.status}"] += 1
        if reply.status != 201:
            return
        report, raw = reply.body["report"], bytes.fromhex(reply.signed)
        signer = SubnetID(parse_id(report["signingSubnetId"]))
        height, quorum = int(report["pChainHeight"]), report["quorum"]["percentage"]
        delivery = verify_for_set(network.state, ReceivedMessage.parse(raw), signer, height, quorum)
        self.require(delivery.accepted, f"{report}: {delivery}")

    # A message was signed.

    async def _check_signed(
        self, subject: Subject, fields: Mapping[str, Any], reply: Reply
    ) -> None:
        self.counts["signed"] += 1
        raw, report = bytes.fromhex(reply.signed), reply.body["report"]
        self._check_report(subject, report, raw)
        self._check_headers(report, reply.headers)
        quorum = max(fields.get("quorumPercentage", 0), self._quorum(subject) or 0)
        self.require(report["quorum"]["percentage"] == quorum, f"quorum {quorum}: {report}")
        height, signer = int(report["pChainHeight"]), SubnetID(parse_id(report["signingSubnetId"]))
        as_reported = verify_for_set(
            self.setup.network.state, ReceivedMessage.parse(raw), signer, height, quorum
        )
        self.require(
            as_reported.accepted, f"not signed as the report says: {as_reported}, {report}"
        )
        verdict = self.setup.network.verify_next(subject.destination_id, raw)
        self.note(f"report {report}, block: {verdict}")
        self.require(report.get("verifiesNow") == verdict.accepted, "verifiesNow")
        if not fields.keys() & {"pChainHeight", "signingSubnetId"}:
            self.require(verdict.accepted, "the message does not verify, though nothing was pinned")
        self.counts["verifies now" if verdict.accepted else "does not verify now"] += 1
        if self.rng.random() < 0.3:
            await self._check_repeated(subject, fields)
        await self._check_preflight(subject, raw)
        if self.rng.random() < 0.3:
            await self._check_preflight(subject, self._mutated(raw))
        if report.get("epoch") and not self._rules_changed(subject, report):
            self._check_window(subject, fields, reply)
        if self.rng.random() < 0.5:
            await self._check_block(subject, raw)
        if subject.destination_id == P_CHAIN or self.rng.random() < 0.7:
            # A caller's own signing subnet may be one that the destination never takes.
            following = {} if "signingSubnetId" in fields else reply.body.get("next") or {}
            signed = following.get("signedMessage")
            await self._check_next_epoch(subject, raw, report, signed and bytes.fromhex(signed))

    async def _check_repeated(self, subject: Subject, fields: Mapping[str, Any]) -> None:
        """Ask twice without a report: the second reply, which is remembered, says what the next
        block does as well.
        """
        for _ in range(2):
            reply = await self._ask(subject, fields, wants_report=False)
            if reply.status != 201:
                return
            verdict = self.setup.network.verify_next(
                subject.destination_id, bytes.fromhex(reply.signed)
            )
            verifies_now = reply.headers.get(
                "X-Warpseal-Verifies-Now", str(verdict.accepted).lower()
            )
            self.require(
                verifies_now == str(verdict.accepted).lower(),
                f"without a report: {dict(reply.headers)}, {verdict}",
            )
            self.counts["without a report"] += 1

    def _check_report(self, subject: Subject, report: Mapping[str, Any], raw: bytes) -> None:
        proposer = self.setup.proposer(subject.destination_id)
        epoch = proposer.next_epoch
        expected = {
            "number": epoch.number,
            "startTime": epoch.start_time,
            "pChainHeight": str(epoch.p_chain_height),
            "sealedFrom": epoch.start_time + EPOCH_S,
        }
        self.require(
            report.get("epoch") == (None if epoch == NO_EPOCH else expected), f"epoch {epoch}"
        )
        by_label = {entry["epoch"]: int(entry["pChainHeight"]) for entry in report["heights"]}
        block = proposer.next_block(time.time())
        self.require(by_label["current"] == block.verifying_height, f"the height of {block}")
        if epoch != NO_EPOCH:
            self.require(
                by_label["next"] == block.p_chain_height, f"the proposed height of {block}"
            )
        self._check_heights(subject, report["heights"], raw)
        if "advice" in report:
            self._check_advice(subject, report["advice"])

    def _check_heights(
        self, subject: Subject, heights: Sequence[Mapping[str, Any]], raw: bytes
    ) -> None:
        """Check the report of a message at each height at which the destination may verify it."""
        signer, quorum = self._signer(subject), self._quorum(subject)
        assert quorum is not None
        for entry in heights:
            height = int(entry["pChainHeight"])
            verdict = verify_for_set(
                self.setup.network.state, ReceivedMessage.parse(raw), signer, height, quorum
            )
            self.require(entry["verifies"] == verdict.accepted, f"{verdict}: {entry}")
            if "reason" in entry:
                self.require(entry["reason"] == verdict.code, f"{verdict}: {entry}")
            total = sum(member.weight for member in self._set(signer, height))
            self.require(int(entry["totalWeight"]) == total, f"total weight {total}: {entry}")
            self.require(
                int(entry["requiredWeight"]) == -(-total * quorum // 100),
                f"required weight: {entry}",
            )
            if entry["epoch"] == "previous":
                epochs = self.setup.proposer(subject.destination_id).epochs
                self.require(
                    (entry["number"], height) in epochs.items(), f"the previous epoch: {entry}"
                )

    def _check_headers(self, report: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Check that the headers say what the report says."""
        weights = {
            f"{entry['pChainHeight']}={entry['signedWeight']}/{entry['totalWeight']}"
            for entry in report["heights"]
        }
        expected = {
            "P-Chain-Height": report["pChainHeight"],
            "P-Chain-Height-Source": report["pChainHeightSource"],
            "Signing-Subnet-Id": report["signingSubnetId"],
            "Epoch": str(report["epoch"]["number"]) if "epoch" in report else None,
            "Quorum": f"{report['quorum']['percentage']}; source={report['quorum']['source']}",
            "Verifies-Now": str(report["verifiesNow"]).lower(),
        }
        values = {name: headers.get(f"X-Warpseal-{name}") for name in expected}
        self.require(values == expected, f"headers {values}")
        self.require(
            set(headers["X-Warpseal-Weights"].split(", ")) == weights, f"weights {headers}"
        )

    def _check_window(self, subject: Subject, fields: Mapping[str, Any], reply: Reply) -> None:
        """Check that the reply has a message for the next epoch if the current one may end."""
        report = reply.body["report"]
        predicted = next(
            int(entry["pChainHeight"]) for entry in report["heights"] if entry["epoch"] == "next"
        )
        is_ending = self.asked_at + WINDOW_S >= report["epoch"]["sealedFrom"]
        if (
            fields
            or not is_ending
            or report.get("servesNext")
            or not subject.can_be_signed(self.setup)
        ):
            return
        quorum = self._quorum(subject)
        if quorum is not None and self._suffices(
            self._set(self._signer(subject), predicted), quorum
        ):
            self.require(
                "signedMessage" in (reply.body.get("next") or {}), "no message for the next epoch"
            )

    async def _check_preflight(self, subject: Subject, raw: bytes) -> None:
        """Check that the preflight foretells what the next block says, without building it."""
        result = await self._preflight(subject, raw)
        verdict = self.setup.network.verify_next(subject.destination_id, raw)
        self.note(f"preflight {result.status} {result.body}, block: {verdict}")
        if verdict.code is RefusalCode.WARP_DISABLED:
            self.require(
                result.body.get("code") == "warp_disabled", "preflight: the chain takes no messages"
            )
            return
        self.require(result.status == 200, "preflight: refused")
        self.require(result.body["verifiesNow"] == verdict.accepted, "preflight: verifiesNow")
        if verdict.code not in (RefusalCode.PAYLOAD, RefusalCode.UNKNOWN_SOURCE):
            self._check_heights(subject, result.body["heights"], raw)
        if not verdict.accepted:
            self.require(result.body["reason"] == verdict.code, "preflight: another reason")
            self.counts[f"refused: {verdict.code}"] += 1

    async def _check_block(self, subject: Subject, raw: bytes) -> None:
        """Deliver a message in the next block; the preflight foretold what becomes of it, twice."""
        for _ in range(2):
            result = await self._preflight(subject, raw)
            (delivery,) = self.setup.network.build_block(subject.destination_id, [raw])
            self.note(f"preflight {result.body}, delivered: {delivery}")
            if result.body.get("code") == "warp_disabled":
                self.require(delivery.code is RefusalCode.WARP_DISABLED, "preflight: warp_disabled")
                return
            reason = result.body.get("reason")
            self.counts["delivered" if delivery.accepted else f"refused: {delivery.code}"] += 1
            if delivery.accepted:
                self.require(
                    reason in (None, "other_destination"), "accepted, though a refusal was foretold"
                )
            elif delivery.code is not RefusalCode.NOT_ALLOWED:
                assert delivery.code is not None
                foretold = _SYNONYMS.get(delivery.code, {str(delivery.code)})
                self.require(reason in foretold, "refused for another reason than foretold")
            await self.setup.settle()

    async def _preflight(self, subject: Subject, raw: bytes) -> Reply:
        body = {
            "signedMessage": raw.hex(),
            "destinationBlockchainId": id_text(subject.destination_id),
        }
        return await self.setup.daemon.post(VERIFY_PATH, body)

    async def _check_next_epoch(
        self, subject: Subject, raw: bytes, report: Mapping[str, Any], following: bytes | None
    ) -> None:
        """Seal the epoch of the report; check the message, and the second one, in the first block
        of the next one.
        """
        network, chain_id = self.setup.network, subject.destination_id
        proposer = self.setup.proposer(chain_id)
        if "epoch" not in report:
            return
        predicted = next(
            int(entry["pChainHeight"]) for entry in report["heights"] if entry["epoch"] == "next"
        )
        if proposer.next_epoch.number != report["epoch"]["number"]:
            return
        clock.skip(max(0, report["epoch"]["sealedFrom"] - time.time() + 1))
        network.build_block(chain_id)
        epoch = proposer.next_epoch
        self.require(
            epoch.number == report["epoch"]["number"] + 1, f"the epoch did not end: {epoch}"
        )
        if epoch.p_chain_height != predicted:
            self.counts["another height than predicted"] += 1
            return
        verdict = network.verify_next(chain_id, raw)
        self.note(f"in {epoch}: {verdict}")
        if verdict.code is RefusalCode.WARP_DISABLED or self._rules_changed(subject, report):
            return
        self.require(report.get("servesNext") == verdict.accepted, "servesNext")
        self.counts["serves next" if verdict.accepted else "does not serve next"] += 1
        if following is not None:
            self.require(
                network.verify_next(chain_id, following).accepted, "the second message is refused"
            )
            self.counts["second message accepted"] += 1
        if self.rng.random() < 0.5:
            await self._check_stored_shares(subject, raw, report)

    async def _check_stored_shares(
        self, subject: Subject, raw: bytes, report: Mapping[str, Any]
    ) -> None:
        """Ask again in a later epoch; if the signers of the first message suffice there, no
        validator is asked.
        """
        network, state = self.setup.network, self.setup.network.state
        await self.setup.settle()
        quorum, signer = self._quorum(subject), self._signer(subject)
        if quorum is None or subject.transaction is not None:
            return
        height = (
            self.setup.proposer(subject.destination_id).next_block(time.time()).verifying_height
        )
        keys = canonical_keys(
            state.set_at(SubnetID(parse_id(report["signingSubnetId"])), int(report["pChainHeight"]))
        )
        public_keys = {keys[index] for index in SignedMessage.parse(raw).signer_indices}
        members = self._set(signer, height)
        weight = sum(member.weight for member in members if member.public_key in public_keys)
        total = sum(member.weight for member in members)
        if not total or weight * 100 < total * quorum:
            return
        app_requests = sum(node.counts.app_requests for node in network.validators)
        reply = await self._ask(subject, {"report": False})
        self.require(reply.status == 201, f"stored shares suffice at {height}: {reply.body}")
        self.require(
            sum(node.counts.app_requests for node in network.validators) == app_requests,
            "validators were asked again",
        )
        verdict = network.verify_next(subject.destination_id, bytes.fromhex(reply.signed))
        self.require(verdict.accepted, f"made again from stored shares: {verdict}")
        self.counts["made again from stored shares"] += 1

    def _rules_changed(self, subject: Subject, report: Mapping[str, Any]) -> bool:
        """Return whether the destination's rules are others now than at the time of a report."""
        if subject.destination_id == P_CHAIN:
            return False
        rule = self._rule(subject)
        current = next(entry for entry in report["heights"] if entry["epoch"] == "current")
        required = -(-int(current["totalWeight"]) * (rule.numerator if rule else 0) // 100)
        upgrades = self.setup.network.state.warp[subject.destination_id].upgrades
        is_recent = any(time.time() - 60 < upgrade.since <= time.time() for upgrade in upgrades)
        return is_recent or required != int(current["requiredWeight"])

    # No message was signed.

    async def _check_refused(
        self, subject: Subject, fields: Mapping[str, Any], reply: Reply
    ) -> None:
        code = reply.body.get("code")
        self.counts[f"not signed: {code}"] += 1
        quorum = self._quorum(subject)
        if code == "warp_disabled":
            self.require(quorum is None, "the chain takes messages")
            return
        self.require(quorum is not None, "the chain takes no messages")
        assert quorum is not None
        if fields.keys() & {"pChainHeight", "signingSubnetId", "quorumPercentage"}:
            return
        if code not in _SHORTFALLS:
            # A message that honest validators do not sign has an error of its own.
            self.require(not subject.can_be_signed(self.setup), f"refused: {reply.body}")
            return
        height = (
            self.setup.proposer(subject.destination_id).next_block(time.time()).verifying_height
        )
        signer = self._signer(subject)
        present = self.setup.network.state.heights.proposed
        before, now = (self._set(signer, at) for at in (height, present))
        if subject.can_be_signed(self.setup):
            self.require(
                not self._suffices(before, quorum), f"{before} at {height} would sign: {reply.body}"
            )
        advice = reply.detail.get("advice")
        is_pinned = before != now and height < present
        helps = is_pinned and self._can_sign(now, quorum, reply.detail.get("validators", ()))
        self.require((advice is not None) == helps, f"advice: {reply.body}, {before} and {now}")
        if advice is not None:
            self._check_advice(subject, advice)
            if subject.can_be_signed(self.setup) and self._suffices(now, quorum):
                await self._follow(subject, advice)

    def _check_advice(self, subject: Subject, advice: Mapping[str, Any]) -> None:
        proposer, state = self.setup.proposer(subject.destination_id), self.setup.network.state
        signer, needed = self._signer(subject), int(advice["neededHeight"])
        pinned = proposer.next_block(time.time()).verifying_height
        self.require(int(advice["pinnedHeight"]) == pinned, f"pinned to {pinned}: {advice}")
        self.require(pinned < needed <= state.heights.proposed, f"needed height: {advice}")
        self.require(
            self._set(signer, needed) == self._set(signer, state.heights.proposed), f"set: {advice}"
        )
        is_lowest = self._set(signer, needed - 1) != self._set(signer, needed)
        # The daemon takes a higher one if its search is out of time, which passes fast in a hurry.
        self.require(is_lowest or self.was_hurried, f"lowest: {advice}")
        self.counts["advice"] += 1

    async def _follow(self, subject: Subject, advice: Mapping[str, Any]) -> None:
        """Do what the advice says; then the message is signed, and accepted."""
        network, chain_id = self.setup.network, subject.destination_id
        clock.skip(max(0, advice["notBefore"] - int(time.time())))
        for _ in range(advice["blocksBefore"]):
            network.build_block(chain_id)
        height = self.setup.proposer(chain_id).next_block(time.time()).verifying_height
        self.require(
            height >= int(advice["neededHeight"]), f"the epoch is at {height} after {advice}"
        )
        quorum = self._quorum(subject)
        signers = self._set(self._signer(subject), height)
        if quorum is None or not self._suffices(signers, quorum):
            return
        await self.setup.settle()
        reply = await self._ask(subject, {})
        self.note(f"after the advice {advice}: {reply.status} {reply.body}")
        if not subject.can_be_signed(self.setup):
            return
        self.require(reply.status == 201, "the advice led to no message")
        verdict = network.verify_next(chain_id, bytes.fromhex(reply.signed))
        self.require(verdict.accepted, f"the advice led to a message that is refused: {verdict}")
        self.counts["advice followed"] += 1

    # The network as it is.

    def _rule(self, subject: Subject) -> WarpRule | None:
        """Return the Warp rules of a destination other than the P-Chain; None if it takes no
        messages.
        """
        config = self.setup.network.state.warp.get(subject.destination_id)
        return None if config is None else config.at(int(time.time()))

    def _quorum(self, subject: Subject) -> int | None:
        """Return the quorum of the destination, percent; None if it takes no messages."""
        if subject.destination_id == P_CHAIN:
            return DEFAULT_QUORUM
        rule = self._rule(subject)
        return None if rule is None else rule.numerator

    def _signer(self, subject: Subject) -> SubnetID:
        """Return the subnet that signs for the destination."""
        state = self.setup.network.state
        source, destination = (
            state.chains[chain_id]
            for chain_id in (subject.unsigned.source_chain_id, subject.destination_id)
        )
        if source.subnet_id != PRIMARY_NETWORK:
            return source.subnet_id
        if source.chain_id != P_CHAIN:
            if destination.chain_id == P_CHAIN:
                return PRIMARY_NETWORK
            rule = self._rule(subject)
            if rule is not None and rule.needs_primary_signers:
                return PRIMARY_NETWORK
        return destination.subnet_id

    def _set(self, subnet_id: SubnetID, height: int) -> frozenset[SetEntry]:
        return frozenset(self.setup.network.state.set_at(subnet_id, height))

    def _suffices(self, members: frozenset[SetEntry], quorum: int) -> bool:
        """Return whether the members that can sign have the weight of a quorum."""
        keys = {
            (node.node_id, node.bls_key)
            for node in self.setup.network.validators
            if node.counts.open_connections
        }
        weight = sum(
            member.weight for member in members if (member.node_id, member.public_key) in keys
        )
        total = sum(member.weight for member in members)
        return total > 0 and weight * 100 >= total * quorum

    def _can_sign(
        self, members: frozenset[SetEntry], quorum: int, missing: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Return whether a set has the weight of a quorum without those who failed, by the reply,
        to sign.
        """
        failed = {entry.get("publicKey") for entry in missing if entry["reason"] != "not_asked"}
        able = (
            member
            for member in members
            if member.public_key and "0x" + member.public_key.hex() not in failed
        )
        return (
            sum(member.weight for member in able) * 100
            >= sum(member.weight for member in members) * quorum
        )

    def _mutated(self, raw: bytes) -> bytes:
        """Return a message that differs in one of the parts that a verifier checks."""
        message, rng = SignedMessage.parse(raw), self.rng
        unsigned, signers, signature = message.unsigned, message.signers, message.signature
        match rng.randrange(6):
            case 0:
                unsigned = UnsignedMessage.build(
                    unsigned.network_id + 1, unsigned.source_chain_id, unsigned.payload
                )
            case 1:
                signers = b"\x00" + signers
            case 2:
                signers = encode_signers([*message.signer_indices, rng.randrange(30)])
            case 3:
                signers = encode_signers(message.signer_indices[1:])
            case 4:
                signature = bytes([signature[0] ^ 0x20]) + signature[1:]
            case 5:
                signature = rng.randbytes(96)
        return SignedMessage(unsigned, signers, signature).encode()
