"""Takes what comes in for one round: answers of validators, shares at hand, shares that other rounds learn of.

Answers come by callback, by the thousand. They are taken in small portions, so that the event loop is never held up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from warpseal.aggregation.keeping import Keeper
from warpseal.aggregation.proving import Prover
from warpseal.aggregation.roll import Fate
from warpseal.aggregation.round import Round
from warpseal.aggregation.shares import Candidate
from warpseal.aggregation.tools import Tools
from warpseal.bls import MalformedShare
from warpseal.peers.request_fanout import PeerResponse
from warpseal.protocol.acp118 import NoSignature, decode_signature_response
from warpseal.store.values import StoredShare
from warpseal.warp.ids import MessageID, NodeID

# Decoding so many shares takes two milliseconds; then other callbacks of the loop have their turn.
_ANSWERS_PER_TURN: Final = 64


class Intake:
    """Feeds a round and its prover. wake: called when the round may have come to where something is to be done.

    wake_weight: usable weight from which on every share is worth a call of `wake`.
    """

    def __init__(self, round_: Round, prover: Prover, keeper: Keeper, tools: Tools, wake: Callable[[], None]) -> None:
        self.wake_weight = 0
        self._loop = asyncio.get_running_loop()
        self._round = round_
        self._members = round_.roll.members
        self._prover = prover
        self._keeper = keeper
        self._shares = tools.shares
        self._suspects = tools.suspects
        self._wake = wake
        self._message_id: MessageID = prover.message.id
        self._answers: deque[PeerResponse] = deque()
        self._is_scheduled = False

    def open(self) -> None:
        """Take the shares at hand, and from now on those that other rounds of the message learn of."""
        now = self._loop.time()
        for public_key, candidate in self._shares.listen(self._message_id, self).items():
            index = self._members.index_of_key(public_key)
            if index is not None:
                self._receive(index, candidate, None, now)

    async def take_stored(self, shares: Iterable[StoredShare]) -> None:
        """Take shares that were kept, a portion at a time."""
        taken = 0
        for stored in shares:
            index = self._members.index_of_key(stored.public_key)
            if index is None or self._prover.covers(index):
                continue
            self._take_one_stored(index, stored)
            taken += 1
            if not taken % _ANSWERS_PER_TURN:
                await asyncio.sleep(0)

    def close(self) -> None:
        """Take nothing more."""
        self._answers.clear()
        self._shares.ignore(self._message_id, self)

    def answered(self, answer: PeerResponse) -> None:
        """Take a validator's answer, soon."""
        self._answers.append(answer)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._drain)

    def share_came(self, public_key: bytes, candidate: Candidate) -> None:
        """A share came to another round of the message."""
        index = self._members.index_of_key(public_key)
        if index is not None:
            self._receive(index, candidate, None, self._loop.time())
            self._wake_if_useful()

    def share_went(self, public_key: bytes, candidate: Candidate) -> None:
        """A share was found bad, here or in another round."""
        index = self._members.index_of_key(public_key)
        if index is not None and self._prover.candidates[index] is candidate:
            self._prover.drop(index)
            self._round.bad(index)
            self._wake()

    def _drain(self) -> None:
        answers = self._answers
        now = self._loop.time()
        for _ in range(min(len(answers), _ANSWERS_PER_TURN)):
            self._take(answers.popleft(), now)
        self._is_scheduled = bool(answers)
        if answers:
            self._loop.call_soon(self._drain)
        self._wake_if_useful()

    def _take(self, answer: PeerResponse, now: float) -> None:
        node_id = answer.node_id
        index = self._members.index_of_node(node_id)
        if index is None:
            return
        if answer.body is None:
            self._round.refused(node_id, answer.error_code or 0, answer.error_message)
            return
        raw = decode_signature_response(answer.body)
        if raw is NoSignature.EMPTY:
            self._round.empty(node_id)
        elif isinstance(raw, NoSignature):
            self._round.malformed(node_id)
        else:
            self._take_share(node_id, index, raw, now)

    def _take_share(self, node_id: NodeID, index: int, raw: bytes, now: float) -> None:
        public_key = self._members.validators[index].public_key
        try:
            candidate = self._shares.offer(self._message_id, public_key, raw, by=self)
        except MalformedShare:
            self._round.malformed(node_id)
            return
        if candidate.raw == raw:
            self._receive(index, candidate, node_id, now)

    def _take_one_stored(self, index: int, stored: StoredShare) -> None:
        try:
            candidate = self._shares.offer(self._message_id, stored.public_key, stored.signature, by=self)
        except MalformedShare:
            self._keeper.bad(stored.public_key, stored.signature)
            return
        self._receive(index, candidate, None, self._loop.time())
        if candidate.raw != stored.signature:
            # Of two different shares of a key one at least is bad: the one at hand is verified before it is used.
            self._round.doubt((index,))
            self._prover.doubt(index)
        elif stored.verified:
            self._prover.vouch(index)

    def _receive(self, index: int, candidate: Candidate, giver: NodeID | None, now: float) -> None:
        held = self._prover.candidates[index]
        if held is candidate:
            self._round.share(index, giver)
        elif held is None:
            public_key = self._members.validators[index].public_key
            self._keeper.share(public_key, candidate)
            if self._prover.covers(index):
                return
            self._prover.candidates[index] = candidate
            is_doubtful = not candidate.proven and self._suspects.holds(public_key, now)
            if is_doubtful:
                self._prover.doubt(index)
            self._round.share(index, giver, doubtful=is_doubtful)

    def _wake_if_useful(self) -> None:
        roll = self._round.roll
        if self._round.stirred or roll.signed + roll.weight[Fate.DOUBTED] >= self.wake_weight:
            self._wake()
