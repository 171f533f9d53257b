"""Blocks of synthetic EVM chains as the index gets them: NFT transfers of one chain, ICM messages
between two.

Few collections and holders have most of the transfers. Half of the collections are ERC-721, half
ERC-1155. Only holders send, and only what they have, so owners and balances add up. It measures the
index, not the decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from warpseal.chains.evm.facts import Creation, EvmBlockFacts, NftTransfer, TokenStandard
from warpseal.chains.evm.icm_events import (
    MESSENGER_V1,
    IcmEvent,
    IcmReceive,
    IcmSend,
    MessageFields,
    Outcome,
    message_id,
)
from warpseal.warp.ids import ChainID

CHAIN_ID: Final = ChainID(b"\x5e" * 32)
EVM_CHAIN_ID: Final = 99_999
MESSAGE_CHAINS: Final = ChainID(b"\x5a" * 32), ChainID(b"\x5b" * 32)
"""The chains that send messages to each other."""
BEGIN_S: Final = 1_700_000_000
BLOCK_S: Final = 2

_ZERO: Final = bytes(20)
_TRANSFERS_A_BLOCK: Final = 50
_CONTRACTS: Final = 2_000
_LARGEST: Final = 0.16
_NEW_HOLDER: Final = 0.08
_MINTS, _BURNS = 0.4, 0.02
_CREATIONS_A_BLOCK: Final = 0.5
_SENDS_A_BLOCK: Final = 25
_GAS_PRICE: Final = 25 * 10**9


class MadeUpNfts:
    """A sequence of blocks.

    contracts, holders: addresses in the blocks so far, the busiest first.
    hashes: the hashes of some blocks.
    next_ids: the number of tokens of each contract so far.
    transfers: the number of transfers so far.
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
            yield self._block(
                tuple(self._transfer(position) for position in range(_TRANSFERS_A_BLOCK))
            )

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
            fees_spent=90_000 * count * _GAS_PRICE,
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


class MadeUpMessages:
    """ICM messages between two chains, each received in the next block.

    accounts: senders and recipients, the busiest first.
    ids: the ids of some messages.
    """

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.accounts = [self.random.randbytes(20) for _ in range(20_000)]
        self.ids: list[bytes] = []
        self.height = -1

    @staticmethod
    def block_hash(chain: ChainID, number: int) -> bytes:
        """Return the hash of a block; -1: that of the genesis' parent."""
        return (number + 1).to_bytes(8) + chain[:24]

    def blocks(self, messages: int) -> Iterator[dict[ChainID, EvmBlockFacts]]:
        """Yield the blocks of both chains at one height until they have sent this number of
        messages.
        """
        sends: dict[ChainID, list[IcmSend]] = {chain_id: [] for chain_id in MESSAGE_CHAINS}
        while (self.height + 1) * _SENDS_A_BLOCK * 2 < messages:
            self.height += 1
            blocks = {}
            pairs = (MESSAGE_CHAINS, MESSAGE_CHAINS[::-1])
            new = {
                here: [self._send(here, other, index) for index in range(_SENDS_A_BLOCK)]
                for here, other in pairs
            }
            for here, other in pairs:
                receives = [self._receive(send, other) for send in sends[other]]
                blocks[here] = self._block(here, (*new[here], *receives))
            sends = new
            yield blocks

    def _send(self, source: ChainID, destination: ChainID, index: int) -> IcmSend:
        nonce = self.height * _SENDS_A_BLOCK + index + 1
        id_ = message_id(MESSENGER_V1, source, destination, nonce)
        if index == 0 and self.height % 10 == 0:
            self.ids.append(id_)
        body = self.random.randbytes(32)
        fields = MessageFields(
            nonce, self._account(), None, destination, self._account(), 200_000, b"", body
        )
        return IcmSend(index, index, MESSENGER_V1, id_, fields, _ZERO, 0, MESSENGER_V1)

    def _receive(self, send: IcmSend, source: ChainID) -> IcmReceive:
        index = _SENDS_A_BLOCK + send.position
        deliverer, redeemer = self.accounts[-2:]
        return IcmReceive(
            index,
            index,
            send.messenger,
            send.message_id,
            source,
            send.message,
            deliverer,
            redeemer,
            Outcome.EXECUTED,
        )

    def _account(self) -> bytes:
        return self.accounts[int(len(self.accounts) * self.random.random() ** 3)]

    def _block(self, chain: ChainID, events: tuple[IcmEvent, ...]) -> EvmBlockFacts:
        number, count = self.height, len(events)
        return EvmBlockFacts(
            number=number,
            hash=self.block_hash(chain, number),
            parent_hash=self.block_hash(chain, number - 1),
            time=BEGIN_S + BLOCK_S * number,
            tx_count=count,
            gas_used=120_000 * count,
            gas_limit=15_000_000,
            base_fee=_GAS_PRICE,
            gas_cost=0,
            fees_spent=120_000 * count * _GAS_PRICE,
            tx_hashes={index: self.random.randbytes(32) for index in range(count)},
            icm=events,
            tx_fees=dict.fromkeys(range(count), 120_000 * _GAS_PRICE),
        )
