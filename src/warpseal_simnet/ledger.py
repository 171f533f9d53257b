"""The blocks and transactions of the simulated P-Chain, and the heights and times of its blocks.

The bytes are written on the first read. Each block refers to its parent, and transactions spend the
change of earlier ones. A height without a transaction of its own contains a payment to the same
owner.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from warpseal.warp.ids import NodeID, SubnetID, ValidationID, cb58_encode
from warpseal_simnet import tx_builder
from warpseal_simnet.tx_builder import TxDraft, Utxo, Wallet
from warpseal_simnet.values import SimMessage

SUPPLY_NAVAX: Final = 720_000_000 * 10**9
_FIRST_UTXOS: Final = tuple(Utxo(bytes(32), index, 10**16) for index in range(64))


@dataclass(slots=True, eq=False)
class Transaction:
    """A P-Chain transaction.

    draft: the function that returns the content; it is called when the bytes are written.
    subnet_id, validation_id: IDs of the affected L1 and validator, if any.
    attested: the message of the P-Chain about the transaction, if any.
    height: the height of its block, None until the transaction is accepted.
    """

    kind: str
    draft: Callable[[], TxDraft]
    subnet_id: SubnetID | None = None
    validation_id: ValidationID | None = None
    attested: SimMessage | None = None
    height: int | None = None
    encoding: bytes = b""
    write: Callable[[], None] | None = None

    @property
    def raw(self) -> bytes:
        """The signed bytes. RuntimeError before it is issued or accepted."""
        if not self.encoding and self.write is not None:
            self.write()
        if not self.encoding:
            raise RuntimeError(f"this {self.kind} was never issued")
        return self.encoding

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

    def __init__(self, heights: Heights, wallet: Wallet, chains: Sequence[bytes] = ()) -> None:
        """Start with block 0, whose genesis contains the UTXOs of the wallet.

        chains: the transactions of the genesis that create chains.
        """
        self._heights = heights
        self._wallet = wallet
        self._chains = chains
        self._utxos = deque(_FIRST_UTXOS)
        self.genesis = b""
        self._blocks: list[bytes] = []
        self._heights_by_id: dict[bytes, int] = {}
        self._planned: dict[int, list[Transaction]] = {}
        self._by_id: dict[bytes, Transaction] = {}
        self._change: dict[bytes, Utxo] = {}
        # Every written transaction with the output that it spends and the one that it makes.
        self._flows: list[tuple[Transaction, Utxo, Utxo]] = []
        self.begin(())

    def begin(self, validations: Sequence[tuple[NodeID, int, tuple[bytes, bytes] | None]]) -> None:
        """Write block 0 with the first validators of the Primary Network.

        This comes before any other block is read. The supply is the largest possible, so that no
        validator earns a reward.
        validations: node, weight, and BLS key with its proof of each validator.
        """
        wallet, began_at = self._wallet, int(self._heights.began_at)
        validators = [
            tx_builder.create_genesis_validator(wallet, *terms, began_at) for terms in validations
        ]
        self.genesis = tx_builder.genesis(
            _FIRST_UTXOS, wallet, began_at, SUPPLY_NAVAX, validators, self._chains
        )
        self._blocks = [tx_builder.genesis_block(self.genesis)]
        self._heights_by_id = {sha256(self._blocks[0]).digest(): 0}
        for raw in (*validators, *self._chains):
            self._add_recorded(raw, 0)

    @property
    def asset_id(self) -> bytes:
        """The id of AVAX on this network, 32 bytes."""
        return self._wallet.asset_id

    @property
    def accepted(self) -> tuple[Transaction, ...]:
        """Every accepted transaction in order, without the payments that fill empty blocks."""
        tip = self._heights.current
        return tuple(
            tx
            for height, planned in sorted(self._planned.items())
            if height <= tip
            for tx in planned
        )

    def prepare(self, transaction: Transaction) -> None:
        """Write a transaction that is accepted next, so that its ID is known."""
        self._write(transaction)
        self._utxos.append(self._change.pop(transaction.tx_id))

    def issue(self, transaction: Transaction) -> None:
        """Write a transaction that is not accepted yet. At most 63 may wait at the same time."""
        self._write_blocks()
        self._write(transaction)

    def put(self, height: int, transactions: Sequence[Transaction]) -> None:
        """Put transactions into a block that is not accepted yet."""
        for transaction in transactions:
            transaction.height = height
            transaction.write = self._write_blocks
        self._planned.setdefault(height, []).extend(transactions)

    def load(
        self, blocks: Sequence[bytes], transactions: Sequence[bytes], genesis: Sequence[bytes] = ()
    ) -> None:
        """Use recorded blocks (from 0 to the tip) and transactions instead of writing them.

        genesis: the transactions of the genesis, which no block contains.
        """
        self._blocks = list(blocks)
        self._heights_by_id = {sha256(raw).digest(): height for height, raw in enumerate(blocks)}
        for raw in genesis:
            self._add_recorded(raw, 0)
        for raw in transactions:
            # Inside a block a transaction goes without its codec version.
            heights = (height for height, block in enumerate(blocks) if raw[2:] in block)
            self._add_recorded(raw, next(heights, None))

    def unspent(self, height: int) -> list[bytes]:
        """Return the encoded outputs that can be spent after the block at a height.

        All outputs have the same owner.
        """
        self._write_blocks()
        flows = [
            flow for flow in self._flows if flow[0].height is not None and flow[0].height <= height
        ]
        outputs = dict.fromkeys((*_FIRST_UTXOS, *(change for _, _, change in flows)))
        for _, spent, _ in flows:
            outputs.pop(spent, None)
        return [tx_builder.unspent_output(self._wallet, utxo) for utxo in outputs]

    def block(self, height: int) -> bytes | None:
        """Return the block at a height, or None beyond the tip."""
        if not 0 <= height <= self._heights.current:
            return None
        self._write_blocks()
        return self._blocks[height]

    def height_of(self, block_id: bytes) -> int | None:
        """Return the height of a block, or None if the ID is unknown."""
        self._write_blocks()
        return self._heights_by_id.get(block_id)

    def transaction(self, tx_id: bytes) -> Transaction | None:
        """Return a transaction, accepted or only issued, or None if the ID is unknown."""
        self._write_blocks()
        return self._by_id.get(tx_id)

    def _write_blocks(self) -> None:
        for height in range(len(self._blocks), self._heights.current + 1):
            held = self._planned.get(height) or [_payment(height)]
            for transaction in held:
                if not transaction.encoding:
                    self._write(transaction)
                utxo = self._change.pop(transaction.tx_id, None)
                if utxo is not None:
                    self._utxos.append(utxo)
            parent_id = sha256(self._blocks[-1]).digest()
            raw = tx_builder.standard_block(
                self._heights.time_of(height), parent_id, height, [tx.encoding for tx in held]
            )
            self._blocks.append(raw)
            self._heights_by_id[sha256(raw).digest()] = height

    def _write(self, transaction: Transaction) -> None:
        draft = transaction.draft()
        utxo = self._utxos.popleft()
        transaction.encoding = tx_builder.transaction(self._wallet, utxo, draft)
        change = tx_builder.change(utxo, draft, transaction.encoding)
        self._change[change.tx_id] = change
        self._by_id[change.tx_id] = transaction
        self._flows.append((transaction, utxo, change))

    def _add_recorded(self, raw: bytes, height: int | None) -> None:
        """Add a transaction whose bytes exist.

        height: the height of its block, 0 for the genesis; None if no block contains it.
        """
        transaction = Transaction("recorded", tx_builder.base, height=height, encoding=raw)
        self._by_id[transaction.tx_id] = transaction


def _payment(height: int) -> Transaction:
    payment = Transaction("BaseTx", tx_builder.base)
    payment.height = height
    return payment


@dataclass(slots=True)
class Heights:
    """The heights of the P-Chain.

    made_at: unix seconds of the blocks since `first`; began_at: of block 0.
    """

    current: int
    proposed_lag: int = 0
    first: int = 0
    made_at: list[float] = field(default_factory=list)
    began_at: float = 0.0

    @property
    def proposed(self) -> int:
        """The height that a new block would refer to."""
        return self.proposed_at(self.current)

    def proposed_at(self, height: int) -> int:
        """Return the height that a new block refers to while the tip is at `height`."""
        return max(0, height - self.proposed_lag)

    def time_of(self, height: int) -> int:
        """Return the time of a block, unix seconds.

        The blocks before `first` are evenly spaced since `began_at`.
        """
        if height >= self.first:
            return int(self.made_at[height - self.first])
        return int(self.began_at + (self.made_at[0] - self.began_at) * height / self.first)

    def height_at(self, unix_s: float) -> int:
        """Return the last height whose block was made at `unix_s` or before."""
        block_count = bisect_right(self.made_at, unix_s)
        if block_count:
            return self.first + block_count - 1
        passed = (unix_s - self.began_at) / max(1.0, self.made_at[0] - self.began_at)
        return max(0, min(self.first - 1, int(passed * self.first)))
