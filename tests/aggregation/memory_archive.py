"""An archive in memory with the rules of the real one: it commits after a while, may be slow, or
down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from warpseal.store.values import ArchiveEntry, StoredShare, StoredSignature
from warpseal.warp.ids import MessageID, SubnetID
from warpseal.warp.message import UnsignedMessage

PATIENCE_S = 1.0


@dataclass
class MemoryArchive:
    """Outlives the aggregators that use it.

    commit_s, recall_s: time of a commit and of a recall; no caller waits longer than a second.
    lists: batches of shares that were handed over, in order.
    rejected, recalls, pinned: arguments of the calls, in order.
    """

    commit_s: float = 0.0
    recall_s: float = 0.0
    messages: dict[MessageID, UnsignedMessage] = field(default_factory=dict)
    shares: dict[MessageID, dict[bytes, StoredShare]] = field(default_factory=dict)
    signatures: dict[MessageID, list[StoredSignature]] = field(default_factory=dict)
    pinned_ids: set[MessageID] = field(default_factory=set)
    lists: list[list[StoredShare]] = field(default_factory=list)
    rejected: list[tuple[bytes, bytes]] = field(default_factory=list)
    recalls: list[MessageID] = field(default_factory=list)
    commits: list[tuple[float, StoredSignature]] = field(default_factory=list)
    pinned: list[MessageID] = field(default_factory=list)
    marks: list[bytes] = field(default_factory=list)
    writes_marks: bool = True
    questions: int = 0

    def may_hold(self, message_id: MessageID) -> bool:
        return True

    async def load(self, message_id: MessageID) -> ArchiveEntry:
        self.recalls.append(message_id)
        await asyncio.sleep(min(self.recall_s, PATIENCE_S))
        if self.recall_s > PATIENCE_S:
            return ArchiveEntry(is_incomplete=True)
        shares = self.shares.get(message_id, {})
        return ArchiveEntry(
            tuple(reversed(self.signatures.get(message_id, []))), tuple(shares.values())
        )

    def store_shares(self, message: UnsignedMessage, shares: Iterable[StoredShare]) -> None:
        batch = list(shares)
        self.lists.append(batch)
        stored = self._kept(message)
        for share in batch:
            held = stored.get(share.public_key)
            if held is None or (share.verified and not held.verified):
                stored[share.public_key] = share

    def reject_share(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        self.rejected.append((public_key, signature))
        held = self.shares.get(message_id, {}).get(public_key)
        if held is not None and held.signature == signature:
            del self.shares[message_id][public_key]

    async def store_signature(
        self, message: UnsignedMessage, signed: StoredSignature, signing_subnet_id: SubnetID
    ) -> None:
        loop = asyncio.get_running_loop()
        if self.commit_s:
            loop.call_later(self.commit_s, self._commit, message, signed)
            await asyncio.sleep(min(self.commit_s, PATIENCE_S))
        else:
            self._commit(message, signed)

    def pin(self, message: UnsignedMessage) -> None:
        self.pinned.append(message.id)
        self.messages[message.id] = message
        self.pinned_ids.add(message.id)

    async def unverified(
        self, limit: int
    ) -> tuple[tuple[UnsignedMessage, tuple[StoredShare, ...]], ...]:
        self.questions += 1
        entries = []
        for message_id in sorted(self.pinned_ids):
            unverified = [
                share for share in self.shares.get(message_id, {}).values() if not share.verified
            ][:limit]
            limit -= len(unverified)
            if unverified:
                entries.append((self.messages[message_id], tuple(unverified)))
        return tuple(entries)

    def mark_verified(self, message_id: MessageID, public_key: bytes, signature: bytes) -> None:
        self.marks.append(public_key)
        held = self.shares.get(message_id, {}).get(public_key)
        if self.writes_marks and held is not None and held.signature == signature:
            self.shares[message_id][public_key] = StoredShare(public_key, signature, True)

    def _kept(self, message: UnsignedMessage) -> dict[bytes, StoredShare]:
        self.messages[message.id] = message
        return self.shares.setdefault(message.id, {})

    def _commit(self, message: UnsignedMessage, signed: StoredSignature) -> None:
        self.messages[message.id] = message
        signatures = self.signatures.setdefault(message.id, [])
        if signed not in signatures:
            signatures.append(signed)
        self.commits.append((asyncio.get_running_loop().time(), signed))
