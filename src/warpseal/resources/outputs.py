"""Assets, amounts of them, and outputs.

`Asset` is a plain value; everything else is a resource. All are msgspec structs and not dataclasses
because pages of them are made by the hundred a second.
"""

from __future__ import annotations

from msgspec import Struct

from warpseal.chains.ids import AssetID
from warpseal.resources.base import (
    UNSET,
    CurrencyCode,
    PrimaryNetworkAssetType,
    Resource,
    RewardType,
    UnsetType,
)
from warpseal.resources.text import shared_id_text


class Asset(Struct, frozen=True, gc=False):
    """An asset.

    denomination: the number of decimal places.
    is_nft: the asset is counted in pieces.
    """

    asset_id: AssetID
    name: str
    symbol: str
    denomination: int
    is_nft: bool = False

    @property
    def type(self) -> PrimaryNetworkAssetType:
        """The kind of the asset."""
        return PrimaryNetworkAssetType.NFT if self.is_nft else PrimaryNetworkAssetType.SECP256K1


class AssetAmount(Resource, frozen=True, gc=False, kw_only=True):
    """An amount of an asset.

    amount: the decimal number of the asset's smallest units.
    """

    asset_id: str
    name: str
    symbol: str
    denomination: int
    type: PrimaryNetworkAssetType
    amount: str


class HistoricalPrice(Resource, frozen=True, gc=False, kw_only=True):
    """The price of one whole unit.

    value: a decimal text; a number for SDKs.
    """

    currency_code: CurrencyCode
    value: str | float


class RewardAsset(AssetAmount, frozen=True, gc=False, kw_only=True):
    """An amount of an asset and its price; historicalPrice is absent without a price."""

    historical_price: HistoricalPrice | UnsetType = UNSET


class UtxoCredential(Resource, frozen=True, gc=False, kw_only=True):
    """A signature, hex, and the compressed public key of its signer."""

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
    """An output of the X-Chain, or an atomic output of the C-Chain.

    It has the keys of the specification and those of the SDKs.
    """

    creation_tx_hash: str
    locktime: int
    timestamp: int
    consuming_tx_timestamp: int | UnsetType = UNSET
    credentials: tuple[UtxoCredential, ...] | UnsetType = UNSET
    group_id: int | UnsetType = UNSET
    payload: str | UnsetType = UNSET


def asset_amount(asset: Asset, amount: int) -> AssetAmount:
    """Return an amount as a resource."""
    return AssetAmount(
        asset_id=shared_id_text(asset.asset_id),
        name=asset.name,
        symbol=asset.symbol,
        denomination=asset.denomination,
        type=asset.type,
        amount=str(amount),
    )
