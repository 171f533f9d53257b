"""The facts of a block that the EVM index keeps.

The values do not depend on the node that sent the block or on the database. Addresses have 20 bytes
and hashes 32. Amounts and token ids are 0..2^256-1. Times are unix seconds.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from warpseal.chains.evm.icm_events import IcmEvents


class TokenStandard(StrEnum):
    """Standard of an NFT transfer."""

    ERC721 = "ERC-721"
    ERC1155 = "ERC-1155"


class MetadataStatus(StrEnum):
    """Outcome of the last attempt to fetch the metadata of a token."""

    UNINDEXED = "UNINDEXED"
    INDEXED = "INDEXED"
    UNKNOWN = "UNKNOWN"
    MISSING_TOKEN = "MISSING_TOKEN"
    INVALID_TOKEN_URI = "INVALID_TOKEN_URI"
    INVALID_TOKEN_URI_SCHEME = "INVALID_TOKEN_URI_SCHEME"
    UNREACHABLE_TOKEN_URI = "UNREACHABLE_TOKEN_URI"
    THROTTLED_TOKEN_URI = "THROTTLED_TOKEN_URI"
    METADATA_CONTENT_TOO_LARGE = "METADATA_CONTENT_TOO_LARGE"
    INVALID_METADATA = "INVALID_METADATA"
    INVALID_METADATA_JSON = "INVALID_METADATA_JSON"


class NftTransfer(Struct, frozen=True, gc=False):
    """A transfer of a token. The zero address sends a minted token, and receives a burnt token.

    position: the place of the transfer among the NFT transfers of its block, from 0.
    amount: the number of tokens, 1 for ERC-721.
    is_candidate: the event is a transfer of ERC-721 only if the contract's ERC-165 says so.
    """

    position: int
    tx_index: int
    log_index: int
    contract: bytes
    standard: TokenStandard
    token_id: int
    sender: bytes
    recipient: bytes
    amount: int
    is_candidate: bool = False


class Erc20Transfer(Struct, frozen=True, gc=False):
    """An amount above 0 of an ERC-20 token moved from one address to another.

    The zero address sends what is minted, and receives what is burnt.
    """

    contract: bytes
    sender: bytes
    recipient: bytes
    amount: int


class MetadataUpdate(Struct, frozen=True, gc=False):
    """A change of the metadata of the tokens `first_id` to `last_id` of a contract.

    The event is of ERC-4906, or the URI event of ERC-1155.
    """

    contract: bytes
    first_id: int
    last_id: int


class Creation(Struct, frozen=True, gc=False):
    """A created contract.

    position: the place of the creation in its transaction, 0 for the transaction's own contract.
    sender: the sender of the transaction.
    factory: the contract that created it, None if the transaction itself did.
    """

    tx_index: int
    position: int
    address: bytes
    sender: bytes
    factory: bytes | None = None


class EvmBlockFacts(Struct, frozen=True, gc=False):
    """A block. Positions of transfers are below 2^20.

    gas_used: the gas used by all receipts.
    base_fee, gas_cost: values of the header in wei; None if the header lacks them.
    fees_spent: the sum of gas used times effective gas price, in wei.
    creations: the contracts that receipts show as created.
    upgraded: contracts with another ERC-1967 implementation, and initialised contracts.
    tx_hashes: the hashes of the transactions that the other fields name, by index.
    unknown_logs: the number of logs with the topic of such an event and another shape.
    needs_trace: true if a transaction used at least 26,500 gas, so that it may have created
        contracts inside.
    erc20_transfers, icm: events in their order; empty if the chain is indexed without them.
    tx_fees: gas used times effective gas price of the transactions that `icm` names, by index.
    """

    number: int
    hash: bytes
    parent_hash: bytes
    time: int
    tx_count: int
    gas_used: int
    gas_limit: int
    base_fee: int | None
    gas_cost: int | None
    fees_spent: int
    transfers: tuple[NftTransfer, ...] = ()
    creations: tuple[Creation, ...] = ()
    updates: tuple[MetadataUpdate, ...] = ()
    upgraded: tuple[bytes, ...] = ()
    tx_hashes: dict[int, bytes] = field(default_factory=dict)
    unknown_logs: int = 0
    needs_trace: bool = True
    erc20_transfers: tuple[Erc20Transfer, ...] = ()
    icm: IcmEvents = ()
    tx_fees: dict[int, int] = field(default_factory=dict)

    @property
    def events(self) -> tuple[tuple[Struct | bytes, ...], ...]:
        """The events in the logs of the block."""
        return self.transfers, self.erc20_transfers, self.updates, self.upgraded, self.icm

    @property
    def event_count(self) -> int:
        """The number of events that are many in some blocks."""
        return len(self.transfers) + len(self.erc20_transfers) + len(self.icm)

    @property
    def has_events(self) -> bool:
        """Whether the index keeps something that a log of the block says."""
        return any(self.events)
