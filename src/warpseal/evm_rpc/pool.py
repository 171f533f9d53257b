"""The nodes of one EVM chain: which belong to the chain, which are up, which lag, and so the order to try them in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from warpseal.evm_rpc.methods import BLOCK_NUMBER
from warpseal.evm_rpc.node import EvmErrorKind, EvmNode, EvmNodeError
from warpseal.evm_rpc.settings import EvmRpcSettings
from warpseal.node.json_values import quantity_or_none
from warpseal.node.jsonrpc import RpcCall, decode_result, encode_calls
from warpseal.runtime.single_flight import SingleFlight

log = logging.getLogger(__name__)

CHAIN_ID_CALL: Final = RpcCall("eth_chainId", msgspec.Raw(b"[]"), msgspec.Raw(b"0"))
GENESIS_CALL: Final = RpcCall("eth_getBlockByNumber", msgspec.Raw(b'["0x0",false]'), msgspec.Raw(b"1"))
HEAD_CALL: Final = RpcCall(BLOCK_NUMBER, msgspec.Raw(b"[]"), msgspec.Raw(b"2"))
_HASH_CHARACTERS: Final = 66
_RECHECK_S: Final = 60.0

_Action = Callable[["EvmPoolMember"], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class ChainIdentity:
    """The identity of a chain, equal at all its nodes: the EVM's chain id and the hash of block 0."""

    chain_id: int
    genesis_hash: str


class EvmPoolMember:
    """A node and its state. fault: why it is refused for good, or cannot be used now; None if it can.

    is_verified: it returned the identity of the chain. head: the highest block that it is known to have.
    """

    def __init__(self, node: EvmNode) -> None:
        self.node = node
        self.head: int | None = None
        self.is_verified = False
        self.is_wrong_chain = False
        self.fault: str | None = "not asked yet"
        self.cooldown_until = 0.0
        self.checked_at = 0.0


class EvmPool:
    """The members in configured order. identity: that of the first member that answered; others must match it."""

    def __init__(self, nodes: Sequence[EvmNode], settings: EvmRpcSettings) -> None:
        self.identity: ChainIdentity | None = None
        self.members = tuple(EvmPoolMember(node) for node in nodes)
        self._settings = settings
        self._checks: SingleFlight[None, None] = SingleFlight()

    async def candidates(self) -> list[EvmPoolMember]:
        """Return the members that may be called, best first: those that are up first, then those with higher heads.

        A member that has shown a client a block comes before those that do not have that block.
        """
        if not any(member.is_verified and not self._is_cooling_down(member) for member in self.members):
            await self._checks.run(None, self.check)
        return sorted((member for member in self.members if member.is_verified), key=self._preference)

    def note_head(self, member: EvmPoolMember, height: int) -> None:
        """Note that a member has a block at this height."""
        member.head = max(member.head or 0, height)

    def note_error(self, member: EvmPoolMember, error: EvmNodeError) -> None:
        """Note that a member did not answer. Another node may run at its address next, so it is verified again."""
        if error.kind is EvmErrorKind.TOO_LARGE:
            return
        if error.kind in (EvmErrorKind.UNREACHABLE, EvmErrorKind.LOST):
            member.is_verified = False
            member.head = None
        member.fault = f"{error.kind}"
        member.cooldown_until = _now() + self._settings.retry_after_s

    def note_success(self, member: EvmPoolMember) -> None:
        """Note that a member answered."""
        if member.fault is not None and member.is_verified:
            member.fault = None
            member.cooldown_until = 0.0

    def refused(self) -> dict[int, str]:
        """Return why members are refused for good, by position: they are not of this chain."""
        return {
            member.node.position: member.fault
            for member in self.members
            if member.is_wrong_chain and member.fault is not None
        }

    def faults(self) -> dict[int, str]:
        """Return what is wrong with members, by position."""
        return {member.node.position: member.fault for member in self.members if member.fault is not None}

    @property
    def is_up(self) -> bool:
        """Whether a member can be called."""
        return any(member.is_verified and member.fault is None for member in self.members)

    @property
    def highest(self) -> int:
        """The highest head of the members; 0 if there is only one member, whose head is not polled."""
        return max((member.head or 0 for member in self.members), default=0)

    @property
    def compares_heads(self) -> bool:
        """Whether the heads of members matter: only if there are several members."""
        return len(self.members) > 1

    async def run(self) -> None:
        """Check members and poll their heads until cancelled."""
        while True:
            await self._checks.run(None, self.check)
            if self.compares_heads:
                await _for_all(self._read_head, (member for member in self.members if member.is_verified))
            await asyncio.sleep(self._settings.poll_s)

    async def check(self) -> None:
        """Verify the members that are due, concurrently once the identity of the chain is known."""
        due = [member for member in self.members if self._is_due(member)]
        if self.identity is None:
            for member in due:
                await self._verify(member)
        else:
            await _for_all(self._verify, due)

    def _is_due(self, member: EvmPoolMember) -> bool:
        is_failing = not member.is_verified or member.fault is not None
        return is_failing or _now() - member.checked_at > _RECHECK_S

    async def _verify(self, member: EvmPoolMember) -> None:
        try:
            chain_id = quantity_or_none(await self._call(member, CHAIN_ID_CALL))
            identity = parse_identity(chain_id, await self._call(member, GENESIS_CALL))
        except EvmNodeError as error:
            self.note_error(member, error)
            return
        member.checked_at = _now()
        self._compare_identity(member, identity)
        if member.is_verified and self.compares_heads:
            await self._read_head(member)

    def _compare_identity(self, member: EvmPoolMember, identity: ChainIdentity | None) -> None:
        fault = None
        if identity is None:
            fault = "returns no chain id or no block 0"
        else:
            self.identity = self.identity or identity
            if identity != self.identity:
                fault = f"is of another chain: chain id {identity.chain_id}, block 0 {identity.genesis_hash}"
        if fault is not None and fault != member.fault:
            log.warning("EVM node refused", extra={"node": member.node.display, "reason": fault})
        member.is_wrong_chain = fault is not None
        member.is_verified, member.fault = fault is None, fault
        member.cooldown_until = 0.0

    async def _read_head(self, member: EvmPoolMember) -> None:
        """Ask a member for its head. The head goes back if the member says so and nothing else changed it meanwhile."""
        before = member.head
        try:
            height = quantity_or_none(await self._call(member, HEAD_CALL))
        except EvmNodeError as error:
            self.note_error(member, error)
            return
        if height is not None:
            member.head = height if member.head == before else max(height, member.head or 0)

    async def _call(self, member: EvmPoolMember, call: RpcCall) -> object:
        """Return the result as JSON values; None if there is none. Raises EvmNodeError."""
        reply = await member.node.post(encode_calls([call], is_batch=False), self._settings.connect_timeout_s)
        if not reply.is_ok:
            raise EvmNodeError(EvmErrorKind.BUSY)
        result = decode_result(reply.body)
        try:
            return None if result is None else msgspec.json.decode(result)
        except msgspec.MsgspecError:
            return None

    def _is_cooling_down(self, member: EvmPoolMember) -> bool:
        return member.cooldown_until > _now()

    def _preference(self, member: EvmPoolMember) -> tuple[bool, int, int]:
        head = member.head or 0 if self.compares_heads else 0
        return self._is_cooling_down(member), -head, member.node.position


def parse_identity(chain_id: int | None, genesis_block: object) -> ChainIdentity | None:
    """Return the identity that a chain id and block 0 make; None if one of them is malformed."""
    genesis_hash = genesis_block.get("hash") if isinstance(genesis_block, dict) else None
    if chain_id is None or not isinstance(genesis_hash, str) or len(genesis_hash) != _HASH_CHARACTERS:
        return None
    return ChainIdentity(chain_id, genesis_hash.lower())


async def _for_all(action: _Action, members: Iterable[EvmPoolMember]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(action(member))


def _now() -> float:
    return asyncio.get_running_loop().time()
