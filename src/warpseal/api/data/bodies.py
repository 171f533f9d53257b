"""JSON bodies of the Data API and of the Metrics API: pages of resources. A last page has no nextPageToken."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, field

from warpseal.api.data.sdk_resources import SdkCChainTransaction, SdkXChainTransaction
from warpseal.api.data.staking_resources import (
    ActiveValidatorDetails,
    CompletedValidatorDetails,
    HistoricalReward,
    PendingValidatorDetails,
    RemovedValidatorDetails,
)
from warpseal.icm.resources import WarpsealBlock
from warpseal.resources.base import UNSET, PrimaryNetworkChainName, Resource, UnsetType
from warpseal.resources.blocks import PrimaryNetworkBlock
from warpseal.resources.evm import CollectibleBalance, DeployedContract, Erc1155Transfer, IcmStatus, NftToken
from warpseal.resources.transactions import CChainTransaction, PChainTransaction, XChainTransaction
from warpseal.store.values import SigningBlock


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


class IcmReceipt(Resource, frozen=True, gc=False, kw_only=True):
    """A receipt that the message carries: for a message of the other direction, and the account that gets its fee."""

    received_message_nonce: str
    relayer_reward_address: str


class IcmRewardDetails(Resource, frozen=True, gc=False, kw_only=True):
    """The fee of a message in the smallest unit of its ERC-20 token; an unknown name or symbol is empty."""

    address: str
    name: str
    symbol: str
    decimals: int
    erc_type: Literal["ERC-20"] = "ERC-20"
    value: str


class IcmSourceTransaction(Resource, frozen=True, gc=False, kw_only=True):
    """The transaction that sent a message. timestamp: Unix seconds. gasSpent: its fee in wei."""

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
    """An ICM message. An unknown EVM chain id is empty. data: left out if only the source would know it."""

    icm_contract_address: str


class DeprecatedIcmMessage(_Message, frozen=True, gc=False, kw_only=True):
    """An ICM message at the deprecated paths. icmContractAddress: of `delivered_source_not_indexed` only."""

    teleporter_contract_address: str
    icm_contract_address: str | UnsetType = UNSET


class IcmMessages(_Page, frozen=True, gc=False, kw_only=True):
    """A page of ICM messages, newest first."""

    messages: tuple[IcmMessage, ...]


class DeprecatedIcmMessages(_Page, frozen=True, gc=False, kw_only=True):
    """A page of ICM messages at the deprecated paths."""

    messages: tuple[DeprecatedIcmMessage, ...]


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
