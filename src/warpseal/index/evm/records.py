"""Values that the parts of an EVM indexer exchange with its database.

Addresses have 20 bytes and hashes 32. Token ids are 0..2^256-1. Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct, field

from warpseal.chains.evm.facts import Creation, TokenStandard
from warpseal.chains.evm.icm_events import ChangeKind, MessageFields, encode_call, encode_message
from warpseal.chains.evm.nft_document import NftFields
from warpseal.resources.evm import ErcType, Holder, IcmStatus, MetadataStatus
from warpseal.resources.queries import Page, TimeRange
from warpseal.store.values import EventType
from warpseal.warp.ids import ChainID
from warpseal.warp.message import UnsignedMessage

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""About the bytes of URIs and documents, or of messages, of a page; a single item may have more."""


class EvmCheckpoint(Struct, frozen=True):
    """The written blocks of a chain.

    height, hash, time: the last block.
    first_parent: hash of the parent of the first block.
    """

    height: int
    hash: bytes
    time: int
    first_height: int
    first_parent: bytes


class EvmChainIdentity(Struct, frozen=True):
    """The chain and the settings that a database was made for.

    first: the setting `from`: the height at which the operator asked to begin.
    has_holders: the setting `holders`: ERC-20 balances are kept.
    """

    chain_id: ChainID
    evm_chain_id: int
    genesis_hash: bytes
    first: int = 0
    has_holders: bool = False


def _is_not_indexed(chain_id: ChainID) -> bool:
    return False


class IcmOptions(Struct, frozen=True):
    """The contracts whose ICM messages a chain's index has.

    messengers, registries: the configured contracts, besides those that all chains have.
    is_indexed: returns whether an index has the messages that a chain sent. Then the index of the
        destination need not keep their contents.
    """

    network_id: int
    messengers: tuple[bytes, ...] = ()
    registries: tuple[bytes, ...] = ()
    is_indexed: Callable[[ChainID], bool] = _is_not_indexed


class DeliveredRow(NamedTuple):
    """A received message, or a message whose execution succeeded later.

    key: key of the event, a receive or a retry.
    prefix: the first 8 bytes of the message's id.
    receive: key of the receive.
    """

    key: int
    source: ChainID
    prefix: int
    nonce: int
    outcome: int
    receive: int


class ReceivedBatch(NamedTuple):
    """The messages that a destination received up to a key.

    epoch: epoch of the destination's index.
    time: time of the destination's last block.
    """

    destination: ChainID
    epoch: int
    upto: int
    time: int
    rows: Sequence[DeliveredRow]


class IcmQuery(Struct, frozen=True):
    """The messages that one chain lists.

    These are the sent messages, and the received messages of sources that are not indexed.

    chain: blockchain that is source or destination.
    address: account that is sender or recipient.
    times: range of the times of blocks.
    indexed: the chains whose own indexes have their sends.
    status, is_stuck: state of the messages; None: messages of every state.
    indexed_since: the time from which on the receives of each destination are indexed; needed only
        for `is_stuck`.
    """

    chain: ChainID | None = None
    source: ChainID | None = None
    destination: ChainID | None = None
    sender: bytes | None = None
    recipient: bytes | None = None
    address: bytes | None = None
    times: TimeRange = TimeRange()
    indexed: frozenset[ChainID] = frozenset()
    status: IcmStatus | None = None
    is_stuck: bool | None = None
    indexed_since: Mapping[ChainID, int] = field(default_factory=dict)


class IcmPosition(NamedTuple):
    """The place of a message among those of all chains, newest first.

    time: time of the block.
    key: key of the message's row.
    """

    time: int
    chain: ChainID
    key: int


class IcmKey(NamedTuple):
    """A message of a list.

    size: about the bytes that the message takes on a page.
    """

    position: IcmPosition
    size: int


class IcmKeys(NamedTuple):
    """All messages of one chain down to a position.

    read_to: the position; None: there are no more messages.
    """

    items: Sequence[IcmKey] = ()
    read_to: IcmPosition | None = None


class MessageSide(Struct, frozen=True, kw_only=True):
    """One side of a message.

    gas_limit, body: values of the message; None if only the source's index has them.
    tail: see `MessageFields`.
    height, time: the block of the event.
    tx_fee: fee of the transaction, in wei.
    is_v2: an adapter sent the Warp message. False of a received message: its index does not have
        the sender.
    """

    message_id: bytes
    messenger: bytes
    source: ChainID
    destination: ChainID
    nonce: int
    sender: bytes
    recipient: bytes
    gas_limit: int | None
    tail: bytes
    body: bytes | None
    tx_hash: bytes
    height: int
    time: int
    tx_fee: int
    is_v2: bool = False

    def encode(self) -> bytes | None:
        """Return the ABI encoding of the message without the offset before it.

        Returns None if the index does not have all fields.
        """
        if self.gas_limit is None or self.body is None:
            return None
        origin = self.messenger if self.is_v2 else None
        fields = (
            self.nonce,
            self.sender,
            origin,
            self.destination,
            self.recipient,
            self.gas_limit,
            self.tail,
            self.body,
        )
        return encode_message(MessageFields(*fields))


class SentMessage(MessageSide, frozen=True, kw_only=True):
    """A message at its source.

    warp_sender: see `IcmSend`.
    asset: contract of the fee. Its name and symbol are "" if the contract has none.
    reward: the newest fee, in the smallest unit of the asset.
    receive: key of the receive in the index of the destination; None without a receive.
    foreign_warp: Warp message that names another network or chain; no validator signs it.
    """

    key: int
    warp_sender: bytes
    asset: bytes
    asset_name: str
    asset_symbol: str
    asset_decimals: int
    reward: int
    has_receipt: bool
    receive: int | None
    foreign_warp: UnsignedMessage | None = None

    def warp_message(self, network_id: int) -> UnsignedMessage | None:
        """Return the Warp message that the chain logged for this message; None without one.

        network_id: id of the network of the chain.
        """
        encoded = self.encode() if self.warp_sender else None
        if self.foreign_warp is not None or encoded is None:
            return self.foreign_warp
        return UnsignedMessage.build(
            network_id, self.source, encode_call(self.warp_sender, encoded)
        )


class ReceivedMessage(MessageSide, frozen=True, kw_only=True):
    """A message at its destination.

    is_executed: the message was executed, at once or by a retry.
    has_failed: the execution failed, and no retry has succeeded since.
    """

    deliverer: bytes
    redeemer: bytes
    is_executed: bool
    has_failed: bool


class MessageChange(NamedTuple):
    """The sending of a message, or a later event of the message.

    amount: the amount of the event; the whole fee from then on for FEE.
    """

    kind: ChangeKind
    time: int
    amount: int


class IcmOccurrence(NamedTuple):
    """An event of a message on a chain.

    key, time, tx_hash: place of the event.
    """

    type: EventType
    key: int
    time: int
    tx_hash: bytes
    message: SentMessage | ReceivedMessage


class IcmBatch(NamedTuple):
    """The events of messages up to a key, in order."""

    upto: int
    occurrences: Sequence[IcmOccurrence]


class TracedBlock(Struct, frozen=True):
    """The creations of one block that traces show.

    tx_hashes: hashes of the transactions that the creations name, by index.
    """

    number: int
    creations: tuple[Creation, ...]
    tx_hashes: dict[int, bytes]


class ContractToCall(Struct, frozen=True):
    """A contract whose kind, name and symbol are to be called.

    standards: standards of the NFT events that the contract has emitted.
    is_requested: a page waits for the results.
    """

    address: bytes
    standards: frozenset[TokenStandard]
    is_requested: bool = False


class ContractFacts(Struct, frozen=True):
    """The results of the calls to a contract at a height.

    decimals: 0..255 for ERC-20, else None.
    """

    address: bytes
    erc_type: ErcType
    name: str | None
    symbol: str | None
    decimals: int | None
    height: int


class FetchReason(StrEnum):
    """Why the metadata of a token is to be fetched, most urgent first."""

    REINDEX = "reindex"
    """A client asked for the metadata, by endpoint 15."""
    SHOWN = "shown"
    """A page showed the token, and its metadata is unfetched or old."""
    DUE = "due"
    """The time of a retry has come, or an event said that the metadata changed."""
    MINTED = "minted"
    """The token appeared in a recent block."""
    REST = "rest"
    """The metadata was never fetched."""


class TokenToFetch(Struct, frozen=True):
    """A token whose metadata is to be fetched.

    attempts: failed attempts since the last success.
    requested_at: time of the reindex request, if any.
    key: opaque key of the database.
    is_held: an address holds it, or may do so, as the events of its contract contradict each other.
    """

    contract: bytes
    token_id: int
    standard: TokenStandard
    attempts: int
    requested_at: int | None
    key: int
    is_held: bool


class TokenDocument(Struct, frozen=True):
    """The outcome of an attempt to fetch the metadata of a token.

    status: UNINDEXED if the attempt was postponed, which leaves status and time of the last one.
    uri: URI of the document; "" if the contract returned none. Then the last URI stays.
    fields: fields of the document; None after a failure. Then the last good fields stay.
    next_attempt_at: time of the retry, if any.
    attempts: failed attempts since the last success.
    standard: standard of the token; None for a token with this id of any standard.
    """

    contract: bytes
    token_id: int
    status: MetadataStatus
    updated_at: int
    uri: str = ""
    fields: NftFields | None = None
    next_attempt_at: int | None = None
    attempts: int = 0
    standard: TokenStandard | None = None


class MissingResults(Struct, frozen=True):
    """The contracts and tokens of a page without results, or with results older than 24 hours.

    Results are those of calls, and the metadata of tokens. The keys are opaque, of the database.

    contracts, tokens: keys of rows without results. A client may wait for them.
    old_contracts, old_tokens: keys of rows with old results. No client waits for new ones.
    """

    contracts: frozenset[int] = frozenset()
    tokens: frozenset[int] = frozenset()
    old_tokens: frozenset[int] = frozenset()
    old_contracts: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        """Return whether a page need be completed."""
        return bool(self.contracts or self.tokens or self.old_tokens or self.old_contracts)


NOTHING_MISSING: Final = MissingResults()


class HolderPage(Page[Holder], frozen=True):
    """Holders by balance, largest first, then by address, as they were after a block.

    block: the block; -1: no block is indexed.
    events_inconsistent: the events of the contract contradict each other.
    name, symbol: texts of a collection of NFTs; "" if the contract has none.
    total_holders, total_tokens: numbers of a collection of NFTs.
    missing: the results that the name and the symbol of a collection lack.
    """

    block: int = -1
    events_inconsistent: bool = False
    name: str = ""
    symbol: str = ""
    total_holders: int = 0
    total_tokens: int = 0
    missing: MissingResults = NOTHING_MISSING


class ReindexOutcome(StrEnum):
    """The outcome of a reindex request."""

    ACCEPTED = "accepted"
    TOO_EARLY = "too early"
    """Less than an hour after the last accepted one."""
    UNKNOWN_TOKEN = "unknown token"
    BUSY = "busy"
    """Too many accepted requests wait already."""
    NO_INDEXER = "no indexer"
    """No process fills the index now."""


class ReindexResult(Struct, frozen=True):
    """The outcome of a reindex request.

    retry_after_s: 1..3600 for TOO_EARLY, else 0.
    """

    outcome: ReindexOutcome
    retry_after_s: int = 0
