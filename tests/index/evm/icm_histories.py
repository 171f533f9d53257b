"""Made-up histories of ICM between chains: lost, reordered, retried and failed messages, receipts,
fees, look-alikes.

Two messengers and a version 2, one of which a registry names in the middle; one destination and one
source that no index has. Beside the blocks, what the rows must say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from msgspec.structs import replace

from tests.chains.evm.evm_values import decoded
from tests.chains.evm.icm_logs import MESSENGER, PRECOMPILE, Message, version_log, warp_log
from tests.index.evm.histories import address, made_block
from tests.indexer.evm_chains import Log, MadeUpChain, ServedChain, Tx
from warpseal.chains.evm.checks import BlockRules, block_facts
from warpseal.chains.evm.facts import EvmBlockFacts
from warpseal.warp.ids import ChainID
from warpseal.warp.message import AddressedCall

A, B, ABSENT = (ChainID(bytes([number]) * 32) for number in (0xA, 0xB, 0xC))
REGISTRY, SECOND, LIAR = address(0x4E6), address(0x2D), address(0xBAD)
PEOPLE = [address(1_000 + number) for number in range(5)]
RELAYERS = [address(2_000 + number) for number in range(2)]
COIN = address(0xC011)


@dataclass
class KnownMessage:
    """What the index of a chain must say about a message that it sent, or received.

    changes: kinds in order. receives: (outcome when received, later executed) by destination.
    """

    message: Message
    changes: list[str] = field(default_factory=list)
    outcome: str = ""


@dataclass
class IcmChain:
    """One chain and its index as a plain model.

    logs: logs by block and transaction.
    outgoing, incoming: messages by id, in order.
    """

    id: ChainID
    blocks: list[EvmBlockFacts] = field(default_factory=list)
    logs: list[list[list[Log]]] = field(default_factory=list)
    outgoing: dict[bytes, KnownMessage] = field(default_factory=dict)
    incoming: dict[bytes, KnownMessage] = field(default_factory=dict)
    raw: int = 0
    unknown: int = 0
    nonces: dict[bytes, int] = field(default_factory=dict)
    has_second: bool = False


@dataclass
class IcmHistory:
    """Blocks of two chains.

    is_reordered: a message may be received before its block is made, as if B were ahead.
    """

    seed: int
    random: Random = field(init=False)
    chains: dict[ChainID, IcmChain] = field(default_factory=dict)
    open: list[Message] = field(default_factory=list)
    delivered: list[Message] = field(default_factory=list)
    absent_nonce: int = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.chains = {id_: IcmChain(id_) for id_ in (A, B)}

    def add_blocks(self, count: int) -> None:
        """Add blocks to both chains, in turns."""
        for number in range(count):
            for chain in self.chains.values():
                self._add_block(chain, number)

    def _add_block(self, chain: IcmChain, number: int) -> None:
        random = self.random
        txs: list[list[Log]] = []
        if number == 10 and not chain.has_second:
            chain.has_second = True
            txs.append([version_log(REGISTRY, 2, SECOND)])
        for _ in range(random.choice((0, 1, 2, 4))):
            action = random.choice(
                (self._send, self._send, self._receive, self._receive, self._change, self._lie)
            )
            if logs := action(chain):
                txs.append(logs)
        chain.blocks.append(block_of(len(chain.blocks), txs))
        chain.logs.append(txs)

    def _send(self, chain: IcmChain) -> list[Log]:
        random = self.random
        messenger = random.choice((MESSENGER, SECOND)) if chain.has_second else MESSENGER
        nonce = chain.nonces[messenger] = chain.nonces.get(messenger, 0) + 1
        destination = random.choice((*(id_ for id_ in (A, B) if id_ != chain.id), ABSENT))
        message = Message(
            chain.id,
            destination,
            nonce,
            random.choice(PEOPLE),
            random.choice(PEOPLE),
            random.choice((50_000, 2**255)),
            RELAYERS[: random.randrange(2)],
            [(1, RELAYERS[0])] * random.randrange(2),
            random.choice((b"", b"\1\2\3\4", random.randbytes(40))),
            messenger,
            PEOPLE[0] if messenger == SECOND else None,
            COIN,
            random.randrange(3),
        )
        chain.outgoing[message.id] = KnownMessage(message)
        if destination != ABSENT and random.random() < 0.9:
            self.open.append(message)
        elif destination == ABSENT and random.random() < 0.5:
            self.delivered.append(message)
        return message.sent()

    def _receive(self, chain: IcmChain) -> list[Log]:
        random = self.random
        if random.random() < 0.2:
            self.absent_nonce += 1
            body = b"" if random.random() < 0.2 else b"body"
            message = Message(
                ABSENT, chain.id, self.absent_nonce, PEOPLE[1], random.choice(PEOPLE), body=body
            )
        else:
            waiting = [message for message in self.open if message.destination == chain.id]
            if not waiting:
                return []
            message = random.choice(waiting)
            self.open.remove(message)
            self.delivered.append(message)
        is_executed = random.random() < 0.6 if message.body else None
        outcome = {None: "none", True: "executed", False: "failed"}[is_executed]
        chain.incoming[message.id] = KnownMessage(message, outcome=outcome)
        return message.received(RELAYERS[0], RELAYERS[1], is_executed=is_executed)

    def _change(self, chain: IcmChain) -> list[Log]:
        random = self.random
        failed = [entry for entry in chain.incoming.values() if entry.outcome == "failed"]
        if failed and random.random() < 0.5:
            entry = random.choice(failed)
            entry.outcome = "executed"
            entry.changes.append("executed")
            return entry.message.executed()
        if not chain.outgoing:
            return []
        entry = random.choice(list(chain.outgoing.values()))
        kind = random.choice(("fee", "resent", "receipt"))
        if kind == "receipt" and (
            entry.message not in self.delivered or "receipt" in entry.changes
        ):
            return []
        entry.changes.append(kind)
        match kind:
            case "fee":
                return entry.message.fee_added(random.randrange(1, 10**20))
            case "resent":
                return entry.message.sent()
            case _:
                return entry.message.receipt(RELAYERS[1], entry.message.fee)

    def _lie(self, chain: IcmChain) -> list[Log]:
        """Return events of a contract that no registry names, or a raw Warp message."""
        message = Message(
            chain.id, B, self.random.randrange(9), PEOPLE[0], PEOPLE[1], messenger=LIAR
        )
        chain.raw += 1
        if self.random.random() < 0.5:
            return [warp_log(AddressedCall(LIAR, self.random.randbytes(8)), chain.id)]
        chain.unknown += 3
        return [*message.sent(), *message.received(LIAR, LIAR), *message.fee_added(1)]


def block_of(number: int, txs: Sequence[Sequence[Log]]) -> EvmBlockFacts:
    """Return a block of the index's tests with the ICM events of transactions."""
    evm = MadeUpChain(has_roots=False)
    evm.add([Tx(PEOPLE[0], PRECOMPILE, logs) for logs in txs])
    facts = block_facts(
        *decoded(evm.chain.headers[1], evm.chain.receipts[1]), BlockRules(has_icm=True)
    )
    block = made_block(number, tx_count=len(txs))
    hashes: dict[int, bytes] = {index: bytes([index + 1]) * 32 for index in facts.tx_hashes}
    return replace(
        block,
        icm=facts.icm,
        tx_hashes=hashes,
        tx_fees=facts.tx_fees,
        unknown_logs=facts.unknown_logs,
    )


def served(chain: IcmChain) -> ServedChain:
    """Return the chain as a node serves it, behind a genesis."""
    evm = MadeUpChain(chain.id[0])
    for txs in chain.logs:
        evm.add([Tx(PEOPLE[0], PRECOMPILE, logs) for logs in txs])
    return dataclasses.replace(evm.chain, blockchain_id=chain.id)


def expected_sends(history: IcmHistory, chain: IcmChain) -> list[tuple[Any, ...]]:
    """Return what the index must say about the messages that a chain sent, when all deliveries are
    joined.
    """
    rows = []
    for entry in chain.outgoing.values():
        message = entry.message
        destination = history.chains.get(message.destination)
        receive = None if destination is None else destination.incoming.get(message.id)
        outcome = "" if receive is None else receive.outcome
        state = "failed" if outcome == "failed" else ""
        if not outcome:
            state = "receipt" if "receipt" in entry.changes else "open"
        fields = (
            message.sender,
            message.recipient,
            message.gas_limit,
            message.asset,
            message.fee,
            message.body,
        )
        rows.append((message.id, *fields, entry.changes, outcome, state))
    return rows


def expected_receives(chain: IcmChain) -> list[tuple[Any, ...]]:
    """Return what the index must say about the messages that a chain received."""
    return [
        (
            entry.message.id,
            entry.message.sender,
            entry.message.recipient,
            entry.outcome,
            entry.changes,
        )
        for entry in chain.incoming.values()
    ]
