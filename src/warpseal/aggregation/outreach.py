"""The validators of one round as peers: who is connected or can be reached, who is reluctant, what they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from warpseal.aggregation.callers import Subject
from warpseal.aggregation.ports import OpenAsk
from warpseal.aggregation.roll import NEVER_BACK, Away
from warpseal.aggregation.round import Round
from warpseal.aggregation.tools import Tools
from warpseal.peers.reachability import Reachability, ReachState
from warpseal.peers.request_fanout import PeerResponse
from warpseal.protocol.acp118 import encode_signature_request
from warpseal.warp.ids import NodeID

# No answer leaves before it is known who is reluctant, but for an upstream node that hangs nobody waits longer.
_ACTIVITY_PATIENCE_S: Final = 1.0


class Outreach:
    """Touches nobody until it is opened. wake: called when the round may have come to where something is to be done.

    activity_known_at: when it is, or was, known who is reluctant. next_look_at: when to look around again.
    """

    def __init__(self, subject: Subject, round_: Round, tools: Tools, wake: Callable[[], None]) -> None:
        self.is_open = False
        self.activity_known_at = float("inf")
        self.next_look_at = float("inf")
        self._loop = asyncio.get_running_loop()
        self._subject = subject
        self._members = subject.members
        self._round = round_
        self._tools = tools
        self._wake = wake
        self._app_bytes = encode_signature_request(subject.message.raw, subject.justification)
        self._absent: set[NodeID] = set()
        self._asks: list[OpenAsk] = []

    @contextmanager
    def open(self) -> Iterator[None]:
        """Have the subnet followed, and know who is connected, inside the block."""
        subnet_id = self._subject.subnet_id
        self.is_open = True
        self.activity_known_at = self._loop.time() + _ACTIVITY_PATIENCE_S
        self.next_look_at = 0.0
        with self._tools.followed.use(subnet_id, self._members), self._tools.activity.watch(subnet_id):
            forget = self._tools.peers.subscribe(self._connection_changed)
            try:
                self._look_who_is_connected()
                yield
            finally:
                forget()
                for ask in self._asks:
                    ask.close()

    async def learn_activity(self) -> None:
        """Wait until it is known who is reluctant."""
        await self._tools.activity.ready(self._subject.subnet_id)
        self.activity_known_at = self._loop.time()
        self.next_look_at = 0.0
        self._wake()

    def extend(self, deadline: float) -> None:
        """Take answers until `deadline`, if that is later than they were wanted so far."""
        for ask in self._asks:
            ask.extend(deadline)

    def look_around(self) -> None:
        """Look again at who is reluctant, and whether those who are not connected can be reached."""
        now = self._loop.time()
        if now < self.next_look_at:
            return
        self.next_look_at = now + self._tools.settings.reachability_poll_s
        self._round.set_reluctant(self._tools.activity.reluctant(self._subject.subnet_id))
        for node_id in self._absent:
            self._look_for(node_id, now)

    def ask(self, deadline: float, sink: Callable[[PeerResponse], None]) -> None:
        """Ask whom it is time to ask; answers until `deadline` go to `sink`."""
        for ask in self._round.due(self._loop.time()):
            self._asks.append(
                self._tools.peers.ask(
                    ask.node_ids,
                    self._subject.message.source_chain_id,
                    self._app_bytes,
                    deadline=deadline,
                    is_reask=ask.again,
                    on_response=sink,
                )
            )

    def _look_who_is_connected(self) -> None:
        for node_id in self._members.node_ids:
            if self._tools.peers.is_connected(node_id):
                self._round.connected(node_id)
            else:
                self._absent.add(node_id)

    def _connection_changed(self, node_id: NodeID, is_connected: bool) -> None:
        """Take a connect, a disconnect, or a dial that failed."""
        if self._members.index_of_node(node_id) is None:
            return
        if is_connected:
            self._absent.discard(node_id)
            self._round.connected(node_id)
        else:
            self._absent.add(node_id)
            self._round.disconnected(node_id)
            self._look_for(node_id, self._loop.time())
        if self._round.stirred:
            self._wake()

    def _look_for(self, node_id: NodeID, now: float) -> None:
        """Look whether a node that is not connected can be reached."""
        # With a deadline of now, every planned dial lies behind it: its moment is what each goal needs.
        self._round.reach(node_id, _away(self._tools.peers.reachability(node_id, self._subject.subnet_id, now)))


def _away(reach: Reachability) -> Away | None:
    """Return since when a node is out of reach, as far as it is."""
    if reach.state is not ReachState.UNREACHABLE:
        return None
    return Away(reach.reason, NEVER_BACK if reach.next_dial_at is None else reach.next_dial_at)
