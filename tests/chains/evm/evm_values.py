"""Recorded blocks of EVM chains, and logs for made-up ones."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from tests.indexer.evm_chains import Log, MadeUpChain, Tx, recorded_chain, word
from warpseal.chains.evm.blocks import EvmHeader, EvmReceipt, decode_block, decode_receipts
from warpseal.chains.evm.checks import BlockRules, block_facts
from warpseal.chains.evm.facts import EvmBlockFacts

NETWORKS: Final = ("localnet", "helicon")
CHAINS: Final = ("c-chain", "l1-0", "l1-1")
RECORDED: Final = [(network, chain) for network in NETWORKS for chain in CHAINS]
# Values of the recorded network after Helicon, from eth_getChainConfig of the C-Chain.
HELICON_TIME: Final = 1_607_144_400


def rules(network: str, chain: str) -> BlockRules:
    """Return the rules of a recorded chain."""
    return BlockRules(HELICON_TIME if (network, chain) == ("helicon", "c-chain") else None)


@cache
def recorded_blocks(
    network: str, chain: str
) -> tuple[tuple[EvmHeader, tuple[EvmReceipt, ...]], ...]:
    """Return every block of a recorded chain with its receipts."""
    served = recorded_chain(network, chain)
    return tuple(map(decoded, served.headers, served.receipts))


def decoded(header: bytes, receipts: bytes) -> tuple[EvmHeader, tuple[EvmReceipt, ...]]:
    """Return a block and its receipts, neither of which is null."""
    block, listed = decode_block(header), decode_receipts(receipts)
    assert block is not None
    assert listed is not None
    return block, listed


def facts_of(*txs: Tx, has_erc20: bool = False) -> EvmBlockFacts:
    """Return the facts of a made-up block with these transactions."""
    chain = MadeUpChain()
    chain.add(txs)
    return block_facts(
        *decoded(chain.chain.headers[1], chain.chain.receipts[1]), BlockRules(has_erc20=has_erc20)
    )


def facts_of_logs(*logs: Log, has_erc20: bool = False) -> EvmBlockFacts:
    """Return the facts of a made-up block with one transaction that has these logs."""
    return facts_of(Tx(account(1), account(2), logs), has_erc20=has_erc20)


def account(number: int) -> bytes:
    """Return an address."""
    return word(number)[12:]


def as_json(value: Any) -> bytes:
    """Return JSON as a node sends it."""
    return json.dumps(value, separators=(",", ":")).encode()
