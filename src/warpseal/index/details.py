"""The rare fields of a transaction, an output or a staking in one column: MessagePack with one-letter names.

Source of truth: this module. A field with its default value takes no bytes. Numbers are keys, amounts or unix seconds.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import field

from warpseal.resources.blocks import Proposer

# The number of a primary chain, or the id of another chain.
ChainRef = int | bytes


class TxDetail(msgspec.Struct, omit_defaults=True, gc=False):
    """The fields of a transaction that have no columns.

    inputs: keys of the outputs that it consumes, in its order; released: keys of the released ones. burned: by asset;
    l1_funded: asset and amount put into balances of L1 validators. source, destination: of imports and exports.
    manager: its chain and address. l1: L1 validators after it (key, weight, balance, change). owner: a subnet's
    (locktime, threshold, addresses). closes: the staking that it closes: its key, or its id if it is not indexed. bls:
    key and proof. signatures: each once; signers: the public key of each, empty if there is none; signed: for each
    input, the places of its signatures. accounts: EVM inputs or outputs (account, asset, amount, signatures).
    """

    inputs: tuple[int, ...] = field(name="i", default=())
    released: tuple[int, ...] = field(name="r", default=())
    burned: tuple[tuple[int, int], ...] = field(name="b", default=())
    l1_funded: tuple[int, int] | None = field(name="l", default=None)
    source: ChainRef | None = field(name="s", default=None)
    destination: ChainRef | None = field(name="d", default=None)
    memo: bytes = field(name="m", default=b"")
    node: int | None = field(name="n", default=None)
    subnet: int | None = field(name="u", default=None)
    manager: tuple[bytes, bytes] | None = field(name="g", default=None)
    l1: tuple[tuple[int, int, int, int], ...] = field(name="v", default=())
    owner: tuple[int, int, tuple[int, ...]] | None = field(name="o", default=None)
    closes: ChainRef | None = field(name="c", default=None)
    bls: bytes = field(name="k", default=b"")
    blockchain: int | None = field(name="h", default=None)
    asset: int | None = field(name="a", default=None)
    signatures: tuple[bytes, ...] = field(name="z", default=())
    signed: tuple[tuple[int, ...], ...] = field(name="y", default=())
    signers: tuple[bytes, ...] = field(name="w", default=())
    accounts: tuple[tuple[int, int, int, tuple[int, ...]], ...] = field(name="e", default=())
    is_approximate: bool = field(name="t", default=False)


class OutputDetail(msgspec.Struct, omit_defaults=True, gc=False):
    """The rare fields of an output. tx_id: ID of the transaction that made it, if that is not indexed."""

    locktime: int = field(name="l", default=0)
    stakeable_locktime: int = field(name="s", default=0)
    group_id: int | None = field(name="g", default=None)
    payload: bytes | None = field(name="p", default=None)
    tx_id: bytes | None = field(name="i", default=None)


class StakeDetail(msgspec.Struct, omit_defaults=True, gc=False):
    """Keys of the addresses that a staking's rewards go to: its own, and those for delegations. bls: key and proof."""

    own: tuple[int, ...] = field(name="v", default=())
    of_delegations: tuple[int, ...] = field(name="d", default=())
    bls: bytes = field(name="k", default=b"")


encode: Final = msgspec.msgpack.Encoder().encode
decode_tx: Final = msgspec.msgpack.Decoder(TxDetail).decode
decode_output: Final = msgspec.msgpack.Decoder(OutputDetail).decode
decode_stake: Final = msgspec.msgpack.Decoder(StakeDetail).decode
# Threshold and keys of the addresses.
decode_owners: Final = msgspec.msgpack.Decoder(tuple[int, tuple[int, ...]]).decode
_decode_proposer: Final = msgspec.msgpack.Decoder(Proposer).decode

BLS_KEY_BYTES: Final = 48


def encode_proposer(proposer: Proposer | None) -> bytes | None:
    """Return a proposer's bytes."""
    return None if proposer is None else encode(proposer)


def decode_proposer(raw: bytes | None) -> Proposer | None:
    """Return the proposer that `encode_proposer` wrote."""
    return None if raw is None else _decode_proposer(bytes(raw))
