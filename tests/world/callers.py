"""The callers of the daemons: relayers, the operator, and a reader of events."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Final

from tests.world.daemon import TOKEN, SimulatedDaemon
from tests.world.http_client import HttpReply, listen, request
from tests.world.network_process import NetworkProcess
from tests.world.periods import Periods
from tests.world.records import Ask, Block, Ending, Reader
from tests.world.scenario import FIRST_HEIGHT
from tests.world.simulation import Simulation

AGGREGATE_PATH: Final = "/v1/signatureAggregator/fuji/aggregateSignatures"
_RETRY_S: Final = 1.0
_STAY_S: Final = 3.0


class Callers:
    """What callers do and see; a method `do_x` is the action `x` of a scenario, at a daemon.

    asks: each request of a caller with its answer.
    blocks: signing blocks with the times at which they were in force for sure.
    blocked: when the operator wanted each message blocked.
    reader: what a reader of events saw, who keeps its cursor.
    """

    def __init__(self, simulation: Simulation, network: NetworkProcess) -> None:
        self._simulation = simulation
        self._network = network
        self.asks: list[Ask] = []
        self.blocks: dict[int, list[Block]] = {}
        self.blocked: defaultdict[int, Periods] = defaultdict(Periods)
        self._blocking: Counter[int] = Counter()
        self.reader = Reader()
        self._unblocked_at: dict[int, float] = {}
        # Raises AssertionError if an answer is not what it should be.
        self.check_request: Callable[[Ask], None] = lambda ask: None

    # Relayers.

    async def do_ask(
        self,
        daemon: SimulatedDaemon,
        place: int,
        quorum: int,
        quorum_buffer: int,
        timeout_s: float,
        leaves_after_s: float | None,
        form: str = "",
    ) -> None:
        place = self._network.message_place(place)
        message = self._network.message(place)
        ask = Ask(
            len(self.asks), place, message, quorum, timeout_s, self._simulation.now, daemon.letter
        )
        body = {
            "message": message.unsigned.raw.hex(),
            "justification": message.justification.hex(),
            "quorumPercentage": quorum,
            "quorumPercentageBuffer": quorum_buffer,
            "timeoutSeconds": timeout_s,
        }
        if form == "pinned":
            ask.height = body["pChainHeight"] = self._network.simulated.state.heights.current
        elif form.endswith("destination"):
            if form.startswith("first-height"):
                # The destination verifies with another set if that has changed since.
                ask.height = body["pChainHeight"] = FIRST_HEIGHT
            body |= {"destinationBlockchainId": "C", "report": True}
            ask.has_destination = True
        await self._send(daemon, ask, "POST", AGGREGATE_PATH, body, leaves_after_s)

    async def do_ask_tx(self, daemon: SimulatedDaemon, place: int, timeout_s: float) -> None:
        transactions = [
            transaction
            for transaction in self._network.simulated.p_chain.transactions
            if transaction.attested is not None
        ]
        if not transactions:
            return
        transaction = transactions[-1 - place % len(transactions)]
        assert transaction.attested is not None
        ask = Ask(
            len(self.asks),
            -1,
            transaction.attested,
            0,
            timeout_s,
            self._simulation.now,
            daemon.letter,
            transaction=transaction,
        )
        path = f"{AGGREGATE_PATH}/{transaction.text}?timeoutSeconds={timeout_s}"
        await self._send(daemon, ask, "GET", path, None, None)

    async def _send(
        self,
        daemon: SimulatedDaemon,
        ask: Ask,
        method: str,
        path: str,
        body: Any,
        leaves_after_s: float | None,
    ) -> None:
        """Send a request, and record its answer."""
        self.asks.append(ask)
        epoch_height = self._network.c_chain_height()
        members = self._network.members(ask.message)
        ask.daemon_at_start = daemon.changes
        ask.daemon_age_s = self._simulation.now - daemon.changed_at
        ask.index_age_s = 0.0 if self._network.has_stopped_index else daemon.index_age_s
        ask.had_daemon = daemon.ready.is_set() and daemon.is_alive and not daemon.is_stopping
        try:
            async with asyncio.timeout(leaves_after_s):
                if not daemon.ready.is_set():
                    raise ConnectionError("the daemon does not listen")
                reply = await request(method, daemon.api_url + path, body)
        except TimeoutError:
            ask.ending = Ending.LEFT
            self._simulation.reach("a caller left")
        except OSError as error:
            ask.ending, ask.detail = Ending.NO_CONNECTION, repr(error)
        else:
            ask.ending, ask.reply = Ending.REPLY, reply
            self._simulation.reach(f"answer {reply.status} {reply.code}")
        ask.ended_at, ask.daemon_at_end = self._simulation.now, daemon.changes
        ask.c_chain_height = self._network.c_chain_height()
        ask.block_age_s = ask.started_at - self._network.last_block_at
        if ask.c_chain_height != epoch_height:
            self._simulation.reach("an epoch ended during a request")
        if self._network.members(ask.message) != members:
            self._simulation.reach("a set changed during a request")
        elif members != self._network.members(ask.message, FIRST_HEIGHT):
            self._simulation.reach("a set had changed before a request")
        if any(entry.public_key is None for entry in members):
            self._simulation.reach("a request for a set with weight without keys")
        self._simulation.note(f"ask {ask.number} of message {ask.place}: {ask.describe()}")
        try:
            self.check_request(ask)
        except AssertionError as error:
            self._simulation.fail(str(error))

    # The operator.

    async def do_block(self, daemon: SimulatedDaemon, place: int) -> None:
        place = self._network.message_place(place)
        message = self._network.message(place)
        fields = {
            "kind": "message-id",
            "value": "0x" + message.unsigned.id.hex(),
            "reason": "a bug of the bridge",
        }
        began_at = self._simulation.now
        self.blocked[place].begin("block", began_at)
        self._blocking[place] += 1
        reply = await self._administer(daemon, "POST", "/v1/signing-blocks", fields)
        self._blocking[place] -= 1
        # A removal may have ended in the meantime.
        self.blocked[place].begin("block", self._simulation.now)
        if reply is not None and reply.status == 201:
            # A removal that began in the meantime may have come first or last.
            if self._unblocked_at.get(place, 0.0) < began_at:
                self.blocks.setdefault(place, []).append(Block(self._simulation.now, daemon.letter))
            self._simulation.reach("blocked")

    async def do_unblock(self, daemon: SimulatedDaemon, place: int) -> None:
        place = self._network.message_place(place)
        self._end_block(place)
        await self._unblock(daemon, place)

    async def unblock_all(self, daemon: SimulatedDaemon) -> None:
        """Remove all blocks, those too whose response did not come, as soon as a daemon can."""
        for place in sorted(self.blocked):
            self._end_block(place)
            while True:
                if await self._unblock(daemon, place):
                    break
                await asyncio.sleep(_RETRY_S)

    def _end_block(self, place: int) -> None:
        """Note that the removal of a block begins now."""
        self._unblocked_at[place] = self._simulation.now
        for block in self.blocks.get(place, ()):
            block.until = min(block.until, self._simulation.now)

    async def _unblock(self, daemon: SimulatedDaemon, place: int) -> bool:
        """Remove a block; return whether there is none any more."""
        message_id = "0x" + self._network.message(place).unsigned.id.hex()
        path = f"/v1/signing-blocks/message-id/{message_id}"
        reply = await self._administer(daemon, "DELETE", path)
        is_removed = reply is not None and reply.status < 500
        if is_removed and not self._blocking[place]:
            self.blocked[place].end("block", self._simulation.now)
        return is_removed

    async def add_webhook(self, daemon: SimulatedDaemon) -> None:
        """Add the webhook as soon as a daemon answers."""
        receiver = self._network.receiver
        assert receiver is not None
        while True:
            await daemon.ready.wait()
            reply = await self._administer(daemon, "POST", "/v1/webhooks", {"url": receiver.url})
            if reply is not None and reply.status == 201:
                receiver.webhook_id = reply.body["id"]
                receiver.begin = int(reply.body["cursor"].rpartition("-")[2])
                return
            await asyncio.sleep(_RETRY_S)

    async def test_webhook(self, daemon: SimulatedDaemon) -> None:
        """Let a webhook that failed be tried again at once, as after each test of it."""
        receiver = self._network.receiver
        if receiver is not None:
            await self._administer(daemon, "POST", f"/v1/webhooks/{receiver.webhook_id}:test")

    async def _administer(
        self, daemon: SimulatedDaemon, method: str, path: str, fields: Any = None
    ) -> HttpReply | None:
        if not daemon.ready.is_set():
            return None
        headers = {"Authorization": f"Bearer {TOKEN}"}
        try:
            async with asyncio.timeout(60):
                return await request(method, daemon.api_url + path, fields, headers)
        except (OSError, TimeoutError):
            return None

    # The reader of events.

    async def read_events(self, daemons: Sequence[SimulatedDaemon]) -> None:
        """Read events for ever, and return with the cursor whenever the connection ends.

        A reader that has two daemons goes to the other one then, and after some seconds.
        """
        for daemon in cycle(daemons):
            try:
                async with asyncio.timeout(_STAY_S if len(daemons) > 1 else None):
                    await self._read_events(daemon)
            except (OSError, TimeoutError) as error:
                self._simulation.note(f"reader of events: {error!r}")
            except ValueError as error:
                # The cursor expired, or the log cannot be read.
                self._simulation.note(f"reader of events: {error!r}")
                if "cursor_expired" in str(error):
                    self.reader.begin_again(self._simulation.now)
            await asyncio.sleep(_RETRY_S)

    async def _read_events(self, daemon: SimulatedDaemon) -> None:
        await daemon.ready.wait()
        after = f"?after={self.reader.cursor}" if self.reader.cursor else ""
        async for cursor, event in listen(daemon.api_url + "/v1/events" + after, {}):
            if event is not None:
                self._simulation.note(f"event {cursor} {event['type']} {event.get('messageId')}")
            self.reader.on_event(cursor, event, self._simulation.now)

    def signed_before(self, began_at: float) -> set[int]:
        """Return the messages that may have been signed before the reader of events began."""
        return {ask.place for ask in self.asks if ask.started_at <= began_at}
