"""Values that the parts of an EVM indexer exchange with its database.

Addresses have 20 bytes and hashes 32. Token ids are 0..2^256-1. Times are unix seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

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
    first_parent: parent of the first block.
    """

    height: int
    hash: bytes
    time: int
    first_height: int
    first_parent: bytes


class EvmChainIdentity(Struct, frozen=True):
    """What a database was made for.

    first: the height that the operator asked to begin at, `from`.

    has_holders: ERC-20 balances are kept, `holders`.
    """

    chain_id: ChainID
    evm_chain_id: int
    genesis_hash: bytes
    first: int = 0
    has_holders: bool = False


class IcmOptions(Struct, frozen=True):
    """What the writer has to know of ICM.

    messengers, registries: configured ones, besides those that all chains have.

    is_indexed: returns whether an index has the messages that a chain sent, so that the receiving
        one need not.
    """

    network_id: int
    messengers: tuple[bytes, ...] = ()
    registries: tuple[bytes, ...] = ()
    is_indexed: Callable[[ChainID], bool] = lambda chain_id: False


class DeliveredRow(NamedTuple):
    """A received message, or one whose execution succeeded later.

    key: of that event; receive: of the receive.

    prefix: the first 8 bytes of the message's id.
    """

    key: int
    source: ChainID
    prefix: int
    nonce: int
    outcome: int
    receive: int


class ReceivedBatch(NamedTuple):
    """What a destination received up to a key.

    epoch, time: of its index, and of its last block.
    """

    destination: ChainID
    epoch: int
    upto: int
    time: int
    rows: Sequence[DeliveredRow]


class IcmQuery(Struct, frozen=True):
    """Messages that one chain is to list: what it sent, and what it received of sources that are
    not indexed.

    chain: source or destination.
    address: sender or recipient.
    times: of the blocks that a list shows.
    indexed: the chains whose own indexes have their sends.
    status, is_stuck: None for all messages.
    known_since: of is_stuck, the time from which on it is known what a destination received.
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
    known_since: Mapping[ChainID, int] = {}


class IcmPosition(NamedTuple):
    """The place of a message among those of all chains, newest first.

    time: of its block; key: of its row.
    """

    time: int
    chain: ChainID
    key: int


class IcmKey(NamedTuple):
    """A message of a list.

    size: about its bytes.
    """

    position: IcmPosition
    size: int


class IcmKeys(NamedTuple):
    """All messages of one chain down to `read_to`; None: there are no more."""

    items: Sequence[IcmKey] = ()
    read_to: IcmPosition | None = None


class MessageSide(Struct, frozen=True, kw_only=True):
    """One side of a message.

    tail: see `MessageFields`; gas_limit, body: None if only the source's index has them.

    height, time: of the block.
    tx_fee: of the transaction, in wei.
    is_v2: an adapter sent the Warp message; False of a received message, whose index does not know
        it.
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
        """Return the ABI encoding of the message without the offset before it; None if not all
        fields are known.
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

    receive: the key of its receive in the index of the destination.

    reward: the newest fee, in the smallest unit of the asset, whose name and symbol are "" if they
        are unknown.
    warp_sender: see `IcmSend`.
    foreign_warp: its Warp message if that names another network or chain, which no validator signs.
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
        """Return its Warp message; None without one.

        network_id: of the chain.
        """
        encoded = self.encode() if self.warp_sender else None
        if self.foreign_warp is not None or encoded is None:
            return self.foreign_warp
        return UnsignedMessage.build(
            network_id, self.source, encode_call(self.warp_sender, encoded)
        )


class ReceivedMessage(MessageSide, frozen=True, kw_only=True):
    """A message at its destination.

    is_executed: at once, or by a retry.
    has_failed: it was not executed since.
    """

    deliverer: bytes
    redeemer: bytes
    is_executed: bool
    has_failed: bool


class MessageChange(NamedTuple):
    """The sending of a message, or a later event of it.

    amount: of FEE, the whole fee from then on.
    """

    kind: ChangeKind
    time: int
    amount: int


class IcmOccurrence(NamedTuple):
    """What happened to a message on a chain.

    key, time, tx_hash: of the event.
    """

    type: EventType
    key: int
    time: int
    tx_hash: bytes
    message: SentMessage | ReceivedMessage


class IcmBatch(NamedTuple):
    """What happened up to a key, in order."""

    upto: int
    occurrences: Sequence[IcmOccurrence]


class TracedBlock(Struct, frozen=True):
    """The creations of one block that traces show.

    tx_hashes: by index, of the transactions that they name.
    """

    number: int
    creations: tuple[Creation, ...]
    tx_hashes: dict[int, bytes]


class ContractToCall(Struct, frozen=True):
    """A contract whose kind, name and symbol are to be called.

    standards: standards of the NFT events it has emitted.

    is_requested: a page waits for it.
    """

    address: bytes
    standards: frozenset[TokenStandard]
    is_requested: bool = False


class ContractFacts(Struct, frozen=True):
    """The results of the calls to a contract at a height.

    decimals: 0..255 of ERC-20, else None.
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
    """A client asked for it, by endpoint 15."""
    SHOWN = "shown"
    """A page showed the token, and its metadata is unfetched or old."""
    DUE = "due"
    """The time of a retry has come, or an event said that the metadata changed."""
    MINTED = "minted"
    """The token appeared in a recent block."""
    REST = "rest"
    """It was never fetched."""


class TokenToFetch(Struct, frozen=True):
    """A token whose metadata is to be fetched.

    attempts: failed attempts since the last success.

    requested_at: time of the reindex request, if any.
    key: opaque key of the database.
    is_held: an address holds it.
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
    uri: "" if the contract gave none.
    fields: None after a failure. Then the last good fields stay, and without a URI the last one.
    next_attempt_at: time of the retry, if any.
    attempts: failed attempts since the last success.
    standard: None for the token that has this id, whichever its standard.
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
    """What a page shows without the results of calls, or with metadata that is unfetched or older
    than 24 hours.

    The keys are opaque, of the database.
    old_contracts, old_tokens: have results, so that no client waits for them.
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
    """Holders by balance, largest first, then by address, as they were after `block`; of -1: no
    block is indexed.

    events_inconsistent: the events of the contract contradict each other. total_holders,
        total_tokens, name, symbol,
    missing: of NFTs; the texts are "" if the contract has none.
    """

    block: int = -1
    events_inconsistent: bool = False
    name: str = ""
    symbol: str = ""
    total_holders: int = 0
    total_tokens: int = 0
    missing: MissingResults = NOTHING_MISSING


class ReindexOutcome(StrEnum):
    """What became of a reindex request."""

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

    retry_after_s: of TOO_EARLY, 1..3600, else 0.
    """

    outcome: ReindexOutcome
    retry_after_s: int = 0
