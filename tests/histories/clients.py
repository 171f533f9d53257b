"""Clients of two daemons, which record what they ask for and what they get."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from random import Random
from time import monotonic, time
from typing import Final, NoReturn

import aiohttp

from tests.eventually import until
from tests.histories.deployment import KEY_HEADER, Deployment, Seat
from tests.histories.operations import (
    ADMITTED,
    LOST,
    BlockChange,
    EventRead,
    KeyCreation,
    KeyRevocation,
    KeyUse,
    Signing,
)
from tests.histories.receiver import number_of
from tests.integration.daemon import AGGREGATE_PATH
from warpseal.store.access import write_shared
from warpseal.store.api_key import ApiKey, digest_key, new_key_text
from warpseal.store.api_keys import add_key, revoke_key
from warpseal.store.errors import StoreUnusable
from warpseal.store.url import StoreUrl
from warpseal.warp.ids import P_CHAIN, id_text
from warpseal_simnet.values import SimMessage

READERS: Final = 3
UNITS_PER_MINUTE: Final = 20
UNITS_PER_DAY: Final = 30
CHAINS: Final = "/v1/chains?network=another"
"""A path that costs one compute unit. No chain is of this network, so that no index is read."""
EVENTS: Final = "/v1/events"
WEBHOOKS: Final = "/v1/webhooks"
_SIGNATURE_DIGITS: Final = 12
_SIGNING_PAUSE_S: Final = 0.4
_PROBE_S: Final = 0.15
_OPERATOR_PAUSE_S: Final = 1.0
_KEY_PAUSE_S: Final = 0.25
# Longer than the bound of a block.
_BLOCKED_S: Final = 4.0
# A daemon that loses its store for 11 s when the message is blocked has it again. Whenever that is,
# a block begins meanwhile.
_LONG_BLOCKED_S: Final = 20.0
_LONG_BLOCKS: Final = 4
_PROBES_OF_A_BLOCK: Final = 30
# Longer than the bound of a revocation.
_REVOKED_S: Final = 14.0
# Several times until a key with few units has none, and longer than a daemon remembers a key.
_USES_OF_A_KEY: Final = 60


class Clients:
    """All clients of a history.

    read: ids of the messages whose events each reader has read, and names of events of the chain.
    """

    def __init__(self, deployment: Deployment, random: Random) -> None:
        self.read: dict[str, set[str]] = {f"reader {number}": set() for number in range(READERS)}
        self.newest = 0
        self._is_impatient = random.random() < 0.5
        self._deployment = deployment
        self._record = deployment.recorder.add
        self._random = random
        self._messages = iter(
            message
            for message in deployment.network.messages
            if message.unsigned.source_chain_id != P_CHAIN
        )
        self._signed: list[SimMessage] = []
        self._started: set[str] = set()

    async def prepare(self) -> None:
        """Make the key of the clients, and the webhook."""
        deployment = self._deployment
        deployment.key = await self._create_key("clients")
        status, reply = await deployment.administrate(
            deployment.seats[0], "POST", WEBHOOKS, {"url": deployment.receiver.url}
        )
        assert status == 201, reply

    async def run(self) -> NoReturn:
        """Run all clients but the readers and the operator of the webhook, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for seat in self._deployment.seats:
                tasks.create_task(self._sign_messages(seat))
            tasks.create_task(self._deployment.chain.build_blocks())
            tasks.create_task(self._block_messages(_BLOCKED_S))
            for number in range(_LONG_BLOCKS):
                delay_s = number * _LONG_BLOCKED_S / _LONG_BLOCKS
                tasks.create_task(self._block_messages(_LONG_BLOCKED_S, delay_s))
            tasks.create_task(self._use_up_keys(units_per_minute=UNITS_PER_MINUTE))
            tasks.create_task(self._use_up_keys(units_per_day=UNITS_PER_DAY))
            tasks.create_task(self._use_valid_and_unknown_keys())
            tasks.create_task(self._revoke_keys())
        raise AssertionError

    async def read_events(self) -> NoReturn:
        """Run the readers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reader in self.read:
                tasks.create_task(self._read_events(reader))
        raise AssertionError

    async def operate_webhook(self) -> NoReturn:
        """Look at the webhook now and then until cancelled, and resume it.

        In half of the histories it has to continue by itself if it can: after two failures the
        daemon waits for 40 s at most, after more for up to an hour, and after 410 for ever.
        """
        deployment = self._deployment
        while True:
            await asyncio.sleep(_OPERATOR_PAUSE_S)
            seat = self._random.choice(deployment.seats)
            _, body = await deployment.administrate(seat, "GET", WEBHOOKS)
            for webhook in body.get("webhooks", ()):
                errors = ["error" in delivery for delivery in webhook["deliveries"]]
                is_stuck = "pausedAt" in webhook or errors[-3:] == [True] * 3
                if (
                    "failingSince" in webhook
                    and not deployment.receiver.is_failing
                    and (is_stuck or self._is_impatient)
                ):
                    path = f"{WEBHOOKS}/{webhook['id']}:test"
                    await deployment.administrate(seat, "POST", path)

    async def until_reading(self) -> None:
        """Wait until each reader has its first cursor."""
        await until(lambda: len(self._started) == READERS)

    async def sign_last(self, timeout_s: float) -> bool:
        """Sign a message by each daemon; return whether all readers and the webhook get its event,
        and the readers all events of the chain.

        A daemon that had lost its store writes what it signed before.
        """
        ids: list[str] = [*self._deployment.chain.events]
        for seat in self._deployment.seats:
            await until(partial(self._sign_new, seat, ids))
        with suppress(TimeoutError):
            await until(lambda: self._has_all(ids), timeout_s)
        return self._has_all(ids)

    async def _sign_new(self, seat: Seat, ids: list[str]) -> bool:
        """Ask for a new message; return whether it is signed, with its id at the end of `ids`."""
        message = next(self._messages)
        is_signed = await self._sign(seat, message) == "signed"
        if is_signed:
            ids.append(id_text(message.unsigned.id))
        return is_signed

    def _has_all(self, ids: list[str]) -> bool:
        is_read = all(read.issuperset(ids) for read in self.read.values())
        return is_read and self._deployment.receiver.confirmed >= self.newest

    async def _sign_messages(self, seat: Seat) -> NoReturn:
        """Ask one daemon for new messages, and now and then for one that is signed."""
        while True:
            if self._signed and self._random.random() < 0.2:
                await self._sign(seat, self._random.choice(self._signed))
            else:
                message = next(self._messages)
                if await self._sign(seat, message) == "signed" and self._random.random() < 0.2:
                    self._signed.append(message)
            await asyncio.sleep(self._random.uniform(0.0, 2 * _SIGNING_PAUSE_S))

    async def _sign(self, seat: Seat, message: SimMessage) -> str:
        if seat.url is None:
            return LOST
        process, begin, result, signature = seat.process, monotonic(), LOST, ""
        try:
            status, body = await self._deployment.call(
                seat, "POST", AGGREGATE_PATH, {"message": message.unsigned.raw.hex()}
            )
            result = "signed" if status == 200 else body.get("code", LOST)
            signature = body.get("signed-message", "")[-_SIGNATURE_DIGITS:]
        finally:
            # A request that is cancelled may have led to a signature.
            self._record(
                Signing(
                    process=process,
                    begin=begin,
                    end=monotonic(),
                    message=id_text(message.unsigned.id),
                    result=result,
                    signature=signature,
                )
            )
        return result

    async def _block_messages(self, blocked_s: float, delay_s: float = 0.0) -> NoReturn:
        """Block a message that both daemons have signed, look whether it leaves, and unblock it.

        blocked_s: time until it is unblocked.
        delay_s: time until the first message.
        """
        await asyncio.sleep(delay_s)
        while True:
            message = next(self._messages)
            for seat in self._deployment.seats:
                await self._sign(seat, message)
            seats = self._deployment.seats
            # Without its store a daemon refuses the block.
            blocker = self._random.choice([seat for seat in seats if not seat.is_cut] or seats)
            if await self._change_block(blocker, message, is_added=True):
                end = monotonic() + blocked_s
                while monotonic() < end:
                    await asyncio.gather(
                        *(self._sign(seat, message) for seat in self._deployment.seats)
                    )
                    await asyncio.sleep(blocked_s / _PROBES_OF_A_BLOCK)
            await self._change_block(blocker, message, is_added=False)
            await asyncio.sleep(_PROBE_S)

    async def _change_block(self, seat: Seat, message: SimMessage, *, is_added: bool) -> bool:
        process, begin = seat.process, monotonic()
        message_id = id_text(message.unsigned.id)
        path = "/v1/signing-blocks"
        if is_added:
            fields = {"kind": "message-id", "value": message_id, "reason": "a history"}
            status, _ = await self._deployment.administrate(seat, "POST", path, fields)
        else:
            status, _ = await self._deployment.administrate(
                seat, "DELETE", f"{path}/message-id/{message_id}"
            )
        is_acknowledged = status in (200, 201)
        self._record(
            BlockChange(
                process=process,
                begin=begin,
                end=monotonic(),
                message=message_id,
                is_added=is_added,
                is_acknowledged=is_acknowledged,
            )
        )
        return is_acknowledged

    async def _use_up_keys(self, **units: int) -> NoReturn:
        """Use a key with few units on both daemons until it has none, and a new one later.

        units: units of the key, by their name in `KeyCreation`.
        """
        number, (limit,) = 0, units
        while True:
            number += 1
            name = f"{limit} {number}"
            text = await self._create_key(name, **units)
            for _ in range(_USES_OF_A_KEY):
                await asyncio.gather(
                    *(self._use_key(seat, name, text) for seat in self._deployment.seats)
                )
                await asyncio.sleep(_KEY_PAUSE_S)

    async def _revoke_keys(self) -> NoReturn:
        """Use a key on both daemons, revoke it, and try it on."""
        number = 0
        while True:
            number += 1
            name = f"revoked {number}"
            text = await self._create_key(name)
            for use in range(int(_REVOKED_S / _KEY_PAUSE_S)):
                if use == 3:
                    await self._revoke_key(name)
                await asyncio.gather(
                    *(self._use_key(seat, name, text) for seat in self._deployment.seats)
                )
                await asyncio.sleep(_KEY_PAUSE_S)

    async def _use_valid_and_unknown_keys(self) -> NoReturn:
        """Use a key without limits and a key that no store has, and new ones later."""
        number = 0
        while True:
            number += 1
            valid, unknown = f"valid {number}", f"unknown {number}"
            texts = {valid: await self._create_key(valid), unknown: self._draw_unknown_key(unknown)}
            for _ in range(_USES_OF_A_KEY):
                await asyncio.gather(
                    *(
                        self._use_key(seat, name, text)
                        for seat in self._deployment.seats
                        for name, text in texts.items()
                    )
                )
                await asyncio.sleep(_KEY_PAUSE_S)

    async def _use_key(self, seat: Seat, name: str, text: str) -> None:
        if seat.url is None:
            return
        process, begin = seat.process, monotonic()
        status, body = await self._deployment.call(
            seat, "GET", CHAINS, headers={KEY_HEADER: text}, timeout_s=5.0
        )
        result = ADMITTED if status == 200 else body.get("code", LOST)
        self._record(
            KeyUse(process=process, begin=begin, end=monotonic(), key=name, units=1, result=result)
        )

    async def _create_key(
        self, name: str, *, units_per_minute: int = 0, units_per_day: int = 0
    ) -> str:
        """Make a key as the command does, beside the daemons; return its text."""
        begin, text = monotonic(), new_key_text()
        digest = digest_key(text)
        assert digest is not None
        key = ApiKey(name, digest, text[-4:], units_per_minute, units_per_day, time())
        await self._run_command(partial(self._add_key, key))
        self._record(
            KeyCreation(
                process="command",
                begin=begin,
                end=monotonic(),
                key=name,
                units_per_minute=units_per_minute,
                units_per_day=units_per_day,
            )
        )
        return text

    def _draw_unknown_key(self, name: str) -> str:
        """Return the text of a key that no daemon can know."""
        now = monotonic()
        self._record(KeyCreation(process="command", begin=now, end=now, key=name, is_stored=False))
        return new_key_text()

    def _add_key(self, key: ApiKey) -> None:
        url = StoreUrl.parse(self._deployment.store_url)
        write_shared(url, lambda connection: add_key(connection, key))

    async def _revoke_key(self, name: str) -> None:
        begin = monotonic()

        def revoke() -> None:
            url = StoreUrl.parse(self._deployment.store_url)
            assert write_shared(url, lambda connection: revoke_key(connection, name, time()))

        await self._run_command(revoke)
        self._record(KeyRevocation(process="command", begin=begin, end=monotonic(), key=name))

    async def _run_command(self, command: Callable[[], None]) -> None:
        """Run a command beside the daemons, again while the server is away.

        A command whose reply was lost has done its work.
        """
        while True:
            try:
                return await asyncio.to_thread(command)
            except StoreUnusable:
                await asyncio.sleep(_PROBE_S)

    async def _read_events(self, reader: str) -> NoReturn:
        """Read events from daemons in turn, each for some time, by a cursor that is kept."""
        cursor = ""
        while True:
            seat = self._random.choice(self._deployment.seats)
            try:
                async with asyncio.timeout(self._random.uniform(0.5, 4.0)):
                    async for part in self._stream(seat, cursor):
                        cursor = part["id"]
                        self._record_part(reader, seat.process, part)
            except (aiohttp.ClientError, OSError, TimeoutError):
                await asyncio.sleep(_PROBE_S)

    async def _stream(self, seat: Seat, cursor: str) -> AsyncIterator[dict[str, str]]:
        """Yield the fields of each part of a stream of events, until its end."""
        if seat.url is None:
            raise ConnectionError("the daemon does not run")
        headers = {KEY_HEADER: self._deployment.key}
        if cursor:
            headers["last-event-id"] = cursor
        async with self._deployment.session.get(seat.url + EVENTS, headers=headers) as response:
            if response.status == 400:
                raise AssertionError(await response.text())
            response.raise_for_status()
            fields: dict[str, str] = {}
            async for raw in response.content:
                line = raw.decode().rstrip("\n")
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "id" in fields:
                    yield fields
                    fields = {}

    def _record_part(self, reader: str, process: str, part: dict[str, str]) -> None:
        self._started.add(reader)
        now, number = monotonic(), number_of(part["id"])
        event, message, chain_event = "", "", ""
        if "data" in part:
            body = json.loads(part["data"])
            message_id = body.get("messageId")
            if body["type"] == "message_signed" and message_id:
                message = id_text(bytes.fromhex(message_id.removeprefix("0x")))
            if icm_id := body["data"].get("icmMessageId"):
                chain_event = f"{body['type']} {icm_id}"
            digest = hashlib.sha256(part["data"].encode()).hexdigest()[:12]
            event = f"{body['type']} {digest}"
            self.read[reader] |= {message, chain_event}
            self.newest = max(self.newest, number)
        self._record(
            EventRead(
                process=process,
                begin=now,
                end=now,
                reader=reader,
                number=number,
                event=event,
                message=message,
                chain_event=chain_event,
            )
        )
