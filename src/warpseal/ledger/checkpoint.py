"""The P-Chain's state as bytes: blocks have the same effects on a decoded state.

Source of truth: this module. Form: a magic, a version, SHA-256 of the rest, then MessagePack. Equal
states give equal bytes. The parameters of the network are not part of it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from warpseal.chains.ids import BlockID, TxID
from warpseal.chains.p_txs import parse_p_tx
from warpseal.ledger.effects import L1Validator
from warpseal.ledger.p_state import (
    L1Validators,
    PChainState,
    Proposal,
    Renewal,
    Staker,
    StakerSet,
    SubnetState,
)
from warpseal.ledger.params import Parameters
from warpseal.warp.ids import ChainID, SubnetID

# At some 700 bytes a staker, more than any network needs.
MAX_CHECKPOINT_BYTES: Final = 2**30

_MAGIC: Final = b"warpseal-p-ledger"
_VERSION: Final = 1
_HEADER_BYTES: Final = len(_MAGIC) + 2 + 32


class UnusableCheckpoint(ValueError):
    """The bytes are no checkpoint of this version and this network, or they were changed."""


class _ProposalFields(Struct, frozen=True):
    raw: bytes
    height: int
    position: int


class _CheckpointFields(Struct, frozen=True):
    network_id: int
    time_s: int
    height: int
    block_id: bytes
    is_complete: bool
    l1_excess: int
    l1_accrued_fees: int
    supplies: tuple[tuple[bytes, int], ...]
    current: tuple[Staker, ...]
    waiting: tuple[Staker, ...]
    delegation_rewards: tuple[tuple[bytes, int], ...]
    renewals: tuple[tuple[bytes, Renewal], ...]
    subnets: tuple[SubnetState, ...]
    chains: tuple[tuple[bytes, bytes], ...]
    l1: tuple[L1Validator, ...]
    proposal: _ProposalFields | None


def encode_checkpoint(state: PChainState) -> bytes:
    """Return the state's bytes.

    Raises UnusableCheckpoint for an invalid state, and for one beyond all bounds.
    """
    if state.is_invalid:
        raise UnusableCheckpoint("a fault left the state invalid")
    body = msgspec.msgpack.encode(_to_fields(state))
    if len(body) > MAX_CHECKPOINT_BYTES:
        raise UnusableCheckpoint(f"{len(body)} bytes are more than {MAX_CHECKPOINT_BYTES}")
    return _MAGIC + _VERSION.to_bytes(2, "big") + sha256(body).digest() + body


def decode_checkpoint(raw: bytes, params: Parameters) -> PChainState:
    """Return the state that `encode_checkpoint` encoded.

    Raises UnusableCheckpoint for anything else.
    """
    if len(raw) > MAX_CHECKPOINT_BYTES + _HEADER_BYTES:
        raise UnusableCheckpoint(f"{len(raw)} bytes are more than {MAX_CHECKPOINT_BYTES}")
    header, body = raw[:_HEADER_BYTES], raw[_HEADER_BYTES:]
    if header[: len(_MAGIC)] != _MAGIC:
        raise UnusableCheckpoint("not a checkpoint")
    version = int.from_bytes(header[len(_MAGIC) : len(_MAGIC) + 2], "big")
    if version != _VERSION:
        raise UnusableCheckpoint(f"version {version}, not {_VERSION}")
    if header[-32:] != sha256(body).digest():
        raise UnusableCheckpoint("its bytes were changed")
    try:
        return _to_state(msgspec.msgpack.decode(body, type=_CheckpointFields), params)
    except (msgspec.MsgspecError, ValueError) as malformed:
        raise UnusableCheckpoint(str(malformed)) from None


def _to_fields(state: PChainState) -> _CheckpointFields:
    proposal = None
    if state.proposal is not None:
        tx, height = state.proposal.tx, state.proposal.height
        proposal = _ProposalFields(tx.raw, height, state.proposal.position)
    return _CheckpointFields(
        network_id=state.params.network_id,
        time_s=state.time_s,
        height=state.height,
        block_id=state.block_id,
        is_complete=state.is_complete,
        l1_excess=state.l1_excess,
        l1_accrued_fees=state.l1_accrued_fees,
        supplies=tuple(sorted(state.supplies.items())),
        current=tuple(state.current),
        waiting=tuple(state.waiting),
        delegation_rewards=tuple(sorted(state.delegation_rewards.items())),
        renewals=tuple((key, state.renewals[key]) for key in sorted(state.renewals)),
        subnets=tuple(state.subnets[key] for key in sorted(state.subnets)),
        chains=tuple(sorted(state.chains.items())),
        l1=tuple(state.l1),
        proposal=proposal,
    )


def _to_state(fields: _CheckpointFields, params: Parameters) -> PChainState:
    if fields.network_id != params.network_id:
        raise UnusableCheckpoint(f"of network {fields.network_id}, not {params.network_id}")
    proposal = None
    if fields.proposal is not None:
        tx, height = parse_p_tx(fields.proposal.raw), fields.proposal.height
        proposal = Proposal(tx, height, fields.proposal.position)
    return PChainState(
        params,
        fields.time_s,
        fields.height,
        BlockID(fields.block_id),
        {SubnetID(key): supply for key, supply in fields.supplies},
        StakerSet(fields.current),
        StakerSet(fields.waiting),
        {TxID(key): reward for key, reward in fields.delegation_rewards},
        {TxID(key): renewal for key, renewal in fields.renewals},
        {subnet.subnet_id: subnet for subnet in fields.subnets},
        {ChainID(key): SubnetID(subnet_id) for key, subnet_id in fields.chains},
        L1Validators(fields.l1),
        fields.l1_excess,
        fields.l1_accrued_fees,
        proposal,
        fields.is_complete,
    )
