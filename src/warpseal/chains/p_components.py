"""What only P-Chain transactions are made of: stakers, signers, owners, stakeable outputs.

Source of truth: avalanchego `vms/platformvm/{txs,signer,stakeable}`, `vms/platformvm/warp/message`. Times are unix
seconds, weights and amounts nAVAX (or the smallest unit of an elastic subnet's asset).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from warpseal.chains.codec import ADDRESS, ID, SIZED, U32, U64, FixedBytes, ListOf
from warpseal.chains.components import (
    ADDRESSES,
    INPUT,
    OUTPUT_OWNERS,
    TRANSFER_INPUT,
    TRANSFER_INPUT_TYPE,
    TRANSFER_OUTPUT,
    TRANSFER_OUTPUT_TYPE,
    Input,
    LockIn,
    LockOut,
    Output,
    OutputOwners,
    Spend,
    TransferInput,
    TransferOutput,
    Utxo,
    base_fields,
    transferable_input,
    transferable_output,
    unspent_output,
)
from warpseal.chains.cursor import Cursor
from warpseal.chains.layout import Layout, OneOf
from warpseal.chains.p_types import P_TYPE_NAMES
from warpseal.warp.ids import NodeID, SubnetID
from warpseal.warp.l1_messages import PChainOwner

_INPUT_TYPE: Final = 10
_OWNERS_TYPE: Final = 11
_LOCK_IN_TYPE: Final = 21
_LOCK_OUT_TYPE: Final = 22
_NO_SIGNER_TYPE: Final = 27
_PROOF_TYPE: Final = 28


@dataclass(frozen=True, slots=True)
class Validator:
    """Who stakes how much, from `start_s` (from Durango on: from the accepting block's time) to `end_s`."""

    node_id: NodeID
    start_s: int
    end_s: int
    weight: int


@dataclass(frozen=True, slots=True)
class SubnetValidator:
    """A staker of a subnet; the Primary Network's id is all zeros."""

    validator: Validator
    subnet_id: SubnetID


@dataclass(frozen=True, slots=True)
class NoSigner:
    """A staker without a BLS key."""


@dataclass(frozen=True, slots=True)
class ProofOfPossession:
    """A BLS key (48 bytes, compressed) and the proof (96 bytes) that the staker has its secret."""

    public_key: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class InitialValidator:
    """A validator of a conversion. node_id: 20 bytes where valid; balance: nAVAX, 0 starts it inactive."""

    node_id: bytes
    weight: int
    balance: int
    signer: ProofOfPossession
    remaining_balance_owner: PChainOwner
    deactivation_owner: PChainOwner


Signer = NoSigner | ProofOfPossession


def _one_of(what: str, members: dict[int, Layout[Any]]) -> OneOf[Any]:
    return OneOf(what, members, P_TYPE_NAMES)


# What a lock wraps is no lock again, so that no bytes can nest.
_UNLOCKED_OUTPUT: Final[OneOf[TransferOutput]] = _one_of("a locked output", {TRANSFER_OUTPUT_TYPE: TRANSFER_OUTPUT})
_UNLOCKED_INPUT: Final[OneOf[TransferInput]] = _one_of("a locked input", {TRANSFER_INPUT_TYPE: TRANSFER_INPUT})
_LOCK_OUT: Final = Layout(LockOut, locktime=U64, output=_UNLOCKED_OUTPUT)
_LOCK_IN: Final = Layout(LockIn, locktime=U64, input=_UNLOCKED_INPUT)

OUTPUT: Final[OneOf[Output]] = _one_of("an output", {TRANSFER_OUTPUT_TYPE: TRANSFER_OUTPUT, _LOCK_OUT_TYPE: _LOCK_OUT})
SPEND: Final[OneOf[Spend]] = _one_of("an input", {TRANSFER_INPUT_TYPE: TRANSFER_INPUT, _LOCK_IN_TYPE: _LOCK_IN})
OWNER: Final[OneOf[OutputOwners]] = _one_of("an owner", {_OWNERS_TYPE: OUTPUT_OWNERS})
AUTHORITY: Final[OneOf[Input]] = _one_of("an authorisation", {_INPUT_TYPE: INPUT})

_TRANSFERABLE_OUTPUT: Final = transferable_output(OUTPUT)
_TRANSFERABLE_INPUT: Final = transferable_input(SPEND)
OUTPUTS: Final = ListOf(_TRANSFERABLE_OUTPUT, "outputs")
INPUTS: Final = ListOf(_TRANSFERABLE_INPUT, "inputs")
BASE: Final = base_fields(_TRANSFERABLE_OUTPUT, _TRANSFERABLE_INPUT)
UTXO: Final = unspent_output(OUTPUT)

NODE_ID: Final = ADDRESS
VALIDATOR: Final = Layout(Validator, node_id=NODE_ID, start_s=U64, end_s=U64, weight=U64)
SUBNET_VALIDATOR: Final = Layout(SubnetValidator, validator=VALIDATOR, subnet_id=ID)
PROOF: Final = FixedBytes(96)
PROOF_OF_POSSESSION: Final = Layout(ProofOfPossession, public_key=FixedBytes(48), proof=PROOF)
SIGNER: Final[OneOf[Signer]] = _one_of(
    "a signer", {_NO_SIGNER_TYPE: Layout(NoSigner), _PROOF_TYPE: PROOF_OF_POSSESSION}
)
P_CHAIN_OWNER: Final = Layout(PChainOwner, threshold=U32, addresses=ADDRESSES)
INITIAL_VALIDATOR: Final = Layout(
    InitialValidator,
    node_id=SIZED,
    weight=U64,
    balance=U64,
    signer=PROOF_OF_POSSESSION,
    remaining_balance_owner=P_CHAIN_OWNER,
    deactivation_owner=P_CHAIN_OWNER,
)


def parse_p_utxo(raw: bytes) -> Utxo[Output]:
    """Return the unspent output whose bytes, codec version first, are exactly `raw`. Raises MalformedChainBytes."""
    cursor = Cursor(raw)
    cursor.version()
    utxo = UTXO.read(cursor)
    cursor.finish()
    return utxo
