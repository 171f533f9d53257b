"""The common parts of all resources of the Data API, and their closed lists of values.

Resources are structs of responses: the index fills them, the Data API encodes them. Keys are in
camel case. A field that may be left out is `UNSET` by default, and then absent from the JSON: the
published SDKs take null for an error. Source of truth: the specification's conventions, and the
enumerations that the published SDKs agree on. An SDK refuses a whole page for one value that it
does not know.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeVar

from msgspec import UNSET as UNSET
from msgspec import Struct
from msgspec import UnsetType as UnsetType

from warpseal.chains.p_txs import RewardType as RewardType

T = TypeVar("T")


class Resource(Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """Base of every resource."""


class PrimaryNetworkTxType(StrEnum):
    """Types of transactions that can be asked for."""

    ADD_VALIDATOR = "AddValidatorTx"
    ADD_SUBNET_VALIDATOR = "AddSubnetValidatorTx"
    ADD_DELEGATOR = "AddDelegatorTx"
    CREATE_CHAIN = "CreateChainTx"
    CREATE_SUBNET = "CreateSubnetTx"
    IMPORT = "ImportTx"
    EXPORT = "ExportTx"
    ADVANCE_TIME = "AdvanceTimeTx"
    REWARD_VALIDATOR = "RewardValidatorTx"
    REMOVE_SUBNET_VALIDATOR = "RemoveSubnetValidatorTx"
    TRANSFORM_SUBNET = "TransformSubnetTx"
    ADD_PERMISSIONLESS_VALIDATOR = "AddPermissionlessValidatorTx"
    ADD_PERMISSIONLESS_DELEGATOR = "AddPermissionlessDelegatorTx"
    BASE = "BaseTx"
    TRANSFER_SUBNET_OWNERSHIP = "TransferSubnetOwnershipTx"
    CONVERT_SUBNET_TO_L1 = "ConvertSubnetToL1Tx"
    REGISTER_L1_VALIDATOR = "RegisterL1ValidatorTx"
    SET_L1_VALIDATOR_WEIGHT = "SetL1ValidatorWeightTx"
    DISABLE_L1_VALIDATOR = "DisableL1ValidatorTx"
    INCREASE_L1_VALIDATOR_BALANCE = "IncreaseL1ValidatorBalanceTx"
    UNKNOWN = "UNKNOWN"
    CREATE_ASSET = "CreateAssetTx"
    OPERATION = "OperationTx"


_X_ONLY: Final = (PrimaryNetworkTxType.CREATE_ASSET, PrimaryNetworkTxType.OPERATION)
_X: Final = ("BaseTx", "CreateAssetTx", "OperationTx", "ImportTx", "ExportTx", "UNKNOWN")

P_CHAIN_TX_TYPES: Final = frozenset(kind for kind in PrimaryNetworkTxType if kind not in _X_ONLY)
X_CHAIN_TX_TYPES: Final = frozenset(PrimaryNetworkTxType(kind) for kind in _X)
C_CHAIN_TX_TYPES: Final = frozenset((PrimaryNetworkTxType.EXPORT, PrimaryNetworkTxType.IMPORT))


def tx_type(
    kind: str, names: frozenset[PrimaryNetworkTxType] = P_CHAIN_TX_TYPES
) -> PrimaryNetworkTxType:
    """Return the type by its node's name; UNKNOWN for one that the list does not hold."""
    return PrimaryNetworkTxType(kind) if kind in names else PrimaryNetworkTxType.UNKNOWN


class PrimaryNetworkAssetType(StrEnum):
    """Kinds of assets."""

    SECP256K1 = "secp256k1"
    NFT = "nft"


class PrimaryNetworkAssetCap(StrEnum):
    """Whether more of an asset can be made."""

    FIXED = "fixed"
    VARIABLE = "variable"


class PrimaryNetworkChainName(StrEnum):
    """Aliases of the three primary chains."""

    P_CHAIN = "p-chain"
    X_CHAIN = "x-chain"
    C_CHAIN = "c-chain"


CurrencyCode = StrEnum("CurrencyCode", "USD EUR AUD CAD CHF CLP CNY CZK DKK GBP HKD HUF JPY NZD")
CurrencyCode.__doc__ = "Currencies of prices."


class SortOrder(StrEnum):
    """Oldest or newest first."""

    ASC = "asc"
    DESC = "desc"


class ValidationStatusType(StrEnum):
    """The status of a validation."""

    COMPLETED = "completed"
    ACTIVE = "active"
    PENDING = "pending"
    REMOVED = "removed"


def or_unset(value: T | None) -> T | UnsetType:
    """Return a value, or leave it out."""
    return UNSET if value is None else value
