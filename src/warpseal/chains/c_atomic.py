"""The C-Chain's atomic transactions.

They move amounts between accounts of the C-Chain and outputs of the X- and P-Chain. Source of
truth: avalanchego `graft/coreth/plugin/evm/atomic`. A block holds them in `blockExtraData`. Amounts
are in the X-Chain's units of the asset (nAVAX).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from warpseal.chains.codec import ListOf, MalformedChainBytes, TypeRegistry, Uint32, Uint64
from warpseal.chains.components import (
    Credential,
    Input,
    OutputOwners,
    SignedTx,
    TransferableInput,
    TransferableOutput,
    TransferInput,
    TransferOutput,
    TxCodec,
)
from warpseal.chains.ids import Address, AssetID
from warpseal.warp.codec import VERSION
from warpseal.warp.ids import ChainID


class AtomicEvmOutput(Struct, frozen=True):
    """An amount that an account receives.

    address: the 20 bytes of the account.
    """

    address: Address
    amount: Uint64
    asset_id: AssetID


class AtomicEvmInput(Struct, frozen=True):
    """An amount that an account sends.

    address: the 20 bytes of the account.
    nonce: the account's transaction counter.
    """

    address: Address
    amount: Uint64
    asset_id: AssetID
    nonce: Uint64


@dataclass(frozen=True, slots=True)
class ImportTx:
    """Moves outputs exported on `source_chain_id` to accounts.

    blockchain_id: ID of the C-Chain.
    """

    network_id: Uint32
    blockchain_id: ChainID
    source_chain_id: ChainID
    imported_inputs: tuple[TransferableInput, ...]
    outputs: tuple[AtomicEvmOutput, ...]


@dataclass(frozen=True, slots=True)
class ExportTx:
    """Moves amounts of accounts to `destination_chain_id`, to be imported there.

    blockchain_id: ID of the C-Chain.
    """

    network_id: Uint32
    blockchain_id: ChainID
    destination_chain_id: ChainID
    inputs: tuple[AtomicEvmInput, ...]
    exported_outputs: tuple[TransferableOutput, ...]


CUnsignedTx = ImportTx | ExportTx
AtomicTx = SignedTx[CUnsignedTx, Credential]

C_TYPES: Final = TypeRegistry(
    {
        0: ImportTx,
        1: ExportTx,
        5: TransferInput,
        7: TransferOutput,
        9: Credential,
        10: Input,
        11: OutputOwners,
    }
)
C_TX: Final[TxCodec[CUnsignedTx, Credential]] = TxCodec(
    C_TYPES.interface("an atomic transaction", CUnsignedTx),
    C_TYPES.interface("a credential", Credential),
)
parse_atomic_tx = C_TX.parse
_BATCH: Final = ListOf(C_TX, "atomic transactions")


def parse_atomic_txs(extra_data: bytes, *, batch: bool) -> tuple[AtomicTx, ...]:
    """Return the transactions of a block from its `blockExtraData`; none if that is empty.

    batch: the block is of Apricot 5 or later and may hold several transactions. Before, the data
        are the bytes of exactly one.
    Raises MalformedChainBytes, also for an empty batch: a block without transactions has no extra
    data.
    """
    if not extra_data:
        return ()
    if not batch:
        return (parse_atomic_tx(extra_data),)
    txs = _BATCH.parse(extra_data)
    if not txs:
        raise MalformedChainBytes(len(VERSION), "extra data without an atomic transaction")
    return txs


def encode_atomic_txs(txs: tuple[AtomicTx, ...]) -> bytes:
    """Return the `blockExtraData` of a block since Apricot 5 that holds `txs`."""
    if not txs:
        return b""
    out = bytearray(VERSION)
    _BATCH.write(txs, out)
    return bytes(out)
