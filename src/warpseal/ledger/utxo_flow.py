"""Spends and makes outputs for transactions of all chains, and recovers their signers.

Source of truth: avalanchego `vms/components/avax`, `vms/platformvm/utxo/verifier.go`; for
signatures SEC 1 4.1.6, avalanchego `utils/crypto/secp256k1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from warpseal.chains.components import (
    LockIn,
    LockOut,
    SignedTx,
    TransferableInput,
    TransferableOutput,
)
from warpseal.chains.ids import Address, AssetID, TxID, UtxoID, utxo_id
from warpseal.ledger.effects import AssetSums
from warpseal.ledger.outputs import Consumed, KnownUtxo, LedgerError, LedgerOutput, UtxoSource
from warpseal.runtime.lazy import secp256k1_recovery
from warpseal.warp.ids import ChainID, hash160

_SIGNATURE_BYTES: Final = 65


class UtxoFlow:
    """The outputs that the transactions of one block spend and make.

    source: earlier outputs; None if the inputs were checked before.
    is_complete: an unknown output of this chain is an error. Outputs of other chains may be
        unknown, since each chain is indexed at its own pace.
    """

    __slots__ = ("chain_id", "height", "is_complete", "new_outputs", "source", "spent")

    def __init__(
        self, chain_id: ChainID, height: int, source: UtxoSource | None, is_complete: bool
    ) -> None:
        self.chain_id = chain_id
        self.height = height
        self.source = source
        self.is_complete = is_complete
        self.new_outputs: dict[UtxoID, LedgerOutput] = {}
        self.spent: set[UtxoID] = set()

    def consume(
        self,
        tx: SignedTx[Any, Any],
        inputs: Sequence[TransferableInput],
        created_on: ChainID,
        first_credential: int,
    ) -> tuple[Consumed, ...]:
        """Spend `inputs` of `tx`, whose credentials begin at `first_credential`.

        Raises LedgerError.
        """
        consumed: list[Consumed] = []
        digest = b""
        for credential, spending in enumerate(inputs, first_credential):
            key = utxo_id(spending.tx_id, spending.output_index)
            amount = spending.input.amount
            reconstructed = None
            # The input of an unknown output has the amount, and its signatures give the addresses.
            # A recovery takes 40 microseconds, so known outputs are not recovered.
            if self.spend(tx, key, spending.asset_id, amount, created_on):
                digest = digest or hash_unsigned_tx(tx.encode_unsigned())
                addresses = recover_signers(digest, signatures_of(tx, credential))
                stakeable_locktime = 0
                if isinstance(spending.input, LockIn):
                    stakeable_locktime = spending.input.locktime
                reconstructed = LedgerOutput(
                    id=key,
                    tx_id=spending.tx_id,
                    output_index=spending.output_index,
                    asset_id=spending.asset_id,
                    amount=amount,
                    addresses=addresses,
                    threshold=len(spending.input.signature_indices),
                    locktime=0,
                    stakeable_locktime=stakeable_locktime,
                    created_on=created_on,
                    held_on=self.chain_id,
                    is_complete=False,
                )
            consumed.append(
                Consumed(key, created_on, spending.asset_id, amount, credential, reconstructed)
            )
        return tuple(consumed)

    def spend(
        self,
        tx: SignedTx[Any, Any],
        key: UtxoID,
        asset_id: AssetID,
        amount: int,
        created_on: ChainID,
    ) -> bool:
        """Spend an output; return whether it is unknown, so that only its input describes it.

        Raises LedgerError.
        """
        if key in self.spent:
            raise self.error(tx, f"input {key.hex()} is spent already")
        self.spent.add(key)
        earlier: KnownUtxo | None = self.new_outputs.get(key)
        if earlier is None:
            if self.source is None:
                return False
            earlier = self.source.find(key, self.chain_id)
            if earlier is None:
                if self.is_complete and created_on == self.chain_id:
                    raise self.error(tx, f"input {key.hex()} is not there")
                return True
        if earlier.amount != amount or earlier.asset_id != asset_id:
            raise self.error(tx, f"input {key.hex()} differs from the output")
        return False

    def burned(
        self,
        tx: SignedTx[Any, Any],
        inputs: Iterable[KnownUtxo],
        outputs: Iterable[KnownUtxo],
        deposits: AssetSums = (),
    ) -> AssetSums:
        """Return inputs less outputs and deposits, by asset.

        Raises LedgerError if the inputs do not pay them.
        """
        sums: dict[AssetID, int] = {}
        for part in inputs:
            asset_id = part.asset_id
            sums[asset_id] = sums.get(asset_id, 0) + part.amount
        for part in outputs:
            asset_id = part.asset_id
            sums[asset_id] = sums.get(asset_id, 0) - part.amount
        for asset_id, amount in deposits:
            sums[asset_id] = sums.get(asset_id, 0) - amount
        if sums and min(sums.values()) < 0:
            raise self.error(tx, "the outputs are more than the inputs")
        return tuple(sorted((asset_id, amount) for asset_id, amount in sums.items() if amount))

    def emit(self, outputs: Iterable[LedgerOutput]) -> None:
        """Make outputs spendable for later transactions of the block."""
        for output in outputs:
            if output.held_on == self.chain_id and not output.staked:
                self.new_outputs[output.id] = output

    def error(self, tx: SignedTx[Any, Any] | None, reason: str) -> LedgerError:
        """Return the error about a transaction, or about the block."""
        return LedgerError(self.height, None if tx is None else tx.id, reason)


def spent_ids(unsigned: Any) -> Iterator[UtxoID]:
    """Yield the ids of the outputs that a transaction of any chain spends."""
    base = getattr(unsigned, "base", None)
    for spent in (
        *(() if base is None else base.inputs),
        *getattr(unsigned, "imported_inputs", ()),
    ):
        yield spent.utxo_id
    for operation in getattr(unsigned, "operations", ()):
        for reference in operation.consumed:
            yield reference.utxo_id


def build_transfer_output(
    tx_id: TxID, index: int, transferable: TransferableOutput, created_on: ChainID, held_on: ChainID
) -> LedgerOutput:
    """Return output `index` of a transaction."""
    output, stakeable = transferable.output, 0
    if isinstance(output, LockOut):
        output, stakeable = output.output, output.locktime
    return LedgerOutput(
        utxo_id(tx_id, index),
        tx_id,
        index,
        transferable.asset_id,
        output.amount,
        output.addresses,
        output.threshold,
        output.locktime,
        stakeable,
        created_on,
        held_on,
    )


def signatures_of(tx: SignedTx[Any, Any], credential: int) -> tuple[bytes, ...]:
    """Return the signatures of a credential; none if the transaction lacks it."""
    if credential >= len(tx.credentials):
        return ()
    signatures: tuple[bytes, ...] = tx.credentials[credential].signatures
    return signatures


@lru_cache(maxsize=1024)
def recover_public_key(digest: bytes, signature: bytes) -> bytes | None:
    """Return the 33-byte compressed key that signed the 32-byte `digest`; None if no key did.

    signature: r, s, then the recovery id, 65 bytes. Cached, since inputs of one owner repeat a
        signature; recovery takes some forty microseconds.
    """
    if len(signature) != _SIGNATURE_BYTES:
        return None
    try:
        return secp256k1_recovery.recover(digest, signature[:-1], signature[-1])
    except ValueError:
        return None


def address_from_public_key(public_key: bytes) -> Address:
    """Return the address (20 bytes) of a compressed key."""
    return Address(hash160(public_key))


def hash_unsigned_tx(unsigned: bytes) -> bytes:
    """Return the signed digest of a transaction: SHA-256 of its bytes without credentials."""
    return sha256(unsigned).digest()


def recover_signers(digest: bytes, signatures: tuple[bytes, ...]) -> tuple[Address, ...]:
    """Return the addresses that signed, each once, in order; malformed signatures are skipped."""
    keys = (recover_public_key(digest, signature) for signature in signatures)
    return tuple(dict.fromkeys(address_from_public_key(key) for key in keys if key is not None))
