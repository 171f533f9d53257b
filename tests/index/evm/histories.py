"""Made-up EVM blocks: contracts, tokens, mints, burns, batches, transfers to oneself, and events
that contradict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from warpseal.chains.evm.facts import Creation, EvmBlockFacts, NftTransfer, TokenStandard
from warpseal.index.evm.records import TracedBlock

ZERO = bytes(20)
MAX = 2**256 - 1
GENESIS_PARENT = bytes(32)
START = 1_700_000_000


def address(number: int) -> bytes:
    """Return an address."""
    return number.to_bytes(20, "big")


def hash_of(*numbers: int) -> bytes:
    """Return a made-up hash; those of neighbours differ in their first bytes."""
    return Random(repr(numbers)).randbytes(32)


def made_block(
    number: int,
    transfers: Sequence[NftTransfer] = (),
    creations: Sequence[Creation] = (),
    *,
    tx_count: int = 1,
    time: int | None = None,
    needs_trace: bool = False,
) -> EvmBlockFacts:
    """Return a block, with the hashes of its transactions."""
    indices = {transfer.tx_index for transfer in transfers} | {
        creation.tx_index for creation in creations
    }
    return EvmBlockFacts(
        number,
        hash_of(number),
        hash_of(number - 1) if number else GENESIS_PARENT,
        START + 2 * number if time is None else time,
        max([tx_count, *(index + 1 for index in indices)]),
        21_000 * tx_count,
        15_000_000,
        25 * 10**9 if number % 2 else None,
        number if number % 3 else None,
        21_000 * tx_count * 25 * 10**9,
        tuple(transfers),
        tuple(creations),
        tx_hashes={index: hash_of(number, index) for index in indices},
        needs_trace=needs_trace,
    )


def transfer(
    position: int,
    contract: int,
    token_id: int,
    sender: bytes,
    recipient: bytes,
    *,
    amount: int | None = None,
    tx_index: int = 0,
    is_candidate: bool = False,
) -> NftTransfer:
    """Return a transfer: of ERC-1155 with an amount, else of ERC-721."""
    standard = TokenStandard.ERC721 if amount is None else TokenStandard.ERC1155
    return NftTransfer(
        position,
        tx_index,
        position // 2,
        address(contract),
        standard,
        token_id,
        sender,
        recipient,
        1 if amount is None else amount,
        is_candidate,
    )


@dataclass
class History:
    """Blocks one after the other. Token ids are small or have 256 bits.

    is_consistent: senders own what they send.
    traced: creations inside of transactions, by block.
    """

    seed: int
    is_consistent: bool = False
    random: Random = field(init=False)
    number: int = 0
    owners: dict[tuple[int, int], bytes] = field(default_factory=dict)
    balances: dict[tuple[int, int, bytes], int] = field(default_factory=dict)
    traced: dict[int, TracedBlock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.holders = [address(1_000 + number) for number in range(12)]

    def next_block(self) -> EvmBlockFacts:
        """Return the next block."""
        random, number = self.random, self.number
        self.number += 1
        transfers: list[NftTransfer] = []
        tx_index = 0
        for _ in range(random.choice((0, 0, 1, 2, 6))):
            tx_index = random.randrange(tx_index, 4)
            contract = random.choice((1, 2, 3, 4, 5, 6))
            moves = (
                (self._erc721, self._erc1155)
                if contract == 6
                else (self._erc721, self._erc1155)[contract % 2 :][:1]
            )
            for move in moves:
                transfers += move(contract, len(transfers), tx_index)
        creations = [self._creation(number, index) for index in range(2) if random.random() < 0.1]
        block = made_block(
            number, transfers, creations, tx_count=4, needs_trace=random.random() < 0.4
        )
        if block.needs_trace and random.random() < 0.6:
            self.traced[number] = self._trace(block)
        return block

    def blocks(self, count: int) -> list[EvmBlockFacts]:
        """Return the next blocks."""
        return [self.next_block() for _ in range(count)]

    def _erc721(self, contract: int, position: int, tx_index: int) -> list[NftTransfer]:
        random = self.random
        token_id = random.choice(
            (random.randrange(8), MAX - random.randrange(4), 2**64 + random.randrange(2))
        )
        owner = self.owners.get((contract, token_id), ZERO)
        if not self.is_consistent and random.random() < 0.1:
            owner = random.choice((*self.holders, ZERO))
        recipient = random.choice((*self.holders, owner, ZERO))
        self.owners[contract, token_id] = recipient
        is_candidate = not self.is_consistent and contract in (2, 4) and random.random() < 0.3
        return [
            transfer(
                position,
                contract,
                token_id,
                owner,
                recipient,
                tx_index=tx_index,
                is_candidate=is_candidate,
            )
        ]

    def _erc1155(self, contract: int, position: int, tx_index: int) -> list[NftTransfer]:
        random = self.random
        sender, recipient = (
            random.choice((*self.holders, ZERO, ZERO)),
            random.choice((*self.holders, ZERO)),
        )
        movements = []
        for place in range(random.choice((1, 1, 3))):
            token_id = random.choice((random.randrange(6), 2**255 + random.randrange(3)))
            held = self.balances.get((contract, token_id, sender), 0)
            amount = (
                random.choice((0, 1, 7, 1_000))
                if sender == ZERO
                else random.choice((0, held, held // 2))
            )
            if not self.is_consistent and random.random() < 0.1:
                amount = random.choice((held + 1, MAX, 2**128))
            for holder, change in ((sender, -amount), (recipient, amount)):
                if holder != ZERO:
                    balance = self.balances.get((contract, token_id, holder), 0) + change
                    self.balances[contract, token_id, holder] = min(MAX, max(0, balance))
            movements.append(
                transfer(
                    position + place,
                    contract,
                    token_id,
                    sender,
                    recipient,
                    amount=amount,
                    tx_index=tx_index,
                )
            )
        return movements

    def _creation(self, number: int, index: int) -> Creation:
        return Creation(
            index, 0, address(50_000 + number * 10 + index), self.random.choice(self.holders)
        )

    def _trace(self, block: EvmBlockFacts) -> TracedBlock:
        """Return creations inside of the first and third transaction, behind those of receipts."""
        random = self.random
        inner = [
            Creation(
                index,
                1 + place,
                address(90_000 + block.number * 100 + index * 10 + place),
                random.choice(self.holders),
                address(random.choice((7, 8))),
            )
            for index in (0, 2)
            for place in range(random.randrange(1, 3))
        ]
        creations = sorted(
            [*block.creations, *inner], key=lambda item: (item.tx_index, item.position)
        )
        hashes = {item.tx_index: hash_of(block.number, item.tx_index) for item in creations}
        return TracedBlock(block.number, tuple(creations), hashes)
