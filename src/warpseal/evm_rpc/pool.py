"""The nodes of one EVM chain: who is of that chain, who is up, who is behind, and so whom to ask first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from warpseal.evm_rpc.calls import RpcCall
from warpseal.evm_rpc.messages import decode_result, encode_calls, quantity_of
from warpseal.evm_rpc.methods import BLOCK_NUMBER
from warpseal.evm_rpc.node import EvmErrorKind, EvmNode, EvmNodeError
from warpseal.evm_rpc.settings import EvmRpcSettings
from warpseal.runtime.single_flight import SingleFlight

log = logging.getLogger(__name__)

CHAIN_ID_CALL: Final = RpcCall("eth_chainId", msgspec.Raw(b"[]"))
GENESIS_CALL: Final = RpcCall("eth_getBlockByNumber", msgspec.Raw(b'["0x0",false]'))
HEAD_CALL: Final = RpcCall(BLOCK_NUMBER, msgspec.Raw(b"[]"))
_HASH_CHARACTERS: Final = 66
_RECHECK_S: Final = 60.0

_Look = Callable[["EvmPoolMember"], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class ChainIdentity:
    """By what nodes of one chain are known: the EVM's chain id and the hash of block 0."""

    chain_id: int
    genesis_hash: str


class EvmPoolMember:
    """A node and what is known of it. fault: why it is refused for good, or cannot be asked now; None: neither."""

    def __init__(self, node: EvmNode) -> None:
        self.node = node
        self.head: int | None = None
        self.agrees = False
        self.is_alien = False
        self.fault: str | None = "not asked yet"
        self.rests_until = 0.0
        self.checked_at = 0.0


class EvmPool:
    """The members in the operator's order. identity: the first member's that answered; whoever differs is refused."""

    def __init__(self, nodes: Sequence[EvmNode], settings: EvmRpcSettings) -> None:
        self.identity: ChainIdentity | None = None
        self.members = tuple(EvmPoolMember(node) for node in nodes)
        self._settings = settings
        self._checks: SingleFlight[None, None] = SingleFlight()

    async def candidates(self) -> list[EvmPoolMember]:
        """Return who may be asked, best first: who is up before who failed lately, who is further before who is behind.

        Who has shown a client a block is so far; others come before it only when they have more.
        """
        if not any(member.agrees and not self._rests(member) for member in self.members):
            await self._checks.run(None, self.check)
        return sorted((member for member in self.members if member.agrees), key=self._preference)

    def note_head(self, member: EvmPoolMember, height: int) -> None:
        """Learn how far a member is."""
        member.head = max(member.head or 0, height)

    def note_fault(self, member: EvmPoolMember, fault: EvmNodeError) -> None:
        """Learn that a member gave no answer. What may be another node by now has to agree again."""
        if fault.kind is EvmErrorKind.TOO_LARGE:
            return
        if fault.kind in (EvmErrorKind.UNREACHABLE, EvmErrorKind.LOST):
            member.agrees = False
            member.head = None
        member.fault = f"{fault.kind}"
        member.rests_until = _now() + self._settings.retry_after_s

    def note_answer(self, member: EvmPoolMember) -> None:
        """Learn that a member answers."""
        if member.fault is not None and member.agrees:
            member.fault = None
            member.rests_until = 0.0

    def refused(self) -> dict[int, str]:
        """Return why members are refused for good, by position: they are not of this chain."""
        return {one.node.position: one.fault for one in self.members if one.is_alien and one.fault is not None}

    def faults(self) -> dict[int, str]:
        """Return what is wrong with members, by position."""
        return {member.node.position: member.fault for member in self.members if member.fault is not None}

    @property
    def is_up(self) -> bool:
        """Whether somebody can be asked."""
        return any(member.agrees and member.fault is None for member in self.members)

    @property
    def highest(self) -> int:
        """How far the furthest member is known to be; 0 where nobody looks, because there is only one."""
        return max((member.head or 0 for member in self.members), default=0)

    async def run(self) -> None:
        """Look at members and their heads now and then, until cancelled."""
        while True:
            await self._checks.run(None, self.check)
            if self._compares:
                await self._each(self._read_head, (one for one in self.members if one.agrees))
            await asyncio.sleep(self._settings.poll_s)

    async def check(self) -> None:
        """Ask members that have to (again) which chain they are of; all at once, once the identity is known."""
        due = [member for member in self.members if self._is_due(member)]
        if self.identity is None:
            for member in due:
                await self._check(member)
        else:
            await self._each(self._check, due)

    def _is_due(self, member: EvmPoolMember) -> bool:
        is_failing = not member.agrees or member.fault is not None
        return is_failing or _now() - member.checked_at > _RECHECK_S

    async def _each(self, look: _Look, members: Iterable[EvmPoolMember]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                tasks.create_task(look(member))

    async def _check(self, member: EvmPoolMember) -> None:
        try:
            told = await self._identity_of(member)
        except EvmNodeError as fault:
            self.note_fault(member, fault)
            return
        member.checked_at = _now()
        self._judge(member, told)
        if member.agrees and self._compares:
            await self._read_head(member)

    def _judge(self, member: EvmPoolMember, told: ChainIdentity | None) -> None:
        if told is None:
            fault: str | None = "does not tell its chain id and block 0"
        else:
            self.identity = self.identity or told
            is_same = told == self.identity
            fault = None if is_same else f"is of another chain: chain id {told.chain_id}, block 0 {told.genesis_hash}"
        if fault is not None and fault != member.fault:
            log.warning("a node is refused", extra={"node": member.node.shown, "reason": fault})
        member.is_alien = fault is not None
        member.agrees, member.fault = fault is None, fault
        member.rests_until = 0.0

    async def _identity_of(self, member: EvmPoolMember) -> ChainIdentity | None:
        chain_id = quantity_of(await self._ask(member, CHAIN_ID_CALL))
        return identity_of(chain_id, await self._ask(member, GENESIS_CALL))

    async def _read_head(self, member: EvmPoolMember) -> None:
        """Ask a member how far it is: less than it was, where its answer tells so and nothing else came meanwhile."""
        before = member.head
        try:
            height = quantity_of(await self._ask(member, HEAD_CALL))
        except EvmNodeError as fault:
            self.note_fault(member, fault)
            return
        if height is not None:
            member.head = height if member.head == before else max(height, member.head or 0)

    async def _ask(self, member: EvmPoolMember, call: RpcCall) -> object:
        reply = await member.node.post(encode_calls({0: call}), self._settings.connect_timeout_s)
        if not reply.is_ok:
            raise EvmNodeError(EvmErrorKind.BUSY)
        return decode_result(reply.body)

    @property
    def _compares(self) -> bool:
        """Whether it matters how far members are."""
        return len(self.members) > 1

    def _rests(self, member: EvmPoolMember) -> bool:
        return member.rests_until > _now()

    def _preference(self, member: EvmPoolMember) -> tuple[bool, int, int]:
        return self._rests(member), -(member.head or 0) if self._compares else 0, member.node.position


def identity_of(chain_id: int | None, block: object) -> ChainIdentity | None:
    """Return what a chain id and block 0 tell; None where one of them is none."""
    genesis = block.get("hash") if isinstance(block, dict) else None
    if chain_id is None or not isinstance(genesis, str) or len(genesis) != _HASH_CHARACTERS:
        return None
    return ChainIdentity(chain_id, genesis.lower())


def _now() -> float:
    return asyncio.get_running_loop().time()
