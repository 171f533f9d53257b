"""The rare fields of a transaction, an output or a staking in one column: MessagePack with one-letter names.

Source of truth: this module. A field with its default value takes no bytes. Numbers are keys, amounts or unix seconds.
"""

from __future__ import annotations

from typing import Final

import msgspec

from warpseal.history.blocks import Proposer
from warpseal.warp.ids import NodeID

# The number of a primary chain, or the id of another chain.
ChainRef = int | bytes


_TX_NAMES: Final = {
    "inputs": "i",
    "released": "r",
    "burned": "b",
    "l1_funded": "l",
    "source": "s",
    "destination": "d",
    "memo": "m",
    "node": "n",
    "subnet": "u",
    "manager": "g",
    "l1": "v",
    "owner": "o",
    "closes": "c",
    "bls": "k",
    "blockchain": "h",
    "asset": "a",
    "signatures": "z",
    "signed": "y",
    "signers": "w",
    "accounts": "e",
    "vertices": "x",
    "is_approximate": "t",
}


class TxDetail(msgspec.Struct, omit_defaults=True, gc=False, rename=_TX_NAMES):
    """The fields of a transaction beside its columns.

    inputs: keys of the outputs that it consumes, in its order; released: keys of the released ones. burned: by asset;
    l1_funded: asset and amount put into balances of L1 validators. source, destination: of imports and exports.
    manager: its chain and address. l1: L1 validators after it (key, weight, balance, change). owner: a subnet's
    (locktime, threshold, addresses). closes: the staking that it closes: its key, or its id if it is not indexed. bls:
    key and proof. signatures: each once; signers: the public key of each, empty if there is none; signed: for each
    input, the places of its signatures. accounts: EVM inputs or outputs (account, asset, amount, signatures).
    vertices: id, height, time.
    """

    inputs: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    burned: tuple[tuple[int, int], ...] = ()
    l1_funded: tuple[int, int] | None = None
    source: ChainRef | None = None
    destination: ChainRef | None = None
    memo: bytes = b""
    node: int | None = None
    subnet: int | None = None
    manager: tuple[bytes, bytes] | None = None
    l1: tuple[tuple[int, int, int, int], ...] = ()
    owner: tuple[int, int, tuple[int, ...]] | None = None
    closes: ChainRef | None = None
    bls: bytes = b""
    blockchain: int | None = None
    asset: int | None = None
    signatures: tuple[bytes, ...] = ()
    signed: tuple[tuple[int, ...], ...] = ()
    signers: tuple[bytes, ...] = ()
    accounts: tuple[tuple[int, int, int, tuple[int, ...]], ...] = ()
    vertices: tuple[tuple[bytes, int, int], ...] = ()
    is_approximate: bool = False


_OUTPUT_NAMES: Final = {"locktime": "l", "stakeable_locktime": "s", "group_id": "g", "payload": "p", "tx_id": "i"}


class OutputDetail(msgspec.Struct, omit_defaults=True, gc=False, rename=_OUTPUT_NAMES):
    """The rare fields of an output. tx_id: of the transaction that made it, if that is not indexed."""

    locktime: int = 0
    stakeable_locktime: int = 0
    group_id: int | None = None
    payload: bytes | None = None
    tx_id: bytes | None = None


class StakeDetail(msgspec.Struct, omit_defaults=True, gc=False, rename={"own": "v", "of_delegations": "d", "bls": "k"}):
    """Keys of the addresses that a staking's rewards go to: its own, and those for delegations. bls: key and proof."""

    own: tuple[int, ...] = ()
    of_delegations: tuple[int, ...] = ()
    bls: bytes = b""


Owners = tuple[int, tuple[int, ...]]
"""Threshold and keys of the addresses."""

encode: Final = msgspec.msgpack.Encoder().encode
decode_tx: Final = msgspec.msgpack.Decoder(TxDetail).decode
decode_output: Final = msgspec.msgpack.Decoder(OutputDetail).decode
decode_stake: Final = msgspec.msgpack.Decoder(StakeDetail).decode
decode_owners: Final = msgspec.msgpack.Decoder(Owners).decode
_decode_proposer: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes, NodeID | None, int | None, int | None]).decode

BLS_KEY_BYTES: Final = 48


def encode_proposer(proposer: Proposer | None) -> bytes | None:
    """Return a proposer's bytes."""
    if proposer is None:
        return None
    named = (proposer.block_id, proposer.parent_id, proposer.node_id)
    return encode((*named, proposer.p_chain_height, proposer.time))


def decode_proposer(raw: bytes | None) -> Proposer | None:
    """Return the proposer that `encode_proposer` wrote."""
    return None if raw is None else Proposer(*_decode_proposer(bytes(raw)))
