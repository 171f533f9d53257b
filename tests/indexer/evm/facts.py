"""The facts of a served chain, as the indexer makes them of its blocks and receipts."""

from __future__ import annotations

from typing import Final

from tests.indexer.evm_chains import ServedChain
from warpseal.chains.evm.blocks import decode_block, decode_receipts
from warpseal.chains.evm.checks import BlockRules, block_facts
from warpseal.chains.evm.facts import EvmBlockFacts

L1: Final = BlockRules()


def facts_of(chain: ServedChain, rules: BlockRules = L1) -> list[EvmBlockFacts]:
    """Return the facts of all blocks of a chain."""
    facts = []
    for raw, raw_receipts in zip(chain.headers, chain.receipts, strict=True):
        header, receipts = decode_block(raw), decode_receipts(raw_receipts)
        assert header is not None
        assert receipts is not None
        facts.append(block_facts(header, receipts, rules))
    return facts
