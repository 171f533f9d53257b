"""Signed P-Chain transactions of every type.

Source of truth: avalanchego `vms/platformvm/txs/codec.go`, `vms/platformvm/txs/tx.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from warpseal.chains import p_helicon, p_l1, p_staking, p_subnets, p_transfers
from warpseal.chains.components import CREDENTIAL, CREDENTIAL_TYPE, Credential
from warpseal.chains.layout import Layout, OneOf
from warpseal.chains.p_types import P_TYPE_NAMES
from warpseal.chains.signed_tx import SignedTx, TxForm

PUnsignedTx: TypeAlias = (
    p_transfers.BaseTx
    | p_transfers.ImportTx
    | p_transfers.ExportTx
    | p_staking.AddValidatorTx
    | p_staking.AddDelegatorTx
    | p_staking.AddSubnetValidatorTx
    | p_staking.AddPermissionlessValidatorTx
    | p_staking.AddPermissionlessDelegatorTx
    | p_staking.RemoveSubnetValidatorTx
    | p_staking.AdvanceTimeTx
    | p_staking.RewardValidatorTx
    | p_subnets.CreateSubnetTx
    | p_subnets.CreateChainTx
    | p_subnets.TransformSubnetTx
    | p_subnets.TransferSubnetOwnershipTx
    | p_l1.ConvertSubnetToL1Tx
    | p_l1.RegisterL1ValidatorTx
    | p_l1.SetL1ValidatorWeightTx
    | p_l1.IncreaseL1ValidatorBalanceTx
    | p_l1.DisableL1ValidatorTx
    | p_helicon.AddAutoRenewedValidatorTx
    | p_helicon.SetAutoRenewedValidatorConfigTx
    | p_helicon.RewardAutoRenewedValidatorTx
)
PSignedTx: TypeAlias = SignedTx[PUnsignedTx, Credential]

_LAYOUTS: Final[Mapping[int, Layout[Any]]] = {
    12: p_staking.ADD_VALIDATOR_TX,
    13: p_staking.ADD_SUBNET_VALIDATOR_TX,
    14: p_staking.ADD_DELEGATOR_TX,
    15: p_subnets.CREATE_CHAIN_TX,
    16: p_subnets.CREATE_SUBNET_TX,
    17: p_transfers.IMPORT_TX,
    18: p_transfers.EXPORT_TX,
    19: p_staking.ADVANCE_TIME_TX,
    20: p_staking.REWARD_VALIDATOR_TX,
    23: p_staking.REMOVE_SUBNET_VALIDATOR_TX,
    24: p_subnets.TRANSFORM_SUBNET_TX,
    25: p_staking.ADD_PERMISSIONLESS_VALIDATOR_TX,
    26: p_staking.ADD_PERMISSIONLESS_DELEGATOR_TX,
    33: p_subnets.TRANSFER_SUBNET_OWNERSHIP_TX,
    34: p_transfers.BASE_TX,
    35: p_l1.CONVERT_SUBNET_TO_L1_TX,
    36: p_l1.REGISTER_L1_VALIDATOR_TX,
    37: p_l1.SET_L1_VALIDATOR_WEIGHT_TX,
    38: p_l1.INCREASE_L1_VALIDATOR_BALANCE_TX,
    39: p_l1.DISABLE_L1_VALIDATOR_TX,
    40: p_helicon.ADD_AUTO_RENEWED_VALIDATOR_TX,
    41: p_helicon.SET_AUTO_RENEWED_VALIDATOR_CONFIG_TX,
    42: p_helicon.REWARD_AUTO_RENEWED_VALIDATOR_TX,
}
_FIRST_HELICON_TYPE: Final = 40
_UNSIGNED: Final[OneOf[PUnsignedTx]] = OneOf("a transaction", _LAYOUTS, P_TYPE_NAMES)
_CREDENTIAL: Final[OneOf[Credential]] = OneOf("a credential", {CREDENTIAL_TYPE: CREDENTIAL}, P_TYPE_NAMES)

P_TX: Final[TxForm[PUnsignedTx, Credential]] = TxForm(_UNSIGNED, _CREDENTIAL)


def parse_p_tx(raw: bytes) -> PSignedTx:
    """Return the signed transaction whose bytes, codec version first, are exactly `raw`.

    Raises MalformedChainBytes; of it UnknownType where a type id is of no known type.
    """
    return P_TX.parse(raw)


def api_type(tx: PSignedTx) -> str:
    """Return the type as the public data API names it; `UNKNOWN` for the types that its clients do not know."""
    return "UNKNOWN" if tx.type_id >= _FIRST_HELICON_TYPE else tx.kind
