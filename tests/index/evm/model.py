"""The expected results of an EVM index, by plain means: facts in lists and dictionaries, read from
the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.index.evm.histories import MAX, ZERO
from warpseal.chains.evm.facts import Creation, EvmBlockFacts, NftTransfer, TokenStandard
from warpseal.resources.text import account_text, hex_text

Token = tuple[bytes, TokenStandard, int]


@dataclass
class EvmModel:
    """All blocks so far.

    is_erc721: replies of the contracts of candidate transfers.
    is_complete: the blocks begin with block 0.
    """

    is_erc721: dict[bytes, bool] = field(default_factory=dict)
    is_complete: bool = True
    blocks: list[EvmBlockFacts] = field(default_factory=list)
    moves: list[tuple[EvmBlockFacts, NftTransfer]] = field(default_factory=list)
    # By block, transaction and position.
    created: dict[tuple[int, int, int], tuple[Creation, bytes]] = field(default_factory=dict)
    # Tokens in the order of their appearance, by contract in the order of its appearance.
    tokens: dict[bytes, list[Token]] = field(default_factory=dict)
    holders: dict[Token, dict[bytes, int]] = field(default_factory=dict)
    inconsistent: set[bytes] = field(default_factory=set)

    def add(self, block: EvmBlockFacts) -> None:
        """Add the next block."""
        self.blocks.append(block)
        self.add_creations(block.number, block.creations, block.tx_hashes)
        for transfer in block.transfers:
            if not transfer.is_candidate or self.is_erc721[transfer.contract]:
                self.moves.append((block, transfer))
                self._move(transfer)

    def add_creations(
        self, number: int, creations: Iterable[Creation], hashes: dict[int, bytes]
    ) -> None:
        """Add creations of receipts or traces."""
        for creation in creations:
            place = (number, creation.tx_index, creation.position)
            self.created[place] = (creation, hashes[creation.tx_index])

    def addresses(self) -> list[bytes]:
        """Return all addresses that any fact names."""
        moved = {
            part for _, move in self.moves for part in (move.contract, move.sender, move.recipient)
        }
        parts = {
            part
            for item, _ in self.created.values()
            for part in (item.address, item.sender, item.factory)
        }
        return sorted(part for part in {*moved, *parts} if part is not None)

    def block(self, number: int, earlier_txs: int | None = 0) -> dict[str, Any]:
        """Return a block as the Data API shows it.

        earlier_txs: before the first block, if they are known.
        """
        place = number - self.blocks[0].number
        block = self.blocks[place]
        fields = {
            "blockNumber": str(number),
            "blockHash": hex_text(block.hash),
            "parentHash": hex_text(block.parent_hash),
            "blockTimestamp": block.time,
            "txCount": block.tx_count,
            "gasUsed": str(block.gas_used),
            "gasLimit": str(block.gas_limit),
            "baseFee": str(block.base_fee or 0),
            "gasCost": str(block.gas_cost or 0),
            "feesSpent": str(block.fees_spent),
        }
        if earlier_txs is not None:
            txs = sum(earlier.tx_count for earlier in self.blocks[: place + 1])
            fields["cumulativeTransactions"] = str(earlier_txs + txs)
        return fields

    def collectibles(self, owner: bytes, contract: bytes | None = None) -> list[tuple[Any, ...]]:
        """Return contract, standard, id, balance and whether events contradict, of what an address
        holds.
        """
        return [
            (
                *_token_columns(token),
                str(self.holders[token][owner]) if _is_1155(token) else None,
                self._mark(token),
            )
            for token in self._all_tokens(contract)
            if owner in self.holders[token]
        ]

    def collection(self, contract: bytes) -> list[tuple[Any, ...]]:
        """Return contract, standard, id, owner and whether events contradict, of the held tokens of
        a contract.
        """
        return [self.token(token) for token in self.tokens.get(contract, ()) if self.holders[token]]

    def token(self, token: Token) -> tuple[Any, ...]:
        """Return one token, as `collection` does."""
        owner = next(iter(self.holders[token]), None)
        shown_owner = None if _is_1155(token) or owner is None else account_text(owner)
        return (*_token_columns(token), shown_owner, self._mark(token))

    def transfers(self, party: bytes, start: int = 0, end: int = MAX) -> list[tuple[Any, ...]]:
        """Return the ERC-1155 transfers of an address, oldest first."""
        return [
            (
                block.number,
                block.time,
                hex_text(block.hash),
                hex_text(block.tx_hashes[move.tx_index]),
                account_text(move.sender),
                account_text(move.recipient),
                move.log_index,
                str(move.amount),
                account_text(move.contract),
                str(move.token_id),
            )
            for block, move in self.moves
            if move.standard is TokenStandard.ERC1155
            and party in (move.sender, move.recipient)
            and start <= block.number < end
        ]

    def deployments(self, party: bytes) -> list[tuple[Any, ...]]:
        """Return contract, transaction, sender and factory of the creations by an address, newest
        first.
        """
        return [
            (
                account_text(item.address),
                hex_text(tx_hash),
                account_text(item.sender),
                None if item.factory is None else account_text(item.factory),
            )
            for _, (item, tx_hash) in sorted(self.created.items(), reverse=True)
            if party in (item.sender, item.factory)
        ]

    def _move(self, move: NftTransfer) -> None:
        token = (move.contract, move.standard, move.token_id)
        listed = self.tokens.setdefault(move.contract, [])
        if token not in listed:
            listed.append(token)
        holders = self.holders.setdefault(token, {})
        if not _is_1155(token):
            is_expected = (move.sender in holders) if move.sender != ZERO else not holders
            holders.clear()
            self._check(token, is_expected)
            if move.recipient != ZERO:
                holders[move.recipient] = 1
            return
        for holder, change in ((move.sender, -move.amount), (move.recipient, move.amount)):
            if holder != ZERO:
                balance = holders.get(holder, 0) + change
                self._check(token, 0 <= balance <= MAX)
                holders[holder] = min(MAX, max(0, balance))
                if holders[holder] == 0 and self.is_complete:
                    del holders[holder]

    def _check(self, token: Token, is_consistent: bool) -> None:
        if not is_consistent and self.is_complete:
            self.inconsistent.add(token[0])

    def _mark(self, token: Token) -> bool:
        return token[0] in self.inconsistent

    def _all_tokens(self, contract: bytes | None) -> list[Token]:
        return [
            token
            for listed_contract, listed in self.tokens.items()
            if contract in (None, listed_contract)
            for token in listed
        ]


def _is_1155(token: Token) -> bool:
    return token[1] is TokenStandard.ERC1155


def _token_columns(token: Token) -> tuple[str, str, str]:
    return account_text(token[0]), token[1].value, str(token[2])
