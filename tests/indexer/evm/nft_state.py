"""What the token contracts of a served chain return when they are called, computed from all events
of the chain.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, Final

from eth_abi.abi import decode, encode
from eth_hash.auto import keccak

from tests.indexer.evm_chains import TRANSFER, TRANSFER_BATCH, TRANSFER_SINGLE, ZERO, ServedChain

BALANCE_OF: Final = keccak(b"balanceOf(address)")[:4]
OWNER_OF: Final = keccak(b"ownerOf(uint256)")[:4]
BALANCE_OF_BATCH: Final = keccak(b"balanceOfBatch(address[],uint256[])")[:4]


class NftState:
    """Owners and balances after the last block. `call` is the `call` of a replay node."""

    def __init__(self, chain: ServedChain) -> None:
        self.owners: dict[tuple[bytes, int], bytes] = {}
        self.balances: dict[tuple[bytes, int, bytes], int] = defaultdict(int)
        self.coins: dict[tuple[bytes, bytes], int] = defaultdict(int)
        for raw in chain.receipts:
            for receipt in json.loads(raw):
                for log in receipt["logs"]:
                    topics = [bytes.fromhex(topic[2:]) for topic in log["topics"]]
                    self._apply(
                        bytes.fromhex(log["address"][2:]), topics, bytes.fromhex(log["data"][2:])
                    )

    def call(self, to: bytes, data: bytes, block: Any) -> bytes | None:
        """Return the result of a call; None: it reverts."""
        if data[:4] == BALANCE_OF:
            return max(0, self.coins[to, data[-20:]]).to_bytes(32)
        if data[:4] == OWNER_OF:
            owner = self.owners.get((to, int.from_bytes(data[4:])), ZERO)
            return None if owner == ZERO else owner.rjust(32, b"\0")
        if data[:4] == BALANCE_OF_BATCH:
            holders, ids = decode(["address[]", "uint256[]"], data[4:])
            amounts = [
                self.balances[to, token_id, bytes.fromhex(holder[2:])]
                for holder, token_id in zip(holders, ids, strict=True)
            ]
            return encode(["uint256[]"], [amounts])
        return None

    def _apply(self, contract: bytes, topics: list[bytes], data: bytes) -> None:
        if topics[0] == TRANSFER and len(topics) == 4:
            self.owners[contract, int.from_bytes(topics[3])] = topics[2][12:]
        elif topics[0] == TRANSFER:
            self.coins[contract, topics[1][12:]] -= int.from_bytes(data)
            self.coins[contract, topics[2][12:]] += int.from_bytes(data)
        elif topics[0] == TRANSFER_SINGLE:
            self._move(contract, topics, int.from_bytes(data[:32]), int.from_bytes(data[32:]))
        elif topics[0] == TRANSFER_BATCH:
            for token_id, amount in zip(*decode(["uint256[]", "uint256[]"], data), strict=True):
                self._move(contract, topics, token_id, amount)

    def _move(self, contract: bytes, topics: list[bytes], token_id: int, amount: int) -> None:
        self.balances[contract, token_id, topics[2][12:]] -= amount
        self.balances[contract, token_id, topics[3][12:]] += amount
