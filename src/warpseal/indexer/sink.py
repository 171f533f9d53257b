"""What indexing needs of the place where its rows go; one thread calls all of it, except for `close`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from warpseal.chains.ids import UtxoID
from warpseal.history.blocks import Proposer
from warpseal.history.chains import PrimaryChain
from warpseal.ledger.c_chain import CBlockEffects
from warpseal.ledger.effects import BlockEffects
from warpseal.ledger.outputs import KnownOutput, LedgerOutput
from warpseal.ledger.params import Parameters
from warpseal.ledger.x_chain import XBlockEffects, XTxEffects
from warpseal.warp.ids import ChainID


@dataclass(frozen=True, slots=True)
class Place:
    """Up to where a chain is written. first_height: below it nothing is; proposer: of the block at `height`.

    is_complete: whether it was begun with all that was there before `first_height`.
    """

    height: int
    block_id: bytes
    first_height: int
    is_complete: bool
    proposer: Proposer | None = None


@dataclass(frozen=True, slots=True)
class PEntry:
    """A block of the P-Chain to write."""

    effects: BlockEffects
    proposer: Proposer | None


@dataclass(frozen=True, slots=True)
class XEntry:
    """A block of the X-Chain to write."""

    effects: XBlockEffects
    proposer: Proposer | None


@dataclass(frozen=True, slots=True)
class CEntry:
    """A block of the C-Chain to write. extra_data: the bytes of its atomic transactions."""

    effects: CBlockEffects
    extra_data: bytes


@dataclass(frozen=True, slots=True)
class EarlyXTx:
    """A transaction from before the X-Chain had blocks. index: its place; time_s: about when, or before."""

    index: int
    effects: XTxEffects
    time_s: int


@dataclass(frozen=True, slots=True)
class ChainNote:
    """How indexing a chain stands, for whoever answers questions about it.

    node_height: the highest that a node told; is_node_behind: the node is not bootstrapped, or another knows more.
    stopped, stopped_at, detail, raw: of a failure; "" and None where all is well. rate, eta_s: of catching up.
    """

    chain: PrimaryChain
    node_height: int
    is_node_behind: bool
    stopped: str = ""
    stopped_at: int | None = None
    detail: str = ""
    raw: bytes = b""
    rate_blocks_s: float | None = None
    eta_s: float | None = None


class Sink(Protocol):
    """Everything is written in one transaction per call, the new place included. Raises StoreDown."""

    def begin(self, params: Parameters) -> None:
        """Tell which network it is, before anything else."""
        ...

    def find(self, utxo_id: UtxoID, held_on: ChainID) -> KnownOutput | None:
        """Return the written output that can be spent now on chain `held_on`."""
        ...

    def place(self, chain: PrimaryChain) -> Place | None:
        """Return up to where a chain is written; None: nothing is."""
        ...

    def p_checkpoint(self) -> tuple[int, bytes] | None:
        """Return the last checkpoint of the P-Chain's state and the height that it is of."""
        ...

    def raw_blocks(self, chain: PrimaryChain, first: int, last: int) -> Iterator[bytes]:
        """Yield the bytes of written blocks (of the C-Chain their extra data), in order."""
        ...

    def append_p(self, blocks: Sequence[PEntry], checkpoint: bytes | None, *, is_complete: bool) -> None:
        """Write the next blocks. checkpoint: the state after the last of them, every now and then."""
        ...

    def append_x(self, blocks: Sequence[XEntry], found: Sequence[LedgerOutput], *, is_complete: bool) -> None:
        """Write the next blocks. found: outputs that they spend, of transactions that are not written."""
        ...

    def append_c(self, blocks: Sequence[CEntry]) -> None:
        """Write the next blocks."""
        ...

    def x_beginning(self, assets: Sequence[XTxEffects]) -> None:
        """Write what the X-Chain's genesis made."""
        ...

    def early_x_count(self) -> int:
        """Return how many transactions are written from before the X-Chain had blocks."""
        ...

    def append_early_x(self, txs: Sequence[EarlyXTx], found: Sequence[LedgerOutput]) -> None:
        """Write the next of them."""
        ...

    def note(self, note: ChainNote) -> None:
        """Write how a chain stands."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...
