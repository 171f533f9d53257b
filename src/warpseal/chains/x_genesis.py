"""The genesis of the X-Chain: the assets that it begins with, each under an alias.

Source of truth: avalanchego `vms/avm/genesis.go`. The bytes are the genesis data of the X-Chain's CreateChainTx in the
P-Chain's genesis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpseal.chains.codec import TEXT, ListOf
from warpseal.chains.cursor import Cursor
from warpseal.chains.ids import AssetID
from warpseal.chains.layout import Layout
from warpseal.chains.signed_tx import VERSION
from warpseal.chains.x_txs import CREATE_ASSET_TX, X_TX, CreateAssetTx, XTx


@dataclass(frozen=True, slots=True)
class GenesisAsset:
    """An asset of the genesis: `alias` such as AVAX, and what creates it, which nobody signed."""

    alias: str
    creation: CreateAssetTx

    @property
    def tx(self) -> XTx:
        """The transaction that counts as having created it, without credentials."""
        return X_TX.build(self.creation)

    @property
    def asset_id(self) -> AssetID:
        """Id of the asset, that of `tx`."""
        return AssetID(self.tx.id)


@dataclass(frozen=True, slots=True)
class XGenesis:
    """The assets, by alias where valid."""

    assets: tuple[GenesisAsset, ...]

    def encode(self) -> bytes:
        """Return the bytes that `parse_x_genesis` reads."""
        out = bytearray(VERSION)
        _GENESIS.write(self, out)
        return bytes(out)


_ASSET: Final = Layout(GenesisAsset, alias=TEXT, creation=CREATE_ASSET_TX)
_GENESIS: Final = Layout(XGenesis, assets=ListOf(_ASSET, "assets"))


def parse_x_genesis(raw: bytes) -> XGenesis:
    """Return the genesis behind `raw`, codec version first. Raises MalformedChainBytes."""
    cursor = Cursor(raw)
    cursor.version()
    genesis = _GENESIS.read(cursor)
    cursor.finish()
    return genesis
