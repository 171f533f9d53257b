"""The accepted blocks and the transactions of the simulated P-Chain; their bytes are written when somebody looks.

Blocks follow each other by id, and transactions spend what earlier ones gave back. A height without a transaction
of its own holds a payment to oneself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

from warpseal.simnet import tx_builder
from warpseal.simnet.heights import Heights
from warpseal.simnet.tx_builder import Coin, Draft, Purse
from warpseal.simnet.values import SimMessage
from warpseal.warp.ids import SubnetID, ValidationID, cb58_encode

_COINS: Final = 64
_COIN_NAVAX: Final = 10**16


class Transaction:
    """A P-Chain transaction. height: None until it is accepted; attested: what the P-Chain signs about it, if anything.

    subnet_id, validation_id: of the L1 and the validator that it is about, if it is about one.
    """

    def __init__(
        self,
        kind: str,
        draft: Callable[[], Draft],
        *,
        subnet_id: SubnetID | None = None,
        validation_id: ValidationID | None = None,
        attested: SimMessage | None = None,
    ) -> None:
        """Describe a transaction. draft: called once, when its bytes are written."""
        self.kind = kind
        self.subnet_id = subnet_id
        self.validation_id = validation_id
        self.attested = attested
        self.height: int | None = None
        self.draft = draft
        self.written = b""
        self.write: Callable[[], None] | None = None

    @property
    def raw(self) -> bytes:
        """The signed bytes. RuntimeError before it is issued or accepted."""
        if not self.written and self.write is not None:
            self.write()
        if not self.written:
            raise RuntimeError(f"this {self.kind} was never issued")
        return self.written

    @property
    def tx_id(self) -> bytes:
        """The hash of the signed bytes, 32 bytes."""
        return sha256(self.raw).digest()

    @property
    def text(self) -> str:
        """The transaction's id as nodes print it."""
        return cb58_encode(self.tx_id)


class Ledger:
    """Blocks by height and id, transactions by id."""

    def __init__(self, heights: Heights, purse: Purse) -> None:
        """Start with block 0, whose genesis owns the purse's coins."""
        self._heights = heights
        self._purse = purse
        self._coins = deque(Coin(bytes(32), index, _COIN_NAVAX) for index in range(_COINS))
        genesis = tx_builder.genesis(tuple(self._coins), purse, int(heights.began_at))
        self._blocks = [tx_builder.genesis_block(genesis)]
        self._heights_by_id = {sha256(self._blocks[0]).digest(): 0}
        self._planned: dict[int, list[Transaction]] = {}
        self._by_id: dict[bytes, Transaction] = {}
        self._change: dict[bytes, Coin] = {}

    @property
    def asset_id(self) -> bytes:
        """The id of AVAX on this network, 32 bytes."""
        return self._purse.asset_id

    @property
    def accepted(self) -> tuple[Transaction, ...]:
        """Every accepted transaction with a purpose, in order."""
        tip = self._heights.current
        return tuple(one for height, held in sorted(self._planned.items()) if height <= tip for one in held)

    def prepare(self, transaction: Transaction) -> None:
        """Write a transaction that is accepted next, so that its id is known."""
        self._write(transaction)
        self._coins.append(self._change.pop(transaction.tx_id))

    def issue(self, transaction: Transaction) -> None:
        """Write a transaction that nobody accepts yet. At most 63 wait at a time."""
        self._write_blocks()
        self._write(transaction)

    def put(self, height: int, transactions: Sequence[Transaction]) -> None:
        """Put transactions into a block that is not accepted yet."""
        for transaction in transactions:
            transaction.height = height
            transaction.write = self._write_blocks
        self._planned.setdefault(height, []).extend(transactions)

    def load(self, blocks: Sequence[bytes], transactions: Sequence[bytes]) -> None:
        """Take blocks (from 0 to the tip) and their transactions as they were recorded, instead of writing them."""
        self._blocks = list(blocks)
        self._heights_by_id = {sha256(raw).digest(): height for height, raw in enumerate(blocks)}
        for raw in transactions:
            recorded = Transaction("recorded", tx_builder.base)
            recorded.written = raw
            # Inside a block a transaction goes without its codec version.
            recorded.height = next((height for height, block in enumerate(blocks) if raw[2:] in block), None)
            self._by_id[recorded.tx_id] = recorded

    def block(self, height: int) -> bytes | None:
        """Return the block at a height, or None beyond the tip."""
        if not 0 <= height <= self._heights.current:
            return None
        self._write_blocks()
        return self._blocks[height]

    def height_of(self, block_id: bytes) -> int | None:
        """Return the height of a block, or None where there is none of that id."""
        self._write_blocks()
        return self._heights_by_id.get(block_id)

    def transaction(self, tx_id: bytes) -> Transaction | None:
        """Return a transaction, accepted or only issued, or None where nobody issued one of that id."""
        self._write_blocks()
        return self._by_id.get(tx_id)

    def _write_blocks(self) -> None:
        for height in range(len(self._blocks), self._heights.current + 1):
            held = self._planned.get(height) or [_payment(height)]
            for transaction in held:
                if not transaction.written:
                    self._write(transaction)
                coin = self._change.pop(transaction.tx_id, None)
                if coin is not None:
                    self._coins.append(coin)
            parent_id = sha256(self._blocks[-1]).digest()
            raw = tx_builder.standard_block(
                self._heights.time_of(height), parent_id, height, [one.written for one in held]
            )
            self._blocks.append(raw)
            self._heights_by_id[sha256(raw).digest()] = height

    def _write(self, transaction: Transaction) -> None:
        draft = transaction.draft()
        coin = self._coins.popleft()
        transaction.written = tx_builder.transaction(self._purse, coin, draft)
        coin_back = tx_builder.change(coin, draft, transaction.written)
        self._change[coin_back.tx_id] = coin_back
        self._by_id[coin_back.tx_id] = transaction


def _payment(height: int) -> Transaction:
    payment = Transaction("BaseTx", tx_builder.base)
    payment.height = height
    return payment
