"""The recorded network replayed: its genesis, then every block of the three chains, in one memory
of outputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from tests.chains.exchanges import LOCALNET, lines, results
from tests.chains.p_vectors import genesis_bytes, recorded, unchecked
from tests.ledger.memory_utxos import MemoryUtxos
from warpseal.chains.c_atomic import AtomicTx, parse_atomic_txs
from warpseal.chains.ids import AssetID
from warpseal.chains.p_blocks import PBlock, PGenesis, parse_p_block, parse_p_genesis
from warpseal.chains.p_txs import CreateChainTx
from warpseal.chains.x_blocks import XBlock, parse_x_block, parse_x_genesis
from warpseal.ledger.c_chain import CHeader, CTxEffects, apply_c_block
from warpseal.ledger.effects import BlockEffects, TxEffects
from warpseal.ledger.p_chain import apply_p_block, state_from_genesis
from warpseal.ledger.p_state import PChainState
from warpseal.ledger.params import L1FeeConfig, Parameters, parameters_from_node
from warpseal.ledger.x_chain import XTxEffects, apply_x_block, build_x_genesis_effects
from warpseal.warp.ids import parse_id

GENESIS: PGenesis = parse_p_genesis(genesis_bytes("localnet"))


def results_of(method: str) -> list[tuple[dict[str, Any], Any]]:
    """Return (params, result) of the calls that were recorded for the ledger."""
    return list(results("ledger.jsonl", method))


def result_of(method: str) -> Any:
    """Return the result of the only such call."""
    ((_, result),) = results_of(method)
    return result


@cache
def params() -> Parameters:
    """Return the parameters of the recorded network, as its node reports them."""
    reply = next(
        call["result"] for call in lines("info.jsonl") if call["method"] == "info.upgrades"
    )
    times_s = {
        key.removesuffix("Time"): _unix_s(value)
        for key, value in reply.items()
        if key.endswith("Time")
    }
    fee = result_of("platform.getValidatorFeeConfig")
    config = L1FeeConfig(
        fee["target"], fee["minPrice"], fee["excessConversionConstant"], fee["capacity"]
    )
    asset_id = AssetID(parse_id(result_of("platform.getStakingAssetID")["assetID"]))
    return parameters_from_node(88888, asset_id, GENESIS, times_s, config)


@cache
def p_blocks() -> tuple[PBlock, ...]:
    """Return the P-Chain's blocks from 1 on."""
    blocks = (
        parse_p_block(unchecked(result["block"])) for _, result in recorded("getBlock", "hex")
    )
    return tuple(sorted(blocks, key=lambda block: block.height))[1:]


@cache
def x_blocks() -> tuple[XBlock, ...]:
    """Return the X-Chain's blocks."""
    blocks = (
        result["block"]
        for _, result in results("avm.jsonl", "avm.getBlockByHeight", encoding="hex")
    )
    return tuple(sorted(map(parse_x_block, map(unchecked, blocks)), key=lambda block: block.height))


@cache
def c_blocks() -> tuple[tuple[CHeader, tuple[AtomicTx, ...]], ...]:
    """Return the C-Chain's blocks with their atomic transactions."""
    blocks: dict[int, tuple[CHeader, tuple[AtomicTx, ...]]] = {}
    for line in (LOCALNET / "c-atomic.jsonl").read_text().splitlines():
        call = json.loads(line)
        if call["method"] == "eth_getBlockByNumber":
            block_json = call["result"]
            header = CHeader(
                int(block_json["number"], 16),
                bytes.fromhex(block_json["hash"][2:]),
                bytes.fromhex(block_json["parentHash"][2:]),
                int(block_json["timestamp"], 16),
                size_bytes=0,
                evm_tx_count=0,
            )
            txs = parse_atomic_txs(bytes.fromhex(block_json["blockExtraData"][2:]), batch=True)
            blocks[header.number] = (header, txs)
    return tuple(blocks[number] for number in sorted(blocks))


@dataclass
class Replay:
    """What became of the recorded blocks."""

    state: PChainState
    outputs: MemoryUtxos = field(default_factory=MemoryUtxos)
    p: list[BlockEffects] = field(default_factory=list)
    x: list[XTxEffects] = field(default_factory=list)
    c: list[CTxEffects] = field(default_factory=list)

    def block(self, block: PBlock | XBlock | tuple[CHeader, tuple[AtomicTx, ...]]) -> None:
        """Apply the next block of a chain."""
        if isinstance(block, PBlock):
            effects = apply_p_block(self.state, block, self.outputs)
            self.p.append(effects)
            self.outputs.apply(moves(effects))
        elif isinstance(block, XBlock):
            x_effects = apply_x_block(
                params().x_chain_id, block, self.outputs, is_complete=True
            ).txs
            self.x += x_effects
            self.outputs.apply(x_effects)
        else:
            c_effects = apply_c_block(params().c_chain_id, *block, self.outputs).txs
            self.c += c_effects
            self.outputs.apply(c_effects)

    @property
    def p_txs(self) -> dict[str, TxEffects]:
        """The P-Chain's transactions by id."""
        return {tx.tx.id.hex(): tx for effects in self.p for tx in effects.txs}


def moves(effects: BlockEffects) -> Iterable[TxEffects]:
    """Return what moves outputs in a block: what it settles, then its transactions."""
    return effects.executed


def beginning() -> Replay:
    """Return the network as its genesis left it."""
    state, effects = state_from_genesis(GENESIS, params())
    replay = Replay(state)
    replay.p.append(effects)
    replay.outputs.add(effects.emitted)
    replay.outputs.apply(effects.txs)
    x_creation = GENESIS.chains[0].unsigned
    assert isinstance(x_creation, CreateChainTx)
    replay.x += build_x_genesis_effects(parse_x_genesis(x_creation.genesis), params().x_chain_id)
    replay.outputs.apply(replay.x)
    return replay


@cache
def replayed(*, one_chain_after_the_other: bool = False) -> Replay:
    """Return the network after all of its blocks: by their time, as it was, or the P-Chain first,
    then X, then C.
    """
    replay = beginning()
    timed: list[tuple[int, bool, Any]] = [
        (block.time or 0, _imports(block.txs), block) for block in p_blocks()
    ]
    timed += [(block.time, _imports(block.txs), block) for block in x_blocks()]
    timed += [(header.time_s, _imports(txs), (header, txs)) for header, txs in c_blocks()]
    if not one_chain_after_the_other:
        # Within a second an export comes before its import.
        timed.sort(key=lambda item: item[:2])
    for _, _, block in timed:
        replay.block(block)
    return replay


def _imports(txs: Iterable[Any]) -> bool:
    return any(tx.kind == "ImportTx" for tx in txs)


def _unix_s(text: str) -> int:
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())
