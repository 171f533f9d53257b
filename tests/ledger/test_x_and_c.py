"""Transactions of the X-Chain, and the C-Chain's atomic ones, one rule at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chains.exchanges import vector
from tests.ledger.made_up_network import AVAX, C_CHAIN, TOKEN, X_CHAIN
from tests.ledger.memory_utxos import MemoryUtxos
from tests.ledger.model_parts import sum_amounts
from tests.ledger.small_chain import OTHER_OWNER, OWNER, output
from warpseal.chains.c_atomic import C_TX, AtomicEvmInput, AtomicEvmOutput, parse_atomic_tx
from warpseal.chains.c_atomic import ExportTx as CExportTx
from warpseal.chains.c_atomic import ImportTx as CImportTx
from warpseal.chains.components import (
    BaseFields,
    BaseTx,
    ImportTx,
    Input,
    TransferableInput,
    TransferInput,
    TransferOutput,
)
from warpseal.chains.ids import Address, AssetID, BlockID, TxID
from warpseal.chains.x_blocks import XBlock
from warpseal.chains.x_txs import (
    X_TX,
    AssetOperation,
    CreateAssetTx,
    InitialState,
    MintOperation,
    MintOutput,
    NftMintOperation,
    NftMintOutput,
    NftTransferOperation,
    NftTransferOutput,
    OperationTx,
    PropertyBurnOperation,
    PropertyMintOperation,
    PropertyMintOutput,
    PropertyOwnedOutput,
    UtxoReference,
    XTx,
    parse_x_tx,
)
from warpseal.ledger.c_chain import CBlockEffects, CHeader, apply_c_block
from warpseal.ledger.outputs import LedgerError, OutputKind
from warpseal.ledger.params import MAINNET
from warpseal.ledger.utxo_flow import UtxoFlow
from warpseal.ledger.x_chain import (
    XBlockEffects,
    XTxEffects,
    apply_x_block,
    build_x_tx_effects,
    list_x_outputs,
)
from warpseal.warp.ids import P_CHAIN, ChainID

AUTH = Input((0,))
EMPTY = BaseFields(88, X_CHAIN, (), (), b"")
CREATION = X_TX.build(
    CreateAssetTx(
        EMPTY,
        "Everything",
        "ALL",
        2,
        (
            InitialState(0, (TransferOutput(100, 0, 1, OWNER.addresses), MintOutput(OWNER))),
            InitialState(1, (NftMintOutput(7, OWNER),)),
            InitialState(2, (PropertyMintOutput(OWNER),)),
        ),
    )
)
ASSET = AssetID(CREATION.id)
MADE = CREATION.id


def asset_operation(operation: Any, *spent: tuple[TxID, int]) -> XTx:
    """Return a transaction that does one thing with the asset."""
    references = tuple(UtxoReference(*spend) for spend in spent)
    return X_TX.build(OperationTx(EMPTY, (AssetOperation(ASSET, references, operation),)))


def applied(
    *txs: XTx, source: MemoryUtxos | None = None, is_complete: bool = True
) -> XBlockEffects:
    """Return what a block of these does."""
    block = XBlock.build(BlockID(bytes(32)), 5, 1000, txs)
    return apply_x_block(X_CHAIN, block, source or MemoryUtxos(), is_complete=is_complete)


def shape(effects: XTxEffects) -> list[tuple[OutputKind, int]]:
    """Return kind and amount of what a transaction makes."""
    return [(out.kind, out.amount) for out in effects.emitted]


def test_operations_spend_the_initial_outputs_of_an_asset() -> None:
    mint = asset_operation(
        MintOperation(
            AUTH, MintOutput(OTHER_OWNER), TransferOutput(50, 0, 1, OTHER_OWNER.addresses)
        ),
        (MADE, 1),
    )
    nfts = asset_operation(NftMintOperation(AUTH, 7, b"art", (OWNER, OTHER_OWNER)), (MADE, 2))
    prop = asset_operation(
        PropertyMintOperation(AUTH, PropertyMintOutput(OWNER), PropertyOwnedOutput(OTHER_OWNER)),
        (MADE, 3),
    )
    give = asset_operation(
        NftTransferOperation(AUTH, NftTransferOutput(7, b"art", OTHER_OWNER)), (nfts.id, 0)
    )
    burn = asset_operation(PropertyBurnOperation((0,)), (prop.id, 1))
    effects = applied(CREATION, mint, nfts, prop, give, burn)
    assert [shape(tx) for tx in effects.txs] == [
        [
            (OutputKind.TRANSFER, 100),
            (OutputKind.MINT, 0),
            (OutputKind.NFT_MINT, 0),
            (OutputKind.PROPERTY_MINT, 0),
        ],
        [(OutputKind.MINT, 0), (OutputKind.TRANSFER, 50)],
        [(OutputKind.NFT, 1), (OutputKind.NFT, 1)],
        [(OutputKind.PROPERTY_MINT, 0), (OutputKind.PROPERTY, 0)],
        [(OutputKind.NFT, 1)],
        [],
    ]
    creation, minted, transfer = effects.txs[0], effects.txs[1], effects.txs[4]
    assert creation.asset is not None
    assert (creation.asset.name, creation.asset.cap.value, creation.asset.is_nft) == (
        "Everything",
        "variable",
        True,
    )
    assert (sum_amounts(minted.consumed), sum_amounts(minted.emitted), minted.burned) == (
        (),
        ((ASSET, 50),),
        (),
    )
    assert (sum_amounts(transfer.consumed), sum_amounts(transfer.emitted)) == (
        ((ASSET, 1),),
        ((ASSET, 1),),
    )
    assert [(out.group_id, out.payload) for out in transfer.emitted] == [(7, b"art")]
    assert (len(effects.txs), effects.txs[3].position) == (6, 3)


def test_a_double_spend_on_the_x_chain_is_an_error() -> None:
    mint = MintOperation(
        AUTH, MintOutput(OTHER_OWNER), TransferOutput(50, 0, 1, OTHER_OWNER.addresses)
    )
    with pytest.raises(LedgerError, match="spent already"):
        applied(CREATION, asset_operation(mint, (MADE, 1)), asset_operation(mint, (MADE, 1)))
    outputs = MemoryUtxos()
    outputs.apply(applied(CREATION, asset_operation(mint, (MADE, 1))).txs)
    with pytest.raises(LedgerError, match="is not there"):
        applied(asset_operation(mint, (MADE, 1)), source=outputs)


def test_an_operation_on_an_output_of_another_kind_is_an_error() -> None:
    give = asset_operation(
        NftTransferOperation(AUTH, NftTransferOutput(7, b"art", OTHER_OWNER)), (MADE, 0)
    )
    with pytest.raises(LedgerError, match="differs from the output"):
        applied(CREATION, give)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        (
            MintOperation(
                AUTH, MintOutput(OTHER_OWNER), TransferOutput(50, 0, 1, OTHER_OWNER.addresses)
            ),
            OutputKind.MINT,
        ),
        (NftMintOperation(AUTH, 7, b"art", (OWNER,)), OutputKind.NFT_MINT),
        (NftTransferOperation(AUTH, NftTransferOutput(7, b"art", OTHER_OWNER)), OutputKind.NFT),
        (
            PropertyMintOperation(
                AUTH, PropertyMintOutput(OTHER_OWNER), PropertyOwnedOutput(OTHER_OWNER)
            ),
            OutputKind.PROPERTY_MINT,
        ),
        (PropertyBurnOperation((0,)), OutputKind.PROPERTY),
    ],
)
def test_an_unknown_output_of_an_operation_is_reconstructed(
    operation: Any, kind: OutputKind
) -> None:
    (effects,) = applied(asset_operation(operation, (TxID(b"\x09" * 32), 4)), is_complete=False).txs
    output = effects.consumed[0].reconstructed
    assert output is not None
    assert (output.kind, output.asset_id, output.output_index, output.is_complete) == (
        kind,
        ASSET,
        4,
        False,
    )
    assert output.group_id == (7 if "nft" in kind else None)
    assert (output.locktime, output.stakeable_locktime) == (0, 0)
    with pytest.raises(LedgerError, match="is not there"):
        applied(asset_operation(operation, (TxID(b"\x09" * 32), 4)))


def test_more_of_an_asset_out_than_in_is_an_error() -> None:
    spent = TransferableInput(MADE, 0, ASSET, TransferInput(100, (0,)))
    base = BaseFields(88, X_CHAIN, (output(101, ASSET),), (spent,), b"")
    with pytest.raises(LedgerError, match="outputs are more"):
        applied(CREATION, X_TX.build(BaseTx(base)))


def test_a_mainnet_export_goes_to_the_p_chain() -> None:
    tx = parse_x_tx(bytes.fromhex(vector("x_chain.json")["export_to_p"]))
    effects = build_x_tx_effects(UtxoFlow(MAINNET.x_chain_id, 0, MemoryUtxos(), False), tx, 0)
    (out,) = effects.emitted
    assert (out.amount, out.created_on, out.held_on) == (2_569_382_395, MAINNET.x_chain_id, P_CHAIN)
    assert effects.burned == ((MAINNET.staking_asset_id, 1_000_000),)
    assert (effects.height, effects.destination_chain_id) == (None, P_CHAIN)
    assert list_x_outputs(tx, MAINNET.x_chain_id) == effects.emitted


def atomic(tx: Any, source: MemoryUtxos | None = None, chain: ChainID = C_CHAIN) -> CBlockEffects:
    """Return what a C-Chain block of one atomic transaction does."""
    header = CHeader(9, bytes(32), bytes(32), 1000, 700, 0)
    return apply_c_block(chain, header, (tx,), source or MemoryUtxos())


def test_a_mainnet_import_arrives_at_an_account() -> None:
    tx = parse_atomic_tx(bytes.fromhex(vector("c_atomic.json")["import_from_p"]))
    block = atomic(tx, chain=MAINNET.c_chain_id)
    (effects,) = block.txs
    avax = MAINNET.staking_asset_id
    assert sum_amounts(effects.consumed) == ((avax, 53_349_562_826),)
    assert sum_amounts(effects.evm_outputs) == ((avax, 53_349_484_216),)
    assert effects.burned == ((avax, 78_610),)
    assert [item.address.hex() for item in effects.evm_outputs] == [
        "f3bea6ee245b402d60fdb419eaabd63fc17c02d2"
    ]
    assert (effects.source_chain_id, effects.destination_chain_id) == (P_CHAIN, MAINNET.c_chain_id)
    output = effects.consumed[0].reconstructed
    assert output is not None
    assert (output.created_on, output.held_on, len(output.addresses)) == (
        P_CHAIN,
        MAINNET.c_chain_id,
        1,
    )
    assert (block.tx_count, effects.height) == (1, 9)


def test_an_export_from_an_account_can_be_imported_once() -> None:
    account = Address(b"\x77" * 20)
    tx = C_TX.build(
        CExportTx(88, C_CHAIN, X_CHAIN, (AtomicEvmInput(account, 30, AVAX, 4),), (output(28),))
    )
    outputs = MemoryUtxos()
    effects = atomic(tx)
    outputs.apply(effects.txs)
    assert effects.txs[0].burned == ((AVAX, 2),)
    assert [(out.output_index, out.created_on, out.held_on) for out in effects.txs[0].emitted] == [
        (0, C_CHAIN, X_CHAIN)
    ]
    spent = TransferableInput(tx.id, 0, AVAX, TransferInput(28, (0,)))
    imported = X_TX.build(ImportTx(EMPTY, C_CHAIN, (spent,)))
    (done,) = applied(imported, source=outputs).txs
    assert (done.consumed[0].reconstructed, done.consumed[0].created_on) == (None, C_CHAIN)
    outputs.apply((done,))
    assert not outputs.unspent


def test_more_at_an_account_than_was_imported_is_an_error() -> None:
    spent = TransferableInput(TxID(bytes(32)), 0, TOKEN, TransferInput(28, (0,)))
    arrival = AtomicEvmOutput(Address(b"\x77" * 20), 29, TOKEN)
    with pytest.raises(LedgerError, match="outputs are more"):
        atomic(C_TX.build(CImportTx(88, C_CHAIN, X_CHAIN, (spent,), (arrival,))))


def test_a_repeated_transaction_moves_no_output() -> None:
    tx = parse_atomic_tx(bytes.fromhex(vector("c_atomic.json")["import_from_p"]))
    header = CHeader(102972, bytes(32), bytes(32), 1000, 700, 0)
    is_repeat = header.number in MAINNET.repeated_c_blocks
    block = apply_c_block(MAINNET.c_chain_id, header, (tx,), MemoryUtxos(), is_repeat=is_repeat)
    assert (block.is_repeat, block.tx_count) == (True, 1)
    assert (block.txs[0].consumed, block.txs[0].emitted) == ((), ())
    assert block.txs[0].evm_outputs == atomic(tx, chain=MAINNET.c_chain_id).txs[0].evm_outputs
    assert len(MAINNET.repeated_c_blocks) == 57
