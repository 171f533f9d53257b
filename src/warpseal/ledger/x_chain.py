"""What transactions and blocks of the X-Chain do: outputs, assets, and what comes from and goes to the other chains.

Source of truth: avalanchego `vms/avm/txs/executor`, `vms/avm/utxo`. The chain has no state but its unspent outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from warpseal.chains.ids import AssetID
from warpseal.chains.x_blocks import XBlock
from warpseal.chains.x_components import MintOutput
from warpseal.chains.x_genesis import XGenesis
from warpseal.chains.x_txs import (
    CreateAssetTx,
    ExportTx,
    ImportTx,
    InitialState,
    OperationTx,
    XTx,
)
from warpseal.ledger.effects import Sums
from warpseal.ledger.outputs import Consumed, LedgerOutput, OutputSource
from warpseal.ledger.utxo_flow import Moving, add_amounts, as_sums
from warpseal.ledger.x_operations import consume_operations
from warpseal.ledger.x_outputs import x_outputs
from warpseal.warp.ids import ChainID

_FUNGIBLE_FX: Final = 0
_NFT_FX: Final = 1


class Cap(Enum):
    """Whether more of an asset can be minted than it began with."""

    FIXED = "fixed"
    VARIABLE = "variable"


@dataclass(frozen=True, slots=True)
class AssetMade:
    """An asset came to be, its id that of the transaction. is_nft: it has NFTs. alias: of the genesis only."""

    asset_id: AssetID
    name: str
    symbol: str
    denomination: int
    cap: Cap
    is_nft: bool
    alias: str = ""


@dataclass(frozen=True, slots=True)
class XTxEffects:
    """What one transaction does. height: None for one from before the chain became a line of blocks.

    consumed: base and imported inputs, then those of operations, in the order of the credentials. emitted: by output
    index, exports included. unlocked, created: sums of the amounts of consumed and emitted outputs. burned: fungible
    inputs less what was transferred.
    """

    tx: XTx
    height: int | None
    position: int
    consumed: tuple[Consumed, ...]
    emitted: tuple[LedgerOutput, ...]
    source_chain_id: ChainID | None
    destination_chain_id: ChainID | None
    unlocked: Sums
    created: Sums
    burned: Sums
    asset: AssetMade | None

    @property
    def released(self) -> tuple[LedgerOutput, ...]:
        """Nothing: nobody stakes on the X-Chain."""
        return ()


@dataclass(frozen=True, slots=True)
class XBlockEffects:
    """What a block does."""

    chain_id: ChainID
    block: XBlock
    size_bytes: int
    tx_count: int
    time_s: int
    txs: tuple[XTxEffects, ...]


def apply_x(chain_id: ChainID, block: XBlock, source: OutputSource | None, *, is_complete: bool) -> XBlockEffects:
    """Return what the next block does.

    is_complete: whether every output of the chain is known since its genesis, so that an unknown one is a fault;
    otherwise it is rebuilt from the input. Raises LedgerFault.
    """
    moving = Moving(chain_id, block.height, source, is_complete)
    txs = tuple(x_tx_effects(moving, tx, position, block.height) for position, tx in enumerate(block.txs))
    return XBlockEffects(chain_id, block, len(block.raw), len(block.txs), block.time, txs)


def x_tx_effects(moving: Moving, tx: XTx, position: int, height: int | None = None) -> XTxEffects:
    """Return what one transaction does, on top of those before it in `moving`. Raises LedgerFault."""
    consumed = _transferred_in(moving, tx)
    operated = consume_operations(moving, tx, len(consumed)) if isinstance(tx.unsigned, OperationTx) else []
    emitted = x_outputs(tx, moving.chain_id)
    moving.emit(emitted)
    unlocked: dict[AssetID, int] = {}
    created: dict[AssetID, int] = {}
    add_amounts(unlocked, (*consumed, *operated))
    add_amounts(created, emitted)
    unsigned = tx.unsigned
    return XTxEffects(
        tx,
        height,
        position,
        (*consumed, *operated),
        emitted,
        unsigned.source_chain_id if isinstance(unsigned, ImportTx) else None,
        unsigned.destination_chain_id if isinstance(unsigned, ExportTx) else None,
        as_sums(unlocked),
        as_sums(created),
        _burned(moving, tx, consumed),
        _asset(tx, unsigned) if isinstance(unsigned, CreateAssetTx) else None,
    )


def x_genesis_effects(genesis: XGenesis, chain_id: ChainID) -> tuple[XTxEffects, ...]:
    """Return what the assets of the genesis begin with."""
    moving = Moving(chain_id, 0, None, True)
    effects: list[XTxEffects] = []
    for position, asset in enumerate(genesis.assets):
        made = x_tx_effects(moving, asset.tx, position)
        effects.append(replace(made, asset=_asset(asset.tx, asset.creation, asset.alias)))
    return tuple(effects)


def _transferred_in(moving: Moving, tx: XTx) -> list[Consumed]:
    unsigned = tx.unsigned
    consumed = moving.consume(tx, unsigned.base.inputs, moving.chain_id, 0)
    if isinstance(unsigned, ImportTx):
        consumed += moving.consume(tx, unsigned.imported_inputs, unsigned.source_chain_id, len(consumed))
    return consumed


def _burned(moving: Moving, tx: XTx, consumed: Sequence[Consumed]) -> Sums:
    burned: dict[AssetID, int] = {}
    add_amounts(burned, consumed)
    unsigned = tx.unsigned
    exported = unsigned.exported_outputs if isinstance(unsigned, ExportTx) else ()
    for made in (*unsigned.base.outputs, *exported):
        burned[made.asset_id] = burned.get(made.asset_id, 0) - made.output.amount
    if burned and min(burned.values()) < 0:
        raise moving.fault(tx, "more comes out than went in")
    return as_sums(burned)


def _asset(tx: XTx, creation: CreateAssetTx, alias: str = "") -> AssetMade:
    return AssetMade(
        AssetID(tx.id),
        creation.name,
        creation.symbol,
        creation.denomination,
        Cap.VARIABLE if any(map(_mints_more, creation.states)) else Cap.FIXED,
        any(state.fx_index == _NFT_FX for state in creation.states),
        alias,
    )


def _mints_more(state: InitialState) -> bool:
    return state.fx_index == _FUNGIBLE_FX and any(isinstance(output, MintOutput) for output in state.outputs)
