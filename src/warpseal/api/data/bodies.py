"""JSON bodies of the Data API and of the Metrics API, and what pages have beside their items."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, field

from warpseal.icm.resources import WarpsealBlock
from warpseal.resources.base import UNSET, PrimaryNetworkChainName, Resource, UnsetType
from warpseal.resources.evm import IcmStatus
from warpseal.store.values import SigningBlock


class ChainInfo(Resource, frozen=True, gc=False, kw_only=True):
    """A chain and its network, as the path names it."""

    chain_name: PrimaryNetworkChainName
    network: str


class ChainPageFields(Resource, frozen=True, gc=False, kw_only=True):
    """What a page of a primary chain has beside its items."""

    chain_info: ChainInfo


class ChainInteraction(Resource, frozen=True, gc=False, kw_only=True):
    """The primary chains that an address has touched; the address as it was asked for."""

    address: str
    blockchain_ids: tuple[str, ...]


class ChainInteractions(Resource, frozen=True, gc=False, kw_only=True):
    """One entry for each address that was asked for."""

    addresses: tuple[ChainInteraction, ...]


class EvmFeature(StrEnum):
    """What the API offers for a chain beyond its blocks."""

    NFT_INDEXING = "nftIndexing"
    WEBHOOKS = "webhooks"
    TELEPORTER = "teleporter"


class SigningBlockList(Resource, frozen=True, gc=False, kw_only=True):
    """All signing blocks, oldest first."""

    signing_blocks: tuple[SigningBlock, ...]


class NetworkToken(Resource, frozen=True, gc=False, kw_only=True):
    """The token in which fees of an EVM chain are paid; an unknown name or symbol is empty."""

    name: str
    symbol: str
    decimals: int
    logo_uri: str | UnsetType = UNSET
    description: str | UnsetType = UNSET


class UtilityAddresses(Resource, frozen=True, gc=False, kw_only=True):
    """Addresses of contracts that serve all users of a chain."""

    multicall: str | UnsetType = UNSET


class EvmChainStatus(StrEnum):
    """Whether a node of the chain answers and, if the chain is indexed, indexing goes on."""

    OK = "OK"
    UNAVAILABLE = "UNAVAILABLE"


class EvmChainDetails(Resource, frozen=True, gc=False, kw_only=True):
    """An EVM chain that this daemon serves.

    chainId: empty until a node reports it. platformChainId: blockchain id.
    """

    chain_id: str
    status: EvmChainStatus
    chain_name: str
    description: str
    platform_chain_id: str
    subnet_id: str | UnsetType = UNSET
    vm_id: str | UnsetType = UNSET
    vm_name: Literal["EVM"] = "EVM"
    explorer_url: str | UnsetType = UNSET
    rpc_url: str
    ws_url: str | UnsetType = UNSET
    is_testnet: bool
    utility_addresses: UtilityAddresses | UnsetType = UNSET
    network_token: NetworkToken
    chain_logo_uri: str | UnsetType = UNSET
    private: bool | UnsetType = UNSET
    enabled_features: tuple[EvmFeature, ...]


class EvmChainList(Resource, frozen=True, gc=False, kw_only=True):
    """All EVM chains that this daemon serves."""

    chains: tuple[EvmChainDetails, ...]


class TpsPoint(Resource, frozen=True, gc=False, kw_only=True):
    """Transactions per second of a UTC day.

    timestamp: 00:00 of it.
    """

    timestamp: int
    value: float


class SeriesPageFields(Resource, frozen=True, gc=False, kw_only=True):
    """What a page of a series has beside its points."""

    status: int
    last_run: int
    next_page_start_key: str | UnsetType = UNSET


_SortKey = Annotated[
    int, Meta(description="The latest balance in the smallest unit, or the number of token ids.")
]


class HolderEntry(Resource, frozen=True, gc=False, kw_only=True):
    """A holder; sortKey is an integer of any size."""

    address: str
    sort_key: _SortKey


class SdkHolderEntry(Resource, frozen=True, gc=False, kw_only=True):
    """A holder with `compat` "sdk"."""

    address: str
    sort_key: str


class TokenPageFields(Resource, frozen=True, gc=False, kw_only=True):
    """What a page of the holders of a token has beside them."""

    events_inconsistent: bool | UnsetType = UNSET


class CollectionPageFields(Resource, frozen=True, gc=False, kw_only=True):
    """What a page of the holders of a collection has beside them."""

    nft_collection_name: str
    nft_symbol: str
    total_holders: int
    total_tokens: int
    events_inconsistent: bool | UnsetType = UNSET


class SdkCollectionPageFields(Resource, frozen=True, gc=False, kw_only=True):
    """What a page of the holders of a collection has beside them with `compat` "sdk"."""

    nft_collection_name: tuple[str, ...]
    nft_symbol: tuple[str, ...]
    total_holders: int
    total_tokens: int
    events_inconsistent: bool | UnsetType = UNSET


class IcmReceipt(Resource, frozen=True, gc=False, kw_only=True):
    """A receipt that the message carries: for a message of the other direction, and the account
    that gets its fee.
    """

    received_message_nonce: str
    relayer_reward_address: str


class IcmRewardDetails(Resource, frozen=True, gc=False, kw_only=True):
    """The fee of a message in the smallest unit of its ERC-20 token; an unknown name or symbol is
    empty.
    """

    address: str
    name: str
    symbol: str
    decimals: int
    erc_type: Literal["ERC-20"] = "ERC-20"
    value: str


class IcmSourceTransaction(Resource, frozen=True, gc=False, kw_only=True):
    """The transaction that sent a message.

    timestamp: Unix seconds. gasSpent: its fee in wei.
    """

    tx_hash: str
    timestamp: int
    gas_spent: str


class IcmDestinationTransaction(IcmSourceTransaction, frozen=True, gc=False, kw_only=True):
    """The transaction that received a message."""

    reward_redeemer: str
    deliverer_address: str


class _Message(Resource, frozen=True, gc=False, kw_only=True):
    message_id: str
    source_blockchain_id: str
    destination_blockchain_id: str
    source_evm_chain_id: str
    destination_evm_chain_id: str
    message_nonce: str
    sender: str = field(name="from")
    to: str
    data: str | UnsetType = UNSET
    message_executed: bool
    receipts: tuple[IcmReceipt, ...]
    receipt_delivered: bool
    reward_details: IcmRewardDetails
    source_transaction: IcmSourceTransaction | UnsetType = UNSET
    destination_transaction: IcmDestinationTransaction | UnsetType = UNSET
    status: IcmStatus
    warpseal: WarpsealBlock | UnsetType = UNSET


class IcmMessage(_Message, frozen=True, gc=False, kw_only=True):
    """An ICM message. An unknown EVM chain id is empty.

    data: the message's bytes, left out if only the source would know them.
    """

    icm_contract_address: str


class DeprecatedIcmMessage(_Message, frozen=True, gc=False, kw_only=True):
    """An ICM message at the deprecated paths.

    icmContractAddress: the messenger; only `delivered_source_not_indexed` messages have it.
    """

    teleporter_contract_address: str
    icm_contract_address: str | UnsetType = UNSET


class UsageNetwork(StrEnum):
    """The kind of network whose usage is shown."""

    MAINNET = "mainnet"
    TESTNET = "testnet"


class TimeInterval(StrEnum):
    """Length of the buckets of usage."""

    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"


class UsageGrouping(StrEnum):
    """The label by which usage is grouped."""

    RPC_METHOD = "rpcMethod"
    REQUEST_PATH = "requestPath"
    RESPONSE_CODE = "responseCode"
    COUNTRY = "country"
    CONTINENT = "continent"
    USER_AGENT = "userAgent"
    NONE = "None"


class UsageValue(Resource, frozen=True, gc=False, kw_only=True):
    """Usage of one group in one bucket.

    groupValue: left out without groups; `other`: all but the busiest groups.

    medianResponseTimeMsecs: within 1 %; 0 if there is none. apiCreditsWasted: credits of invalid
    requests.
    """

    grouped_by: UsageGrouping
    group_value: str | UnsetType = UNSET
    total_requests: int
    requests_per_second: float
    success_rate_percent: float
    median_response_time_msecs: float
    invalid_requests: int
    api_credits_used: int
    api_credits_wasted: int


class UsageMetric(Resource, frozen=True, gc=False, kw_only=True):
    """Usage in one bucket that begins at `timestamp`, the busiest group first."""

    timestamp: int
    values: tuple[UsageValue, ...]


class UsageMetrics(Resource, frozen=True, gc=False, kw_only=True):
    """Usage of the forwarded RPC routes, newest bucket first; buckets without requests are left
    out.
    """

    aggregate_duration: TimeInterval
    metrics: tuple[UsageMetric, ...]
    network: UsageNetwork
