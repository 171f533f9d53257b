"""Calls of one EVM chain: refused, sent to a node that may have them, or derived where no node has the method.

What a node may have done is never asked of a second one; what only reads is. Source of truth: docs/node-interfaces.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

import msgspec

from warpseal.evm_rpc.arguments import plain_timestamp
from warpseal.evm_rpc.calls import METHOD_NOT_FOUND, RpcAnswer, RpcCall, RpcError, RpcFailure
from warpseal.evm_rpc.chain_config import ChainConfig
from warpseal.evm_rpc.filters import FilterRegistry
from warpseal.evm_rpc.head_tracking import HEADS, head_in, tells
from warpseal.evm_rpc.messages import decode_answers, encode_calls, result_of
from warpseal.evm_rpc.methods import (
    FEE_CONFIG,
    PLAIN_READS,
    SUBNET_EVM,
    TIMESTAMPED,
    DenyList,
    MethodClass,
    class_of,
)
from warpseal.evm_rpc.node import EvmErrorKind, EvmNodeError, EvmNodeReply
from warpseal.evm_rpc.outgoing_calls import Sending, Work, told_of
from warpseal.evm_rpc.pool import EvmPool, EvmPoolMember
from warpseal.evm_rpc.settings import EvmRpcSettings
from warpseal.evm_rpc.subnet_evm import derive, with_last_changed

log = logging.getLogger(__name__)

Configured = Callable[[], Awaitable[ChainConfig | None]]
"""Returns how the chain is configured; None where that cannot be known."""


class ForwardingObserver(Protocol):
    """Who counts calls of EVM chains."""

    def observe_forwarding(self, chain: str, method_class: str, upstream: str, outcome: str, calls: int = 1) -> None:
        """Note calls. chain: its id; upstream: a node's position in its list, "ws" before it for a WebSocket's; empty
        where none was asked.

        outcome: "ok", "refused", "denied", "derived", or a FaultKind's value.
        """


class EvmForwarder:
    """One chain. name: its id, for metrics. configured: whence what no node tells is derived."""

    def __init__(
        self,
        name: str,
        pool: EvmPool,
        denied: DenyList,
        settings: EvmRpcSettings,
        configured: Configured,
        observer: ForwardingObserver | None = None,
    ) -> None:
        self.name = name
        self.pool = pool
        self._denied = denied
        self._settings = settings
        self._configured = configured
        self._observer = observer
        self._filters = FilterRegistry()

    async def one(self, call: RpcCall, body: bytes) -> EvmNodeReply | RpcAnswer:
        """Return a node's answer to a single call as it came, or ours. body: the call, in its envelope."""
        answered = self.at_once(call)
        if isinstance(answered, RpcAnswer):
            return answered
        if call.method in SUBNET_EVM:
            return (await self.many([call]))[0]
        kind = class_of(call.method)
        home = self._filters.home_of(call.params) if kind is MethodClass.USE_FILTER else None
        return await self._passed(Sending(call, body), await self._in_turn(home))

    async def reads(self, methods: AbstractSet[str], body: bytes, calls: int) -> EvmNodeReply | RpcAnswer | None:
        """Return a node's answer to a batch as it came, or the error of all; None where each call has to be looked at.

        methods: of its calls. None of them is a notification. A batch for which None is returned may have been asked.
        """
        if not methods <= PLAIN_READS or any(map(self._denied.denies, methods)):
            return None
        if self._compares_heads and not HEADS.isdisjoint(methods):
            return None
        reply = await self._passed(Sending(RpcCall(next(iter(methods))), body, calls), await self.pool.candidates())
        is_for_one = isinstance(reply, EvmNodeReply) and reply.is_ok and reply.body[:1] != b"["
        return None if is_for_one else reply

    async def many(self, calls: Sequence[RpcCall]) -> list[RpcAnswer]:
        """Return the answers to calls, in their order. What a node does not know and we can derive is derived."""
        answers: dict[int, RpcAnswer] = {}
        at_nodes: dict[EvmPoolMember | None, dict[int, RpcCall]] = {}
        for number, call in enumerate(calls):
            answered = self.at_once(call)
            if isinstance(answered, RpcAnswer):
                answers[number] = answered
                continue
            is_filter = class_of(call.method) is MethodClass.USE_FILTER
            home = self._filters.home_of(call.params) if is_filter else None
            at_nodes.setdefault(home, {})[number] = answered
        for home, group in at_nodes.items():
            answers |= await self._asked(group, await self._in_turn(home))
        for number, call in enumerate(calls):
            if call.method in SUBNET_EVM:
                answers[number] = await self._completed(call, answers[number])
        return [answers[number] for number in range(len(calls))]

    def at_once(self, call: RpcCall) -> RpcCall | RpcAnswer:
        """Return the answer to what no node is asked, or the call as a node is asked it."""
        if self._denied.denies(call.method):
            self._count(call, None, "denied")
            missing = f"the method {call.method[:256]} does not exist/is not available"
            return RpcAnswer(error=RpcError(METHOD_NOT_FOUND, missing))
        if call.method not in TIMESTAMPED:
            return call
        try:
            return RpcCall(call.method, plain_timestamp(call.params), call.is_notification)
        except RpcFailure as failure:
            return RpcAnswer(error=failure.error)
        except msgspec.MsgspecError:
            return call

    def is_plain(self, method: str, params: msgspec.Raw | None) -> bool:
        """Tell whether a call may go to any node just as it is."""
        if method in SUBNET_EVM or self._denied.denies(method):
            return False
        return class_of(method) is not MethodClass.USE_FILTER or self._filters.home_of(params) is None

    def count(self, kind: MethodClass, upstream: str, outcome: str, calls: int = 1) -> None:
        """Note what became of calls. upstream: as ForwardingObserver names it."""
        if self._observer is not None:
            self._observer.observe_forwarding(self.name, kind, upstream, outcome, calls)

    async def ask(self, call: RpcCall) -> RpcAnswer:
        """Ask the chain's nodes one thing that only reads."""
        return (await self._asked({0: call}, await self.pool.candidates()))[0]

    async def _in_turn(self, home: EvmPoolMember | None) -> Sequence[EvmPoolMember]:
        """Return whom to ask: nobody but the node of a filter, where it is one; and none that is of another chain."""
        if home is None:
            return await self.pool.candidates()
        return () if home.is_alien else (home,)

    async def _passed(self, sending: Sending, members: Sequence[EvmPoolMember]) -> EvmNodeReply | RpcAnswer:
        is_read = sending.kind is MethodClass.READ
        until = _now() + self._settings.call_timeout_s
        fault, reply = None, None
        for member in members:
            try:
                reply = await self._post(member, sending, until - _now())
            except EvmNodeError as stopped:
                fault = stopped.kind
                if fault is EvmErrorKind.TOO_LARGE or (stopped.was_written and not is_read) or _now() >= until:
                    break
                continue
            if not (reply.is_busy and is_read):
                return reply
        if reply is not None:
            return reply
        return RpcAnswer(error=told_of(fault, sending.call))

    async def _post(self, member: EvmPoolMember, sending: Sending, left_s: float) -> EvmNodeReply:
        call, kind = sending.call, sending.kind
        try:
            reply = await member.node.post(sending.body, max(0.001, left_s), once=kind is MethodClass.WRITE)
        except EvmNodeError as fault:
            self.pool.note_fault(member, fault)
            self._count(call, member, fault.kind, sending.calls)
            raise
        if reply.is_busy:
            self.pool.note_fault(member, EvmNodeError(EvmErrorKind.BUSY))
        else:
            self.pool.note_answer(member)
        if kind is MethodClass.MAKE_FILTER or (self._compares_heads and tells(call)):
            self._learn(call, result_of(reply.body), member)
        self._count(call, member, "ok" if reply.is_ok else "refused", sending.calls)
        return reply

    async def _asked(self, calls: dict[int, RpcCall], members: Sequence[EvmPoolMember]) -> dict[int, RpcAnswer]:
        """Ask these members, one after another, until all calls are answered or nobody is left."""
        work = Work(dict(calls), {})
        until = _now() + self._settings.call_timeout_s
        for member in members:
            await self._ask_member(member, work, until)
            if not work.calls or _now() >= until:
                break
        left = {number: RpcAnswer(error=told_of(work.fault, call)) for number, call in work.calls.items()}
        return {**work.answers, **left}

    async def _ask_member(self, member: EvmPoolMember, work: Work, until: float) -> None:
        has_write = any(class_of(call.method) is MethodClass.WRITE for call in work.calls.values())
        try:
            reply = await member.node.post(encode_calls(work.calls), max(0.001, until - _now()), once=has_write)
        except EvmNodeError as fault:
            self.pool.note_fault(member, fault)
            self._count_all(work.calls, member, fault.kind)
            work.take_back(fault)
            return
        if not reply.is_ok:
            if reply.is_busy:  # Any other status is about what was asked, not about the node.
                self.pool.note_fault(member, EvmNodeError(EvmErrorKind.BUSY))
            self._count_all(work.calls, member, "refused")
            work.take_back(EvmNodeError(EvmErrorKind.BUSY))
            return
        self.pool.note_answer(member)
        self._count_all(work.calls, member, "ok")
        numbers = [number for number, call in work.calls.items() if not call.is_notification]
        answers = decode_answers(reply.body, numbers) if numbers else {}
        for number, call in work.calls.items():
            work.answers[number] = answers.get(number, RpcAnswer())
            self._learn(call, work.answers[number].result, member)
        work.calls.clear()

    @property
    def _compares_heads(self) -> bool:
        return len(self.pool.members) > 1

    def _learn(self, call: RpcCall, result: msgspec.Raw | None, member: EvmPoolMember) -> None:
        """Note what an answer tells of its node."""
        if result is None:
            return
        if class_of(call.method) is MethodClass.MAKE_FILTER:
            self._filters.settle(_text(result), member)
        elif self._compares_heads and tells(call) and (height := head_in(result)) is not None:
            self.pool.note_head(member, height)

    async def _completed(self, call: RpcCall, answer: RpcAnswer) -> RpcAnswer:
        """Return the answer to one of the subnet-evm methods, derived where the node does not know it."""
        if answer.error is None or answer.error.code != METHOD_NOT_FOUND:
            return with_last_changed(answer) if call.method == FEE_CONFIG else answer
        config = await self._configured()
        if config is None:
            return answer
        self._count(call, None, "derived")
        plain = self.at_once(call)
        return plain if isinstance(plain, RpcAnswer) else await derive(plain, config, self.ask)

    def _count(self, call: RpcCall, member: EvmPoolMember | None, outcome: str, calls: int = 1) -> None:
        self.count(class_of(call.method), "" if member is None else str(member.node.position), outcome, calls)

    def _count_all(self, calls: Mapping[int, RpcCall], member: EvmPoolMember, outcome: str) -> None:
        for kind, count in Counter(class_of(call.method) for call in calls.values()).items():
            self.count(kind, str(member.node.position), outcome, count)


def _text(result: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(result, type=str)
    except msgspec.MsgspecError:
        return None


def _now() -> float:
    return asyncio.get_running_loop().time()
