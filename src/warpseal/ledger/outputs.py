"""Outputs of the ledger, the source of earlier ones, and the error for a contradicting block.

Source of truth: avalanchego `vms/components/avax`, `vms/platformvm/utxo`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from warpseal.chains.ids import Address, AssetID, TxID, UtxoID
from warpseal.chains.p_txs import RewardType
from warpseal.warp.ids import ChainID


class LedgerError(ValueError):
    """A block breaks the rules in this state: it, or a block before, is not of the chain.

    The state is invalid afterwards: go back to a checkpoint.
    height: height of the block.
    tx_id: ID of the transaction, None for the block itself.
    """

    def __init__(self, height: int, tx_id: TxID | None, reason: str) -> None:
        where = f"block {height}" if tx_id is None else f"block {height}, transaction {tx_id.hex()}"
        super().__init__(f"{where}: {reason}")
        self.height = height
        self.tx_id = tx_id
        self.reason = reason


class OutputKind(StrEnum):
    """The kind of an output: an amount, or a right, an NFT or a property of the X-Chain."""

    TRANSFER = "transfer"
    MINT = "mint"
    NFT_MINT = "nft-mint"
    NFT = "nft"
    PROPERTY_MINT = "property-mint"
    PROPERTY = "property"


class LedgerOutput(Struct, frozen=True):
    """An output.

    id: ID that follows from tx_id and output_index; rewards and returned stake have those of the
        staking.
    amount: number of the asset's smallest units; 1 for an NFT, 0 for the right to mint and for a
        property.
    locktime: the Unix second from which the output is spendable.
    stakeable_locktime: the Unix second until which the output can only be staked; 0 without one.
    created_on, held_on: the chains of the output, which differ for exports.
    staked: True before the staking is over; the output is not spendable until then.
    is_complete: False if the output was reconstructed from the input that spends it. Its addresses
        are then the recovered signers, and its threshold is their number.
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
    reward: RewardType | None = None
    group_id: int | None = None
    payload: bytes | None = None
    is_complete: bool = True


class Consumed(Struct, frozen=True):
    """An output that a transaction spent.

    credential: position of the credential that allows it.

    reconstructed: the output as far as the input describes it, if no source knows it; else None.
    """

    id: UtxoID
    created_on: ChainID
    asset_id: AssetID
    amount: int
    credential: int
    reconstructed: LedgerOutput | None = None


class KnownUtxo(Protocol):
    """The facts that the ledger needs about an earlier output."""

    @property
    def asset_id(self) -> AssetID:
        """The asset."""

    @property
    def amount(self) -> int:
        """As in LedgerOutput."""


class UtxoSource(Protocol):
    """The unspent outputs of earlier blocks."""

    def find(self, utxo_id: UtxoID, held_on: ChainID) -> KnownUtxo | None:
        """Return the output that is spendable on chain `held_on`; None without one."""


class UtxoChanges(Protocol):
    """The changes of outputs by a transaction of any chain."""

    @property
    def consumed(self) -> tuple[Consumed, ...]:
        """The outputs that it spends."""

    @property
    def emitted(self) -> tuple[LedgerOutput, ...]:
        """The outputs that it makes."""

    @property
    def released(self) -> tuple[LedgerOutput, ...]:
        """The outputs that were staked and are spendable from now on."""
