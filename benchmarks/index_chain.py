"""Builds P-, X- and C-Chains of any length, with valid bytes, on the genesis of the recorded
network.

Most blocks hold one transfer, as most do on the public networks; every tenth P-Chain block also has
an export. The signatures are not valid: the indexer does not verify those of accepted transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from tests.chains.p_vectors import genesis_bytes
from warpseal.chains.c_atomic import C_TX, AtomicEvmInput, encode_atomic_txs
from warpseal.chains.c_atomic import ExportTx as CExportTx
from warpseal.chains.components import (
    BaseFields,
    BaseTx,
    Credential,
    ExportTx,
    TransferableInput,
    TransferableOutput,
    TransferInput,
    TransferOutput,
)
from warpseal.chains.components import BaseTx as XBaseTx
from warpseal.chains.ids import Address, AssetID, BlockID, TxID
from warpseal.chains.p_blocks import PBlock, PGenesis, parse_p_genesis
from warpseal.chains.p_txs import P_TX
from warpseal.chains.proposervm import ProposedBlock
from warpseal.chains.x_blocks import XBlock
from warpseal.chains.x_txs import X_TX
from warpseal.ledger.params import find_primary_chains
from warpseal.warp.ids import P_CHAIN, ChainID

NETWORK_ID: Final = 88888
STARTED_S: Final = 1_795_226_560
_FEE: Final = 1_000
_SIGNED: Final = (Credential((bytes(65),)),)
# As long as those of most validators.
_CERTIFICATE: Final = bytes(1_185)
_ADDRESSES: Final = 5_000


@dataclass(frozen=True, slots=True)
class UnspentOutput:
    """An unspent output."""

    tx_id: TxID
    index: int
    amount: int


def genesis() -> PGenesis:
    """Return the genesis of all chains."""
    return parse_p_genesis(genesis_bytes("localnet"))


def address(number: int) -> Address:
    """Return an address out of some thousand; low addresses occur far more often."""
    fraction = int.from_bytes(sha256(number.to_bytes(8, "big")).digest()[:4], "big") / 2**32
    return Address(sha256(b"owner %d" % int(_ADDRESSES * fraction**3)).digest()[:20])


def p_blocks(count: int) -> Iterator[PBlock]:
    """Yield block 0 and `count` blocks after it."""
    first_block = genesis()
    yield first_block.block
    asset_id = first_block.utxos[0].utxo.asset_id
    _, c_chain = find_primary_chains(first_block)
    largest = max(first_block.utxos, key=lambda item: _free_amount(item.utxo.output))
    unspent = UnspentOutput(
        largest.utxo.tx_id, largest.utxo.output_index, _free_amount(largest.utxo.output)
    )
    parent = first_block.block.id
    for height in range(1, count + 1):
        destination = c_chain if height % 10 == 0 else None
        unspent, tx = _p_transfer(unspent, asset_id, height, destination)
        block = PBlock.build("BanffStandardBlock", parent, height, STARTED_S + height, (tx,))
        parent = block.id
        yield block


def containers(blocks: Iterator[PBlock] | Iterator[XBlock]) -> Iterator[bytes]:
    """Yield proposervm blocks around all blocks except the first, which has no proposer."""
    parent = BlockID(bytes(32))
    next(iter(blocks))
    for block in blocks:
        outer = ProposedBlock(
            parent, block.time or 0, block.height, _CERTIFICATE, block.raw, None, bytes(256)
        )
        parent = outer.id
        yield outer.encode()


def x_blocks(count: int) -> Iterator[XBlock]:
    """Yield block 0 and `count` blocks after it."""
    from warpseal.chains.p_txs import CreateChainTx
    from warpseal.chains.x_blocks import parse_x_genesis

    first_block = genesis()
    creation = first_block.chains[0].unsigned
    assert isinstance(creation, CreateChainTx)
    asset = parse_x_genesis(creation.genesis).assets[0]
    x_chain, _ = find_primary_chains(first_block)
    outputs = [output for state in asset.creation.states for output in state.outputs]
    index = max(range(len(outputs)), key=lambda n: getattr(outputs[n], "amount", 0))
    unspent = UnspentOutput(asset.tx.id, index, outputs[index].amount)  # type: ignore[union-attr]
    block = XBlock.build(BlockID(bytes(32)), 0, STARTED_S, ())
    yield block
    for height in range(1, count + 1):
        base = _base(unspent, asset.asset_id, height, x_chain)
        tx = X_TX.build(XBaseTx(base), _SIGNED)
        unspent = UnspentOutput(tx.id, 1, base.outputs[1].output.amount)
        block = XBlock.build(block.id, height, STARTED_S + height, (tx,))
        yield block


def c_blocks(count: int) -> Iterator[dict[str, Any]]:
    """Yield a node's replies for block 0 and the `count` blocks after it; every fifth exports to
    the P-Chain.
    """
    first_block = genesis()
    asset_id = first_block.utxos[0].utxo.asset_id
    _, c_chain = find_primary_chains(first_block)
    parent = bytes(32)
    for number in range(count + 1):
        digest = sha256(b"block %d" % number).digest()
        extra = b""
        if number and number % 5 == 0:
            output = TransferableOutput(asset_id, TransferOutput(10**9, 0, 1, (address(number),)))
            spent = AtomicEvmInput(address(number), 10**9 + _FEE, asset_id, number)
            unsigned = CExportTx(NETWORK_ID, c_chain, P_CHAIN, (spent,), (output,))
            extra = encode_atomic_txs((C_TX.build(unsigned, _SIGNED),))
        yield {
            "number": hex(number),
            "hash": "0x" + digest.hex(),
            "parentHash": "0x" + parent.hex(),
            "timestamp": hex(STARTED_S + number),
            "size": hex(2_000),
            "transactions": [
                "0x" + sha256(digest + bytes([n])).hexdigest() for n in range(number % 8)
            ],
            "blockExtraData": "0x" + extra.hex(),
            "miner": "0x" + bytes(20).hex(),
            "logsBloom": "0x" + bytes(256).hex(),
            "stateRoot": "0x" + digest.hex(),
            "receiptsRoot": "0x" + digest.hex(),
            "transactionsRoot": "0x" + digest.hex(),
        }
        parent = digest


def _p_transfer(
    unspent: UnspentOutput, asset_id: AssetID, height: int, export_to: ChainID | None
) -> tuple[UnspentOutput, Any]:
    base = _base(unspent, asset_id, height, P_CHAIN)
    left = base.outputs[1].output.amount
    if export_to is None:
        tx = P_TX.build(BaseTx(base), _SIGNED)
        return UnspentOutput(tx.id, 1, left), tx
    base_fields = BaseFields(
        base.network_id, base.blockchain_id, base.outputs[1:], base.inputs, b""
    )
    tx = P_TX.build(ExportTx(base_fields, export_to, base.outputs[:1]), _SIGNED)
    return UnspentOutput(tx.id, 0, left), tx


def _base(unspent: UnspentOutput, asset_id: AssetID, height: int, chain_id: ChainID) -> BaseFields:
    paid = 1_000 + height % 1_000
    outputs = (
        TransferableOutput(asset_id, TransferOutput(paid, 0, 1, (address(height),))),
        TransferableOutput(
            asset_id, TransferOutput(unspent.amount - paid - _FEE, 0, 1, (address(height + 1),))
        ),
    )
    spent = TransferableInput(
        unspent.tx_id, unspent.index, asset_id, TransferInput(unspent.amount, (0,))
    )
    return BaseFields(NETWORK_ID, chain_id, outputs, (spent,), b"")


def _free_amount(output: object) -> int:
    return output.amount if isinstance(output, TransferOutput) else 0
