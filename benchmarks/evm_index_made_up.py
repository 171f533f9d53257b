"""Blocks of a synthetic EVM chain as the index gets them: few collections and holders have most of the NFT transfers.

Half of the collections are ERC-721, half ERC-1155. Only holders send, and only what they have, so owners and balances
add up. It measures the index, not the decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from warpseal.chains.evm.facts import Creation, EvmBlockFacts, NftTransfer, TokenStandard
from warpseal.warp.ids import ChainID

CHAIN_ID: Final = ChainID(b"\x5e" * 32)
EVM_CHAIN_ID: Final = 99_999
BEGIN_S: Final = 1_700_000_000
BLOCK_S: Final = 2

_ZERO: Final = bytes(20)
_TRANSFERS_A_BLOCK: Final = 50
_CONTRACTS: Final = 2_000
_LARGEST: Final = 0.16
_NEW_HOLDER: Final = 0.08
_MINTS, _BURNS = 0.4, 0.02
_CREATIONS_A_BLOCK: Final = 0.5


class MadeUpNfts:
    """A sequence of blocks. contracts, holders: all so far, the busiest first. hashes: of some blocks.

    next_ids: the number of tokens of each contract so far. transfers: number so far.
    """

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.contracts = [self.random.randbytes(20) for _ in range(_CONTRACTS)]
        self.holders = [self.random.randbytes(20) for _ in range(100)]
        self.deployers = [self.random.randbytes(20) for _ in range(200)]
        self.next_ids = [0] * _CONTRACTS
        self.transfers = 0
        self.height = -1
        self.hash = bytes(32)
        self.hashes: list[bytes] = []
        self._held: list[tuple[int, int, bytes, int]] = []

    @staticmethod
    def standard(contract: int) -> TokenStandard:
        """Return the standard of a contract by its place."""
        return TokenStandard.ERC1155 if contract % 2 else TokenStandard.ERC721

    def blocks(self, transfers: int) -> Iterator[EvmBlockFacts]:
        """Yield blocks until the chain has this number of transfers."""
        if self.height < 0:
            yield self._block(())
        while self.transfers < transfers:
            yield self._block(tuple(self._transfer(position) for position in range(_TRANSFERS_A_BLOCK)))

    def _block(self, transfers: tuple[NftTransfer, ...]) -> EvmBlockFacts:
        parent, self.hash = self.hash, self.random.randbytes(32)
        self.height += 1
        self.transfers += len(transfers)
        if self.height % 100 == 0:
            self.hashes.append(self.hash)
        creations: tuple[Creation, ...] = ()
        if self.random.random() < _CREATIONS_A_BLOCK:
            deployer = self.deployers[int(len(self.deployers) * self.random.random() ** 3)]
            creations = (Creation(0, 0, self.random.randbytes(20), deployer),)
        count = max(1, len(transfers))
        return EvmBlockFacts(
            number=self.height,
            hash=self.hash,
            parent_hash=parent,
            time=BEGIN_S + BLOCK_S * self.height,
            tx_count=count,
            gas_used=90_000 * count,
            gas_limit=15_000_000,
            base_fee=25 * 10**9,
            gas_cost=0,
            fees_spent=90_000 * count * 25 * 10**9,
            transfers=transfers,
            creations=creations,
            tx_hashes={index: self.random.randbytes(32) for index in range(count)},
        )

    def _transfer(self, position: int) -> NftTransfer:
        random, roll = self.random, self.random.random()
        if roll < _MINTS or not self._held:
            # A sixth of all tokens are of one collection.
            contract = 0 if random.random() < _LARGEST else int(_CONTRACTS * random.random() ** 3)
            token_id, self.next_ids[contract] = self.next_ids[contract], self.next_ids[contract] + 1
            sender, amount = _ZERO, random.randrange(1, 1_000) if contract % 2 else 1
        else:
            # Most sales are of tokens that moved lately.
            recent = min(len(self._held), 20_000)
            span = recent if random.random() < 0.8 else len(self._held)
            at = len(self._held) - 1 - random.randrange(span)
            self._held[at], self._held[-1] = self._held[-1], self._held[at]
            contract, token_id, sender, amount = self._held.pop()
        recipient = _ZERO if roll > 1 - _BURNS else self._holder()
        if recipient != _ZERO:
            self._held.append((contract, token_id, recipient, amount))
        return NftTransfer(
            position=position,
            tx_index=position,
            log_index=position,
            contract=self.contracts[contract],
            standard=self.standard(contract),
            token_id=token_id,
            sender=sender,
            recipient=recipient,
            amount=amount,
        )

    def _holder(self) -> bytes:
        if self.random.random() < _NEW_HOLDER:
            self.holders.append(self.random.randbytes(20))
            return self.holders[-1]
        return self.holders[int(len(self.holders) * self.random.random() ** 3)]
