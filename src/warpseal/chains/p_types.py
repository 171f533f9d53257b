"""The type ids of the P-Chain's codec.

Source of truth: avalanchego `vms/platformvm/txs/codec.go`, `vms/platformvm/block/codec.go`. 6 and 8 are holes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
