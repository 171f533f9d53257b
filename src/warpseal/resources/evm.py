"""Queries and resources of the indexed EVM chains: endpoints 9 to 15.

The index fills the resources and the Data API encodes them. Addresses are in EIP-55. Source of
truth: the specification's EVM endpoints, and the enumerations of the published SDKs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from warpseal.chains.evm.facts import MetadataStatus as MetadataStatus
from warpseal.resources.base import UNSET, Resource, SortOrder, UnsetType
from warpseal.resources.queries import TimeRange


class ErcType(StrEnum):
    """Standard of a contract."""

    ERC20 = "ERC-20"
    ERC721 = "ERC-721"
    ERC1155 = "ERC-1155"
    UNKNOWN = "UNKNOWN"


def describe_trace_gap(height: int | str) -> str:
    """Return why internal creations are not complete, and what an operator does about it."""
    return (
        f"no node traces block {height}: one with pruning-enabled false, synced from the first"
        " block, can"
    )


class DailyTps(Struct, frozen=True):
    """Average transactions per second of a chain, by UTC day since 1970.

    first_day: the first day that is indexed completely, None before block 1.
    last_day: the day of the newest block.
    values: averages of the days with blocks.
    advanced_at: unix seconds at which the index last advanced.
    """

    first_day: int | None
    last_day: int
    values: Mapping[int, float]
    advanced_at: int


class Erc1155Query(Struct, frozen=True):
    """ERC-1155 transfers to or from an address.

    start, end: unix seconds, start included, end excluded; None for no bound.
    hidden: the contracts that are left out.
    """

    address: bytes
    start: int | None = None
    end: int | None = None
    order: SortOrder = SortOrder.DESC
    hidden: frozenset[bytes] = frozenset()


class CollectibleQuery(Struct, frozen=True):
    """NFTs that an address holds.

    contract: the contract of the NFTs; None for all contracts.
    hidden: the contracts that are left out.
    """

    owner: bytes
    contract: bytes | None = None
    hidden: frozenset[bytes] = frozenset()


class HolderQuery(Struct, frozen=True):
    """Addresses whose ERC-20 balance was strictly above a threshold after any block of a range.

    The balance before the first block of the range counts as well.

    threshold: the amount in base units.
    """

    contract: bytes
    threshold: int
    times: TimeRange


class Holder(Struct, frozen=True):
    """An address and its balance at the block of the first page.

    balance: an amount of an ERC-20 token, or a number of NFTs.
    """

    address: bytes
    balance: int


class IcmStatus(StrEnum):
    """Whether a message was received, as far as the indexes know.

    If its source is not indexed, only that it was received is known.
    """

    PENDING = "pending"
    DELIVERED = "delivered"
    DELIVERED_SOURCE_NOT_INDEXED = "delivered_source_not_indexed"


class EvmBlock(Resource, frozen=True, gc=False, kw_only=True):
    """A block of an EVM chain. Amounts are in wei.

    cumulativeTransactions: the number of transactions of the chain up to this block, included.
    """

    chain_id: str
    block_number: str
    block_hash: str
    parent_hash: str
    block_timestamp: int
    tx_count: int
    gas_used: str
    gas_limit: str
    base_fee: str
    gas_cost: str
    fees_spent: str
    cumulative_transactions: str | UnsetType = UNSET


class NftMetadata(Resource, frozen=True, gc=False, kw_only=True):
    """Metadata of a token.

    attributes: JSON text; the token of a transfer has none.
    decimals, properties: metadata that only ERC-1155 tokens have; properties are JSON text.
    """

    index_status: str
    metadata_last_updated_timestamp: int | UnsetType = UNSET
    name: str | UnsetType = UNSET
    symbol: str | UnsetType = UNSET
    image_uri: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    animation_uri: str | UnsetType = UNSET
    external_url: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    attributes: str | UnsetType = UNSET
    decimals: int | UnsetType = UNSET
    properties: str | UnsetType = UNSET


class TokenHolder(Resource, frozen=True, gc=False, kw_only=True):
    """Sender or receiver of a transfer.

    A known token contract has name, symbol, decimals and logo.
    """

    address: str
    name: str | UnsetType = UNSET
    symbol: str | UnsetType = UNSET
    decimals: int | UnsetType = UNSET
    logo_uri: str | UnsetType = UNSET


class Erc1155Token(Resource, frozen=True, gc=False, kw_only=True):
    """The token of a transfer."""

    address: str
    erc_type: ErcType
    token_id: str
    token_uri: str
    metadata: NftMetadata


class Erc1155Transfer(Resource, frozen=True, gc=False, kw_only=True):
    """One ERC-1155 token moved. A batch transfer has one entry per token id."""

    block_number: str
    block_timestamp: int
    block_hash: str
    tx_hash: str
    sender: TokenHolder = field(name="from")
    to: TokenHolder
    log_index: int
    value: str
    erc1155_token: Erc1155Token


class NftToken(Resource, frozen=True, gc=False, kw_only=True):
    """A token of a collection.

    ownerAddress: the owner of an ERC-721 token.
    eventsInconsistent: true if the contract's events gave a token twice, or took more than there
    was.
    """

    address: str
    name: str
    symbol: str
    erc_type: ErcType
    token_id: str
    token_uri: str
    metadata: NftMetadata
    owner_address: str | UnsetType = UNSET
    events_inconsistent: bool | UnsetType = UNSET


class CollectibleBalance(NftToken, frozen=True, gc=False, kw_only=True):
    """A token that an address holds.

    balance: the number of tokens of ERC-1155.
    """

    chain_id: str
    balance: str | UnsetType = UNSET


class DeploymentDetails(Resource, frozen=True, gc=False, kw_only=True):
    """The creation of a contract.

    deployerAddress: the sender of the transaction.
    deployerContractAddress: the contract that created this contract.
    """

    tx_hash: str
    deployer_address: str
    deployer_contract_address: str | UnsetType = UNSET


class ResourceLinkType(StrEnum):
    """Kinds of links about a contract."""

    BLOG = "Blog"
    COIN_GECKO = "CoinGecko"
    COIN_MARKET_CAP = "CoinMarketCap"
    DISCORD = "Discord"
    DOCUMENTATION = "Documentation"
    FACEBOOK = "Facebook"
    GITHUB = "Github"
    INSTAGRAM = "Instagram"
    LINKED_IN = "LinkedIn"
    MEDIUM = "Medium"
    REDDIT = "Reddit"
    SUPPORT = "Support"
    TELEGRAM = "Telegram"
    TIK_TOK = "TikTok"
    TWITTER = "Twitter"
    WEBSITE = "Website"
    WHITEPAPER = "Whitepaper"
    YOUTUBE = "Youtube"


class ResourceLink(Resource, frozen=True, gc=False, kw_only=True):
    """A link about a contract."""

    type: ResourceLinkType
    url: str


class ImageAsset(Resource, frozen=True, gc=False, kw_only=True):
    """A logo or a banner."""

    asset_id: str | UnsetType = UNSET
    image_uri: str | UnsetType = UNSET


class ContractDescription(Resource, frozen=True, gc=False, kw_only=True):
    """The description of a contract. The chain has only name and symbol; operators add the rest."""

    name: str | UnsetType = UNSET
    symbol: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    official_site: str | UnsetType = UNSET
    email: str | UnsetType = UNSET
    color: str | UnsetType = UNSET
    logo_asset: ImageAsset | UnsetType = UNSET
    banner_asset: ImageAsset | UnsetType = UNSET
    resource_links: tuple[ResourceLink, ...] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET


class DeployedContract(ContractDescription, frozen=True, gc=False, kw_only=True):
    """A contract that an address deployed.

    decimals: the decimal places of an ERC-20 token.
    """

    address: str
    erc_type: ErcType
    decimals: int | UnsetType = UNSET
    deployment_details: DeploymentDetails
