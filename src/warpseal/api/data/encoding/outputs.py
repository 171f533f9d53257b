"""Amounts and outputs as resources."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from warpseal.api.data.encoding.text import NetworkText, hex_text, shared_id_text
from warpseal.api.data.schema.base import UNSET, UnsetType
from warpseal.api.data.schema.enums import PrimaryNetworkAssetType, RewardType
from warpseal.api.data.schema.outputs import AssetAmount, AvmUtxo, PrimaryNetworkUtxo, SdkUtxo, UtxoCredential
from warpseal.history.outputs import Amount, Asset, Signer, Utxo
from warpseal.warp.ids import id_text


@lru_cache(4_096)
def asset_type(asset: Asset) -> PrimaryNetworkAssetType:
    """Return the kind of an asset."""
    return PrimaryNetworkAssetType.NFT if asset.is_nft else PrimaryNetworkAssetType.SECP256K1


def encode_amount(asset: Asset, amount: int) -> AssetAmount:
    """Return so much of an asset."""
    return AssetAmount(
        asset_id=shared_id_text(asset.asset_id),
        name=asset.name,
        symbol=asset.symbol,
        denomination=asset.denomination,
        type=asset_type(asset),
        amount=str(amount),
    )


def encode_amounts(amounts: Iterable[Amount]) -> tuple[AssetAmount, ...]:
    """Return each amount."""
    return tuple([encode_amount(one.asset, one.amount) for one in amounts])


def sums(utxos: Iterable[Utxo]) -> tuple[Amount, ...]:
    """Return what outputs hold together, by asset, in the order in which the assets first come."""
    totals: dict[Asset, int] = {}
    for utxo in utxos:
        totals[utxo.asset] = totals.get(utxo.asset, 0) + utxo.amount
    return tuple([Amount(asset, total) for asset, total in totals.items()])


def encode_signers(signers: Iterable[Signer]) -> tuple[UtxoCredential, ...]:
    """Return who signed."""
    return tuple(
        [
            UtxoCredential(
                signature=hex_text(signer.signature),
                public_key=UNSET if signer.public_key is None else hex_text(signer.public_key),
            )
            for signer in signers
        ]
    )


def or_unset(value: int | None) -> int | UnsetType:
    """Return a number, or leave it out."""
    return UNSET if value is None else value


def text_or_unset(raw: bytes | None) -> str | UnsetType:
    """Return hex with 0x, or leave it out."""
    return UNSET if raw is None else hex_text(raw)


def p_utxo(utxo: Utxo, words: NetworkText) -> PrimaryNetworkUtxo:
    """Return an output of the P-Chain."""
    spent = utxo.spent
    amount = encode_amount(utxo.asset, utxo.amount)
    return PrimaryNetworkUtxo(
        addresses=words.addresses(utxo.addresses),
        asset=amount,
        consumed_on_chain_id=words.chain(utxo.consumed_on),
        created_on_chain_id=words.chain(utxo.created_on),
        utxo_id=id_text(utxo.utxo_id),
        amount=amount.amount,
        asset_id=amount.asset_id,
        block_number=str(utxo.height),
        block_timestamp=utxo.time,
        output_index=utxo.output_index,
        tx_hash=id_text(utxo.tx_id),
        utxo_type=utxo.kind,
        platform_locktime=utxo.locktime,
        threshold=utxo.threshold,
        consuming_tx_hash=UNSET if spent is None else id_text(spent.tx_id),
        consuming_block_number=UNSET if spent is None else str(spent.height),
        consuming_block_timestamp=UNSET if spent is None else spent.time,
        stakeable_locktime=utxo.stakeable_locktime or UNSET,
        reward_type=UNSET if utxo.reward is None else RewardType(utxo.reward.value),
        staked=utxo.staked or UNSET,
        utxo_start_timestamp=or_unset(utxo.stake_start),
        utxo_end_timestamp=or_unset(utxo.stake_end),
        utxo_bytes=text_or_unset(utxo.raw),
        incomplete=utxo.is_incomplete or UNSET,
    )


def avm_utxo(utxo: Utxo, words: NetworkText) -> AvmUtxo:
    """Return an output of the X-Chain, or an atomic one of the C-Chain."""
    spent = utxo.spent
    amount = encode_amount(utxo.asset, utxo.amount)
    tx_hash = id_text(utxo.tx_id)
    return AvmUtxo(
        addresses=words.addresses(utxo.addresses),
        asset=amount,
        consumed_on_chain_id=words.chain(utxo.consumed_on),
        created_on_chain_id=words.chain(utxo.created_on),
        utxo_id=id_text(utxo.utxo_id),
        amount=amount.amount,
        asset_id=amount.asset_id,
        block_number=str(utxo.height),
        block_timestamp=utxo.time,
        output_index=utxo.output_index,
        tx_hash=tx_hash,
        utxo_type=utxo.kind,
        platform_locktime=utxo.locktime,
        threshold=utxo.threshold,
        consuming_tx_hash=UNSET if spent is None else id_text(spent.tx_id),
        consuming_block_number=UNSET if spent is None else str(spent.height),
        consuming_block_timestamp=UNSET if spent is None else spent.time,
        utxo_bytes=text_or_unset(utxo.raw),
        incomplete=utxo.is_incomplete or UNSET,
        creation_tx_hash=tx_hash,
        locktime=utxo.locktime,
        timestamp=utxo.time,
        consuming_tx_timestamp=UNSET if spent is None else spent.time,
        credentials=encode_signers(spent.signers) if spent is not None and spent.signers else UNSET,
        group_id=or_unset(utxo.group_id),
        payload=text_or_unset(utxo.payload),
    )


def sdk_utxo(utxo: Utxo, words: NetworkText) -> SdkUtxo:
    """Return an output of the X- or C-Chain exactly as the published SDKs read it."""
    spent = utxo.spent
    return SdkUtxo(
        addresses=words.addresses(utxo.addresses),
        asset=encode_amount(utxo.asset, utxo.amount),
        consumed_on_chain_id=words.chain(utxo.consumed_on),
        created_on_chain_id=words.chain(utxo.created_on),
        utxo_id=id_text(utxo.utxo_id),
        creation_tx_hash=id_text(utxo.tx_id),
        locktime=utxo.locktime,
        output_index=str(utxo.output_index),
        threshold=utxo.threshold,
        timestamp=utxo.time,
        utxo_type=utxo.kind,
        consuming_tx_hash=UNSET if spent is None else id_text(spent.tx_id),
        consuming_tx_timestamp=UNSET if spent is None else spent.time,
        utxo_bytes=text_or_unset(utxo.raw),
        credentials=encode_signers(spent.signers) if spent is not None and spent.signers else UNSET,
        group_id=or_unset(utxo.group_id),
        payload=text_or_unset(utxo.payload),
    )
