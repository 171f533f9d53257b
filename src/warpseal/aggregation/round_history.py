"""What later rounds take from earlier ones: bad keys, reissued messages, missed quorums."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Final

from cachetools import LRUCache, TTLCache

from warpseal.aggregation.interfaces import AggregationMetrics, ShortfallListener
from warpseal.aggregation.members import MemberRecord
from warpseal.warp.ids import MessageID, NodeID, node_id_text
from warpseal.warp.message import UnsignedMessage
from warpseal.warp.quorum_shortfall import QuorumShortfall

_MAX_OFFENDERS: Final = 65_536
# A key whose share was bad is distrusted for this long.
_SUSPECT_S: Final = 600.0
_MAX_SIGNED: Final = 16_384
# Each has at most 50 missing validators.
_MAX_SHORTFALLS: Final = 256
_SHORTFALL_S: Final = 3_600.0


class RoundHistory:
    """Used from one event loop, whose clock says when an entry expires.

    on_shortfall: listener for the events of the daemon.
    """

    def __init__(self, metrics: AggregationMetrics, on_shortfall: ShortfallListener) -> None:
        self._metrics = metrics
        self._on_shortfall = on_shortfall
        self._offenders: TTLCache[bytes, bool] = TTLCache(_MAX_OFFENDERS, _SUSPECT_S, _loop_time)
        # The digest of the set that signed a message last.
        self._set_digests: LRUCache[MessageID, bytes] = LRUCache(_MAX_SIGNED)
        self._shortfalls: TTLCache[MessageID, QuorumShortfall] = TTLCache(
            _MAX_SHORTFALLS, _SHORTFALL_S, _loop_time
        )

    @property
    def offenders(self) -> Container[bytes]:
        """The public keys (48 bytes) whose share was bad lately."""
        return self._offenders

    def last_shortfall(self, message_id: MessageID) -> QuorumShortfall | None:
        """Return why the last request for a message missed its quorum.

        None if the message was signed since, or if that was more than an hour ago.
        """
        return self._shortfalls.get(message_id)

    def record_malformed_share(self, node_id: NodeID) -> None:
        """Count a reply that was to be a share, but cannot be decoded."""
        self._metrics.count_bad_share((node_id_text(node_id),))

    def record_bad_share(self, member: MemberRecord) -> list[str]:
        """Count a share that does not verify, distrust its key; return the nodes of the key."""
        node_ids = [node_id_text(node_id) for node_id in member.node_ids]
        self._metrics.count_bad_share(node_ids)
        self._offenders[member.public_key] = True
        return node_ids

    def record_signed(
        self, message_id: MessageID, set_digest: bytes, *, had_other_set: bool, is_asked: bool
    ) -> None:
        """Record which set has signed a message; count the message as reissued if another one had.

        had_other_set: whether the store has a signature of another set. After a start only the
            store knows of an earlier set.
        is_asked: whether validators were asked for the signature; then the message is not reissued.
        """
        self._shortfalls.pop(message_id, None)
        last_digest = self._set_digests.get(message_id)
        self._set_digests[message_id] = set_digest
        was_signed = had_other_set if last_digest is None else last_digest != set_digest
        if was_signed and not is_asked:
            self._metrics.count_reissued_message()

    def record_shortfall(self, message: UnsignedMessage, shortfall: QuorumShortfall) -> None:
        """Record that a quorum of a message was missed."""
        self._shortfalls[message.id] = shortfall
        self._on_shortfall(message, shortfall)


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
