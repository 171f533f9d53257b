"""The parts that only P-Chain transactions have: type ids, stakers, signers, owners, stakeable outputs.

Source of truth: avalanchego `vms/platformvm/{txs,signer,stakeable}`, `vms/platformvm/warp/message`; for the type ids
`vms/platformvm/txs/codec.go`, `vms/platformvm/block/codec.go`. Times are unix seconds, weights and amounts nAVAX
(or the smallest unit of an elastic subnet's asset).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from warpseal.chains.codec import ADDRESS, ID, SIZED, U32, U64, FixedBytes, Interface, ListOf, Struct
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
    base_fields_struct,
    transferable_input_struct,
    transferable_output_struct,
    utxo_struct,
)
from warpseal.warp.ids import NodeID, SubnetID
from warpseal.warp.l1_messages import PChainOwner

# 6 and 8 are not used.
P_TYPE_NAMES: Final[Mapping[int, str]] = {
    0: "ApricotProposalBlock",
    1: "ApricotAbortBlock",
    2: "ApricotCommitBlock",
    3: "ApricotStandardBlock",
    4: "ApricotAtomicBlock",
    5: "TransferInput",
    7: "TransferOutput",
    9: "Credential",
    10: "Input",
    11: "OutputOwners",
    12: "AddValidatorTx",
    13: "AddSubnetValidatorTx",
    14: "AddDelegatorTx",
    15: "CreateChainTx",
    16: "CreateSubnetTx",
    17: "ImportTx",
    18: "ExportTx",
    19: "AdvanceTimeTx",
    20: "RewardValidatorTx",
    21: "LockIn",
    22: "LockOut",
    23: "RemoveSubnetValidatorTx",
    24: "TransformSubnetTx",
    25: "AddPermissionlessValidatorTx",
    26: "AddPermissionlessDelegatorTx",
    27: "NoSigner",
    28: "ProofOfPossession",
    29: "BanffProposalBlock",
    30: "BanffAbortBlock",
    31: "BanffCommitBlock",
    32: "BanffStandardBlock",
    33: "TransferSubnetOwnershipTx",
    34: "BaseTx",
    35: "ConvertSubnetToL1Tx",
    36: "RegisterL1ValidatorTx",
    37: "SetL1ValidatorWeightTx",
    38: "IncreaseL1ValidatorBalanceTx",
    39: "DisableL1ValidatorTx",
    40: "AddAutoRenewedValidatorTx",
    41: "SetAutoRenewedValidatorConfigTx",
    42: "RewardAutoRenewedValidatorTx",
}


_INPUT_TYPE: Final = 10
_OWNERS_TYPE: Final = 11
_LOCK_IN_TYPE: Final = 21
_LOCK_OUT_TYPE: Final = 22
_NO_SIGNER_TYPE: Final = 27
_PROOF_TYPE: Final = 28


class RewardKind(StrEnum):
    """What a reward output pays, in the spelling of the public data API."""

    VALIDATOR = "VALIDATOR"
    DELEGATOR = "DELEGATOR"
    VALIDATOR_FEE = "VALIDATOR_FEE"


@dataclass(frozen=True, slots=True)
class StakingTerms:
    """A node, its weight and its staking period, which since Durango starts at the accepting block's time."""

    node_id: NodeID
    start_s: int
    end_s: int
    weight: int


@dataclass(frozen=True, slots=True)
class SubnetValidator:
    """A staker of a subnet; the Primary Network's id is all zeros."""

    validator: StakingTerms
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
    """A validator of a conversion. node_id: 20 bytes if valid; balance: nAVAX, 0 starts it inactive."""

    node_id: bytes
    weight: int
    balance: int
    signer: ProofOfPossession
    remaining_balance_owner: PChainOwner
    deactivation_owner: PChainOwner


Signer = NoSigner | ProofOfPossession


def _interface(what: str, members: dict[int, Struct[Any]]) -> Interface[Any]:
    return Interface(what, members, P_TYPE_NAMES)


# A lock never wraps a lock, so that no bytes can nest.
_UNLOCKED_OUTPUT: Final[Interface[TransferOutput]] = _interface(
    "a locked output", {TRANSFER_OUTPUT_TYPE: TRANSFER_OUTPUT}
)
_UNLOCKED_INPUT: Final[Interface[TransferInput]] = _interface("a locked input", {TRANSFER_INPUT_TYPE: TRANSFER_INPUT})
_LOCK_OUT: Final = Struct(LockOut, locktime=U64, output=_UNLOCKED_OUTPUT)
_LOCK_IN: Final = Struct(LockIn, locktime=U64, input=_UNLOCKED_INPUT)

OUTPUT: Final[Interface[Output]] = _interface(
    "an output", {TRANSFER_OUTPUT_TYPE: TRANSFER_OUTPUT, _LOCK_OUT_TYPE: _LOCK_OUT}
)
SPEND: Final[Interface[Spend]] = _interface("an input", {TRANSFER_INPUT_TYPE: TRANSFER_INPUT, _LOCK_IN_TYPE: _LOCK_IN})
OWNER: Final[Interface[OutputOwners]] = _interface("an owner", {_OWNERS_TYPE: OUTPUT_OWNERS})
AUTHORITY: Final[Interface[Input]] = _interface("an authorisation", {_INPUT_TYPE: INPUT})

_TRANSFERABLE_OUTPUT: Final = transferable_output_struct(OUTPUT)
_TRANSFERABLE_INPUT: Final = transferable_input_struct(SPEND)
OUTPUTS: Final = ListOf(_TRANSFERABLE_OUTPUT, "outputs")
INPUTS: Final = ListOf(_TRANSFERABLE_INPUT, "inputs")
BASE: Final = base_fields_struct(_TRANSFERABLE_OUTPUT, _TRANSFERABLE_INPUT)
UTXO: Final = utxo_struct(OUTPUT)

NODE_ID: Final = ADDRESS
VALIDATOR: Final = Struct(StakingTerms, node_id=NODE_ID, start_s=U64, end_s=U64, weight=U64)
SUBNET_VALIDATOR: Final = Struct(SubnetValidator, validator=VALIDATOR, subnet_id=ID)
PROOF: Final = FixedBytes(96)
PROOF_OF_POSSESSION: Final = Struct(ProofOfPossession, public_key=FixedBytes(48), proof=PROOF)
SIGNER: Final[Interface[Signer]] = _interface(
    "a signer", {_NO_SIGNER_TYPE: Struct(NoSigner), _PROOF_TYPE: PROOF_OF_POSSESSION}
)
P_CHAIN_OWNER: Final = Struct(PChainOwner, threshold=U32, addresses=ADDRESSES)
INITIAL_VALIDATOR: Final = Struct(
    InitialValidator,
    node_id=SIZED,
    weight=U64,
    balance=U64,
    signer=PROOF_OF_POSSESSION,
    remaining_balance_owner=P_CHAIN_OWNER,
    deactivation_owner=P_CHAIN_OWNER,
)
