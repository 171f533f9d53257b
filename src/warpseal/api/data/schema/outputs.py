"""Amounts of assets, and outputs: in the specification's words with the SDKs' keys, and in the SDKs' alone."""

from __future__ import annotations

from warpseal.api.data.schema.base import UNSET, Resource, UnsetType
from warpseal.api.data.schema.enums import CurrencyCode, PrimaryNetworkAssetType, RewardType


class AssetAmount(Resource, frozen=True, gc=False, kw_only=True):
    """So much of an asset. amount: in its smallest unit, decimal."""

    asset_id: str
    name: str
    symbol: str
    denomination: int
    type: PrimaryNetworkAssetType
    amount: str


class HistoricalPrice(Resource, frozen=True, gc=False, kw_only=True):
    """What one whole unit was worth. value: decimal text; a number for SDKs."""

    currency_code: CurrencyCode
    value: str | float


class RewardAsset(Resource, frozen=True, gc=False, kw_only=True):
    """So much of an asset, and what it was worth; historicalPrice is absent without a price."""

    asset_id: str
    name: str
    symbol: str
    denomination: int
    type: PrimaryNetworkAssetType
    amount: str
    historical_price: HistoricalPrice | UnsetType = UNSET


class UtxoCredential(Resource, frozen=True, gc=False, kw_only=True):
    """One signature, hex, and the compressed public key that it is of."""

    signature: str | UnsetType = UNSET
    public_key: str | UnsetType = UNSET


class PrimaryNetworkUtxo(Resource, frozen=True, gc=False, kw_only=True):
    """An output of the P-Chain."""

    addresses: tuple[str, ...]
    asset: AssetAmount
    consumed_on_chain_id: str
    created_on_chain_id: str
    utxo_id: str
    amount: str
    asset_id: str
    block_number: str
    block_timestamp: int
    output_index: int
    tx_hash: str
    utxo_type: str
    platform_locktime: int
    threshold: int
    consuming_tx_hash: str | UnsetType = UNSET
    consuming_block_number: str | UnsetType = UNSET
    consuming_block_timestamp: int | UnsetType = UNSET
    stakeable_locktime: int | UnsetType = UNSET
    reward_type: RewardType | UnsetType = UNSET
    staked: bool | UnsetType = UNSET
    utxo_start_timestamp: int | UnsetType = UNSET
    utxo_end_timestamp: int | UnsetType = UNSET
    utxo_bytes: str | UnsetType = UNSET
    incomplete: bool | UnsetType = UNSET


class AvmUtxo(PrimaryNetworkUtxo, frozen=True, gc=False, kw_only=True):
    """An output of the X-Chain, or an atomic one of the C-Chain; the SDKs' keys stand beside the specification's."""

    creation_tx_hash: str
    locktime: int
    timestamp: int
    consuming_tx_timestamp: int | UnsetType = UNSET
    credentials: tuple[UtxoCredential, ...] | UnsetType = UNSET
    group_id: int | UnsetType = UNSET
    payload: str | UnsetType = UNSET


class SdkUtxo(Resource, frozen=True, gc=False, kw_only=True):
    """An output of the X- or C-Chain exactly as the published SDKs read it: its index is a text."""

    addresses: tuple[str, ...]
    asset: AssetAmount
    consumed_on_chain_id: str
    created_on_chain_id: str
    utxo_id: str
    creation_tx_hash: str
    locktime: int
    output_index: str
    threshold: int
    timestamp: int
    utxo_type: str
    consuming_tx_hash: str | UnsetType = UNSET
    consuming_tx_timestamp: int | UnsetType = UNSET
    utxo_bytes: str | UnsetType = UNSET
    credentials: tuple[UtxoCredential, ...] | UnsetType = UNSET
    group_id: int | UnsetType = UNSET
    payload: str | UnsetType = UNSET
