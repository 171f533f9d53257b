"""What is wrong when a block contradicts the state that it meets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from warpseal.chains.ids import Address, AssetID, TxID, UtxoID
from warpseal.warp.ids import ChainID


class LedgerFault(ValueError):
    """A block does what the rules forbid in this state: its bytes, or what was indexed before, are not the chain's.

    height: of the block; tx_id: of the transaction, None where it is the block itself. After it the state is spoiled:
    go back to a checkpoint.
    """

    def __init__(self, height: int, tx_id: TxID | None, reason: str) -> None:
        where = f"block {height}" if tx_id is None else f"block {height}, transaction {tx_id.hex()}"
        super().__init__(f"{where}: {reason}")
        self.height = height
        self.tx_id = tx_id
        self.reason = reason


class OutputKind(StrEnum):
    """What an output holds: an amount, or one of the rights and things of the X-Chain."""

    TRANSFER = "transfer"
    MINT = "mint"
    NFT_MINT = "nft-mint"
    NFT = "nft"
    PROPERTY_MINT = "property-mint"
    PROPERTY = "property"


class RewardKind(StrEnum):
    """What a reward output pays, in the spelling of the public data API."""

    VALIDATOR = "VALIDATOR"
    DELEGATOR = "DELEGATOR"
    VALIDATOR_FEE = "VALIDATOR_FEE"


@dataclass(frozen=True, slots=True)
class LedgerOutput:
    """An output. tx_id, output_index: what `id` follows from; for rewards and returned stake those of the staking.

    amount: in the asset's smallest unit; 1 for an NFT, 0 for the right to mint and for a property.
    locktime: unix seconds before which nobody spends it; stakeable_locktime: before which it can only be staked,
    0 for none. created_on, held_on: they differ for exports, which wait in the memory of the chain that imports them.
    staked: it exists only when the staking is over. is_complete: False where it was reconstructed from the input that
    spends it: then addresses are those whose signatures could be recovered, threshold their number.
    """

    id: UtxoID
    tx_id: TxID
    output_index: int
    asset_id: AssetID
    amount: int
    addresses: tuple[Address, ...]
    threshold: int
    locktime: int
    stakeable_locktime: int
    created_on: ChainID
    held_on: ChainID
    kind: OutputKind = OutputKind.TRANSFER
    staked: bool = False
    reward: RewardKind | None = None
    group_id: int | None = None
    payload: bytes | None = None
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Consumed:
    """An output that a transaction spent. credential: position of the credential that allows it.

    reconstructed: the output as far as the input tells of it, where no source knew it; else None.
    """

    id: UtxoID
    created_on: ChainID
    asset_id: AssetID
    amount: int
    credential: int
    reconstructed: LedgerOutput | None = None


class KnownUtxo(Protocol):
    """What the ledger has to know of an output from before."""

    @property
    def asset_id(self) -> AssetID:
        """The asset."""

    @property
    def amount(self) -> int:
        """As in LedgerOutput."""


class UtxoSource(Protocol):
    """Where outputs of earlier blocks are found."""

    def find(self, utxo_id: UtxoID, held_on: ChainID) -> KnownUtxo | None:
        """Return the output that can be spent now on chain `held_on`; None for one that is not there (any more)."""


class UtxoChanges(Protocol):
    """What a transaction of any chain does to outputs."""

    @property
    def consumed(self) -> tuple[Consumed, ...]:
        """What it spends."""

    @property
    def emitted(self) -> tuple[LedgerOutput, ...]:
        """What it makes."""

    @property
    def released(self) -> tuple[LedgerOutput, ...]:
        """What was staked and can be spent from now on."""


class MemoryOutputs:
    """Unspent outputs in a dictionary: an OutputSource for tests and small networks, shared by the three chains."""

    def __init__(self) -> None:
        self.unspent: dict[UtxoID, LedgerOutput] = {}
        # Imported here before the chain that exported them was read that far.
        self._spent_before_made: set[UtxoID] = set()

    def find(self, utxo_id: UtxoID, held_on: ChainID) -> LedgerOutput | None:
        """Return the output, of that chain, that can be spent now."""
        found = self.unspent.get(utxo_id)
        return found if found is not None and found.held_on == held_on else None

    def follow(self, moves: Iterable[UtxoChanges]) -> None:
        """Take in what transactions do, in their order."""
        for tx in moves:
            for consumed in tx.consumed:
                if self.unspent.pop(consumed.id, None) is None:
                    self._spent_before_made.add(consumed.id)
            self.make(tx.emitted)
            self.make(tx.released)

    def make(self, outputs: Iterable[LedgerOutput]) -> None:
        """Take in outputs; one that is staked is left out until it is released."""
        for output in outputs:
            if output.id in self._spent_before_made:
                self._spent_before_made.remove(output.id)
            elif not output.staked:
                self.unspent[output.id] = output

    def of(self, address: Address, held_on: ChainID) -> list[LedgerOutput]:
        """Return what an address holds a part of, by id."""
        held = [out for out in self.unspent.values() if out.held_on == held_on and address in out.addresses]
        return sorted(held, key=lambda out: out.id)
