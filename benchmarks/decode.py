"""(f) Blocks decoded by one core: P-Chain bytes to dataclasses and ids, JSON of EVM nodes to
checked facts.

The benchmark needs no network and no daemon. One thread decodes P-Chain blocks from bytes to
structs, IDs included; the figure is the CPU time of the best of seven rounds of 20,000 blocks:
three of mainnet, the twenty of the recorded network (two of them with a chain's genesis of 14 KB),
one for each type of transaction. Then it turns made-up EVM blocks with their receipts from the JSON
of a node into the facts that the index keeps: it decodes them, checks them against each other, and
searches them for NFT events.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.report import Aim, Figure, Report
from tests.indexer.evm_chains import ServedChain, dense_blocks, nft_blocks, transfer_blocks
from warpseal.chains.evm.blocks import decode_block, decode_receipts
from warpseal.chains.evm.checks import BlockRules, block_facts
from warpseal.chains.ids import BlockID
from warpseal.chains.p_blocks import PBlock, parse_p_block, parse_p_genesis
from warpseal.chains.p_txs import parse_p_tx
from warpseal.runtime.zstd import Decompressor

VECTORS = Path(__file__).parents[1] / "tests" / "vectors"
ROUNDS = 7
BLOCKS_A_ROUND = 20_000
QUICK_BLOCKS_A_ROUND = 200
RATE_AIM = Aim(10_000, at_least=True)
# Three and two and a half times the rates of indexing them: downloading and writing share the core.
EVM_BLOCK_AIM = Aim(15_000, at_least=True)
EVM_LOG_AIM = Aim(150_000, at_least=True)
EVM_LOGS = 1_000
EVM_NFTS = 50
CHECKSUM_BYTES = 4
MAX_FILE_BYTES = 2**28


def run(quick: bool) -> Report:
    """Decode blocks of mainnet, of the recorded network, with each type of transaction; and made-up
    EVM blocks.
    """
    count = QUICK_BLOCKS_A_ROUND if quick else BLOCKS_A_ROUND
    mainnet, recorded, every_type = mainnet_blocks(), _recorded_blocks(), _block_of_each_type()
    genesis = _unpacked(VECTORS / "genesis" / "mainnet.bin.zst")
    one_transaction = transfer_blocks(max(20, count // 10), has_roots=False)
    dense, nfts = dense_blocks(max(1, count // 1_000)), nft_blocks(max(2, count // 200))
    figures = (
        _rate("blocks of mainnet", mainnet, count, RATE_AIM),
        _rate("blocks of a recorded network", recorded, count, RATE_AIM),
        _rate("blocks with one transaction, each type as often", every_type, count, RATE_AIM),
        Figure(
            "mainnet's genesis, 15,344 outputs",
            _best_s(lambda: parse_p_genesis(genesis)) * 1000,
            "ms",
        ),
        _evm_rate("EVM blocks of one transaction", one_transaction, 1, EVM_BLOCK_AIM),
        _evm_rate("logs in dense EVM blocks, 2 % of NFTs", dense, EVM_LOGS, EVM_LOG_AIM),
        _evm_rate("NFT transfers in EVM blocks", nfts, EVM_NFTS, None),
    )
    sizes = ", ".join(
        f"{sum(map(len, blocks)) / len(blocks):.0f}" for blocks in (mainnet, recorded, every_type)
    )
    return Report("decode", quick, figures, (f"bytes of a block on average: {sizes}",))


def _rate(what: str, blocks: Sequence[bytes], count: int, aim: Aim) -> Figure:
    """Return blocks a second of CPU time, in the best of some rounds: the machine may be busy, the
    work is the same.
    """
    repeats = max(1, count // len(blocks))

    def decode() -> None:
        for _ in range(repeats):
            for raw in blocks:
                parse_p_block(raw)

    return Figure(what, repeats * len(blocks) / _best_s(decode), "/s", aim)


def _evm_rate(what: str, chain: ServedChain, items: int, aim: Aim | None) -> Figure:
    """Return items a second of CPU time.

    items: number of items in a block.
    """
    pairs, rules = list(zip(chain.headers, chain.receipts, strict=True))[1:], BlockRules()

    def decode() -> None:
        for header, receipts in pairs:
            block = decode_block(header)
            assert block is not None
            block_facts(block, decode_receipts(receipts) or (), rules)

    return Figure(what, items * len(pairs) / _best_s(decode), "/s", aim)


def _best_s(work: Callable[[], object]) -> float:
    took_s = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        took_s.append(time.process_time() - started)
    return min(took_s)


def mainnet_blocks() -> list[bytes]:
    """Return the blocks of mainnet that the tests also use."""
    return [
        bytes.fromhex(block["hex"])
        for block in json.loads((VECTORS / "p_chain.json").read_text())["blocks"]
    ]


def _block_of_each_type() -> list[bytes]:
    rows = json.loads((VECTORS / "p_chain.json").read_text())["transactions"]
    txs = [parse_p_tx(bytes.fromhex(row["hex"])) for row in rows]
    return [PBlock.build("BanffStandardBlock", BlockID(bytes(32)), 1, 1, (tx,)).raw for tx in txs]


def _recorded_blocks() -> list[bytes]:
    lines = _unpacked(VECTORS / "localnet" / "p-chain.jsonl.zst").decode().splitlines()
    calls = [call for call in map(json.loads, lines) if call["method"] == "platform.getBlock"]
    return [bytes.fromhex(call["result"]["block"][2:])[:-CHECKSUM_BYTES] for call in calls]


def _unpacked(file: Path) -> bytes:
    return Decompressor(MAX_FILE_BYTES).decompress(file.read_bytes())
