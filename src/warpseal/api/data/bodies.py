"""JSON bodies: pages of resources, errors, and the bodies of endpoints outside the history.

A last page has no nextPageToken. The handlers of aggregation, health and readiness do not use these types, which
describe them in the OpenAPI document; tests compare the fields of both.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from warpseal.api.data.sdk_resources import SdkCChainTransaction, SdkXChainTransaction
from warpseal.api.data.staking_resources import (
    ActiveValidatorDetails,
    CompletedValidatorDetails,
    HistoricalReward,
    PendingValidatorDetails,
    RemovedValidatorDetails,
)
from warpseal.history.blocks import PrimaryNetworkBlock
from warpseal.history.evm import CollectibleBalance, DeployedContract, Erc1155Transfer, NftToken
from warpseal.history.resources import UNSET, PrimaryNetworkChainName, Resource, UnsetType
from warpseal.history.transactions import CChainTransaction, PChainTransaction, XChainTransaction


class ChainInfo(Resource, frozen=True, gc=False, kw_only=True):
    """A chain and its network, as the path names it."""

    chain_name: PrimaryNetworkChainName
    network: str


class _Page(Resource, frozen=True, gc=False, kw_only=True):
    next_page_token: str | UnsetType = UNSET


class PChainTransactions(_Page, frozen=True, gc=False, kw_only=True):
    """A page of P-Chain transactions."""

    transactions: tuple[PChainTransaction, ...]
    chain_info: ChainInfo


class XChainTransactions(_Page, frozen=True, gc=False, kw_only=True):
    """A page of X-Chain transactions."""

    transactions: tuple[XChainTransaction, ...]
    chain_info: ChainInfo


class CChainTransactions(_Page, frozen=True, gc=False, kw_only=True):
    """A page of the C-Chain's atomic transactions."""

    transactions: tuple[CChainTransaction, ...]
    chain_info: ChainInfo


class SdkXChainTransactions(_Page, frozen=True, gc=False, kw_only=True):
    """A page of X-Chain transactions with `compat` "sdk"."""

    transactions: tuple[SdkXChainTransaction, ...]
    chain_info: ChainInfo


class SdkCChainTransactions(_Page, frozen=True, gc=False, kw_only=True):
    """A page of the C-Chain's atomic transactions with `compat` "sdk"."""

    transactions: tuple[SdkCChainTransaction, ...]
    chain_info: ChainInfo


class PrimaryNetworkBlocks(_Page, frozen=True, gc=False, kw_only=True):
    """A page of blocks, newest first."""

    blocks: tuple[PrimaryNetworkBlock, ...]
    chain_info: ChainInfo


class ChainInteraction(Resource, frozen=True, gc=False, kw_only=True):
    """The primary chains that an address has touched; the address as it was asked for."""

    address: str
    blockchain_ids: tuple[str, ...]


class ChainInteractions(Resource, frozen=True, gc=False, kw_only=True):
    """One entry for each address that was asked for."""

    addresses: tuple[ChainInteraction, ...]


class HistoricalRewards(_Page, frozen=True, gc=False, kw_only=True):
    """A page of rewards."""

    historical_rewards: tuple[HistoricalReward, ...]


class Validators(_Page, frozen=True, gc=False, kw_only=True):
    """A page of a node's validations."""

    validators: tuple[
        PendingValidatorDetails | ActiveValidatorDetails | CompletedValidatorDetails | RemovedValidatorDetails, ...
    ]


class EvmFeature(StrEnum):
    """What the API offers for a chain beyond its blocks."""

    NFT_INDEXING = "nftIndexing"
    WEBHOOKS = "webhooks"
    TELEPORTER = "teleporter"


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
    """An EVM chain that this daemon serves. chainId: empty until a node reports it. platformChainId: blockchain id."""

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


class Erc1155Transfers(_Page, frozen=True, gc=False, kw_only=True):
    """A page of ERC-1155 transfers."""

    transactions: tuple[Erc1155Transfer, ...]


class CollectibleBalances(_Page, frozen=True, gc=False, kw_only=True):
    """A page of the NFTs that an address holds."""

    collectible_balances: tuple[CollectibleBalance, ...]


class DeployedContracts(_Page, frozen=True, gc=False, kw_only=True):
    """A page of the contracts that an address deployed."""

    contracts: tuple[DeployedContract, ...]


class NftTokens(_Page, frozen=True, gc=False, kw_only=True):
    """A page of the tokens of a collection."""

    tokens: tuple[NftToken, ...]


class TpsPoint(Resource, frozen=True, gc=False, kw_only=True):
    """Transactions per second of a UTC day. timestamp: 00:00 of it."""

    timestamp: int
    value: float


class AverageTps(_Page, frozen=True, gc=False, kw_only=True):
    """A page of days, newest first. lastRun: when the index last advanced. nextPageStartKey: nextPageToken."""

    results: tuple[TpsPoint, ...]
    status: int
    last_run: int
    next_page_start_key: str | UnsetType = UNSET


_SortKey = Annotated[int, Meta(description="The latest balance in the smallest unit, or the number of token ids.")]


class HolderEntry(Resource, frozen=True, gc=False, kw_only=True):
    """A holder; sortKey is an integer of any size."""

    address: str
    sort_key: _SortKey


class SdkHolderEntry(Resource, frozen=True, gc=False, kw_only=True):
    """A holder with `compat` "sdk"."""

    address: str
    sort_key: str


class AddressesAboveThreshold(_Page, frozen=True, gc=False, kw_only=True):
    """A page of addresses, largest balance first. eventsInconsistent: the contract's events contradict each other."""

    addresses: tuple[HolderEntry, ...]
    events_inconsistent: bool | UnsetType = UNSET


class SdkAddressesAboveThreshold(_Page, frozen=True, gc=False, kw_only=True):
    """A page of addresses with `compat` "sdk"."""

    addresses: tuple[SdkHolderEntry, ...]
    events_inconsistent: bool | UnsetType = UNSET


class NftHolders(_Page, frozen=True, gc=False, kw_only=True):
    """A page of holders, most token ids first; totals are of the collection, a name that it lacks is empty."""

    addresses: tuple[HolderEntry, ...]
    nft_collection_name: str
    nft_symbol: str
    total_holders: int
    total_tokens: int
    events_inconsistent: bool | UnsetType = UNSET


class SdkNftHolders(_Page, frozen=True, gc=False, kw_only=True):
    """A page of holders with `compat` "sdk"."""

    addresses: tuple[SdkHolderEntry, ...]
    nft_collection_name: tuple[str, ...]
    nft_symbol: tuple[str, ...]
    total_holders: int
    total_tokens: int
    events_inconsistent: bool | UnsetType = UNSET


class MetricsApiError(Resource, frozen=True, gc=False, kw_only=True):
    """An error of the Metrics API, whose message is a list."""

    message: tuple[str, ...]
    error: str
    status_code: int
    code: str
    detail: dict[str, Any]


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
    """Usage of one group in one bucket. groupValue: left out without groups; `other`: all but the busiest groups.

    medianResponseTimeMsecs: within 1 %; 0 if there is none. apiCreditsWasted: credits of invalid requests.
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
    """Usage of the forwarded RPC routes, newest bucket first; buckets without requests are left out."""

    aggregate_duration: TimeInterval
    metrics: tuple[UsageMetric, ...]
    network: UsageNetwork


class Error(Resource, frozen=True, gc=False, kw_only=True):
    """An error. error: the status text. code: stable, see docs/errors.md. detail: machine-readable."""

    message: str
    error: str
    status_code: int
    code: str
    detail: dict[str, Any]


_Percent = Annotated[int, Meta(ge=0, le=100)]


class AggregateSignaturesRequest(Resource, frozen=True, gc=False, kw_only=True):
    """A message to be signed, a justification, or both. Keys in kebab case mean the same."""

    message: Annotated[str, Meta(description="Hex of the unsigned message, with or without 0x.")] | UnsetType = UNSET
    justification: Annotated[str, Meta(description="Hex of the justification.")] | UnsetType = UNSET
    signing_subnet_id: (
        Annotated[str, Meta(description="Base58-check or hex; by default the subnet of the source chain.")] | UnsetType
    ) = UNSET
    quorum_percentage: Annotated[_Percent, Meta(description="By default 67.")] | UnsetType = UNSET
    quorum_percentage_buffer: (
        Annotated[_Percent, Meta(description="By default 0; quorum and buffer are at most 100 together.")] | UnsetType
    ) = UNSET
    p_chain_height: Annotated[int, Meta(ge=0, description="By default the proposed height, as with 0.")] | UnsetType = (
        UNSET
    )
    timeout_seconds: Annotated[float, Meta(ge=0, description="How long the caller waits.")] | UnsetType = UNSET
    destination_blockchain_id: (
        Annotated[str, Meta(description="The chain that has to accept the message: base58-check or hex.")] | UnsetType
    ) = UNSET
    report: (
        Annotated[bool, Meta(description="Return the report on the destination, and a message for its next epoch.")]
        | UnsetType
    ) = UNSET


class NextSignedMessage(Resource, frozen=True, gc=False, kw_only=True):
    """A second message, for the predicted height of the next epoch. error: the code, if it was not signed."""

    p_chain_height: str
    predicted: bool
    signed_message: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class SignedMessage(Resource, frozen=True, gc=False, kw_only=True):
    """The signed message, hex without 0x. superseded: the message that replaced it, if it is not valid any more.

    report: what decides whether the destination accepts it. next: a message for the next epoch, if it needs another.
    """

    signed_message: str
    superseded: dict[str, Any] | UnsetType = UNSET
    report: dict[str, Any] | UnsetType = UNSET
    next: NextSignedMessage | UnsetType = UNSET


class TestedCall(Resource, frozen=True, gc=False, kw_only=True):
    """A call of a contract at the destination, executed without being sent."""

    to: Annotated[str, Meta(description="The contract.")]
    from_: Annotated[str, Meta(description="The caller; by default the zero address.")] | UnsetType = field(
        name="from", default=UNSET
    )
    data: Annotated[str, Meta(description="Hex; by default empty.")] | UnsetType = UNSET
    gas: Annotated[int, Meta(ge=1, le=50_000_000, description="By default 5000000.")] | UnsetType = UNSET


class VerifyRequest(Resource, frozen=True, gc=False, kw_only=True):
    """A signed message and the chain that is to verify it. Keys in kebab case mean the same."""

    signed_message: Annotated[str, Meta(description="Hex of the signed message, with or without 0x.")]
    destination_blockchain_id: Annotated[str, Meta(description="Base58-check or hex.")]
    signing_subnet_id: (
        Annotated[str, Meta(description="Base58-check or hex; by default the one that the destination demands.")]
        | UnsetType
    ) = UNSET
    quorum_percentage: (
        Annotated[_Percent, Meta(description="Counts if it is higher than that of the destination.")] | UnsetType
    ) = UNSET
    call: TestedCall | UnsetType = UNSET


class PreflightAnswer(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the next block of the destination would accept a signed message, and why not.

    verifies_now: the signature alone. verifies_at: of the heights. reason: why the message is refused now, by its
    signature or its statement; left out if nothing is known against it.
    """

    verifies_now: bool
    verifies_at: list[str]
    reason: str | UnsetType = UNSET
    reason_text: str | UnsetType = UNSET
    message_id: str
    network_id: int
    source_blockchain_id: str
    destination: dict[str, Any]
    heights: list[dict[str, Any]]
    statement: dict[str, Any]
    advice: dict[str, Any] | UnsetType = UNSET
    call: dict[str, Any] | UnsetType = UNSET


class Explanation(Resource, frozen=True, gc=False, kw_only=True):
    """The plan for signing a transaction's message: the transaction, the message, and its signers."""


class KebabNextSignedMessage(Resource, frozen=True, gc=False, kw_only=True, rename="kebab"):
    """A second message, for the predicted height of the next epoch. error: the code, if it was not signed."""

    p_chain_height: str
    predicted: bool
    signed_message: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class KebabSignedMessage(Resource, frozen=True, gc=False, kw_only=True, rename="kebab"):
    """The signed message as the reference aggregator writes it. report: as in /v1, all its keys in kebab case."""

    signed_message: str
    report: dict[str, Any] | UnsetType = UNSET
    next: KebabNextSignedMessage | UnsetType = UNSET


class KebabError(Resource, frozen=True, gc=False, kw_only=True):
    """An error as the reference aggregator writes it."""

    error: str
    code: str
    detail: dict[str, Any]


class Health(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the daemon can sign: up with 200, down with 503."""

    status: str
    details: dict[str, Any]


class Readiness(Resource, frozen=True, gc=False, kw_only=True):
    """How much of each subnet's weight is connected, and what is missing."""

    ready: bool
    subnets: list[dict[str, Any]]
    faults: list[str] | UnsetType = UNSET
