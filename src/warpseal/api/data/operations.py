"""The operations of the Data API and of the Metrics API: paths, parameters, responses and compute units.

Source of truth: the specification's endpoints 3 to 19; operation ids and compute units are the hosted
service's, which has no forecast. The routes are mounted from this table and the OpenAPI document is made of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from warpseal.resources.blocks import BlockchainDetails
from warpseal.resources.evm import EvmBlock, NftToken
from warpseal.runtime.lazy import LazyModule

if TYPE_CHECKING:
    from warpseal.api.data import bodies, forecast_resources
    from warpseal.api.data import parameters as p
    from warpseal.resources.base import Resource
else:
    bodies = LazyModule("warpseal.api.data.bodies")
    forecast_resources = LazyModule("warpseal.api.data.forecast_resources")
    p = LazyModule("warpseal.api.data.parameters")

PRIMARY_NETWORK: Final = "Primary Network"
SUBNETS: Final = "Subnets"
EVM: Final = "EVM chains"
ICM: Final = "ICM messages"
METRICS_API: Final = "Metrics API"
USAGE: Final = "Usage"
EVENT_LOG: Final = "Events"
# 2026-11-21, the day of the first version, which had the paths of /v1/icm as well.
_TELEPORTER_DEPRECATED_AT: Final = 1_795_219_200
_NETWORKS: Final = "/v1/networks/{network}"
_CHAIN: Final = _NETWORKS + "/blockchains/{blockchainId}"
_EVM_CHAIN: Final = "/v1/chains/{chainId}"
_COLLECTION: Final = _EVM_CHAIN + "/nfts/collections/{address}/tokens"
_TOKEN: Final = _COLLECTION + "/{tokenId}"
_CONTRACT: Final = "/v2/chains/{chainId}/contracts/{address}"


class Operation(Struct, frozen=True):
    """An endpoint. path: a template. units: compute units of a request.

    list_parameters, list_resources: return the parameters, and the resources of a success; the ports listen before the
    modules of either are loaded. method: POST: an action, whose success is status 201 without a body.
    """

    name: str
    path: str
    summary: str
    list_parameters: Callable[[], tuple[p.Parameter, ...]]
    list_resources: Callable[[], tuple[type[Resource], ...]]
    units: int
    tag: str = PRIMARY_NETWORK
    method: Literal["GET", "POST", "DELETE"] = "GET"
    deprecated_at: int | None = None

    @property
    def parameters(self) -> tuple[p.Parameter, ...]:
        """The query parameters."""
        return self.list_parameters()

    @property
    def resources(self) -> tuple[type[Resource], ...]:
        """The resources of a success."""
        return self.list_resources()

    @property
    def default_page_size(self) -> int:
        """The page size of a request that names none."""
        size = next(parameter.default for parameter in self.parameters if parameter.name == p.PAGE_SIZE.name)
        assert isinstance(size, int)
        return size


def _paged() -> tuple[p.Parameter, ...]:
    return p.PAGE_TOKEN, p.PAGE_SIZE


def _deprecated(operation: Operation, name: str, list_resources: Callable[[], tuple[type[Resource], ...]]) -> Operation:
    """Return an operation on ICM messages at its path of Teleporter."""
    path, summary = operation.path.replace("/icm/", "/teleporter/"), f"Deprecated: `{operation.name}`."
    return replace(
        operation,
        name=name,
        path=path,
        summary=summary,
        list_resources=list_resources,
        deprecated_at=_TELEPORTER_DEPRECATED_AT,
    )


TRANSACTIONS: Final = Operation(
    "listLatestPrimaryNetworkTransactions",
    _CHAIN + "/transactions",
    "Transactions of a primary chain: the latest ones, those of addresses, or those of an L1 validation.",
    lambda: (
        p.ADDRESSES,
        p.L1_VALIDATION_ID,
        p.TX_TYPES,
        p.START_TIMESTAMP,
        p.END_TIMESTAMP,
        *_paged(),
        p.SORT_ORDER,
    ),
    lambda: (
        bodies.PChainTransactions,
        bodies.XChainTransactions,
        bodies.CChainTransactions,
        bodies.SdkXChainTransactions,
        bodies.SdkCChainTransactions,
    ),
    100,
)
BLOCKS: Final = Operation(
    "listLatestPrimaryNetworkBlocks",
    _CHAIN + "/blocks",
    "Blocks of a primary chain, newest first.",
    lambda: (p.START_TIMESTAMP, p.END_TIMESTAMP, *_paged()),
    lambda: (bodies.PrimaryNetworkBlocks,),
    20,
)
BLOCKCHAIN: Final = Operation(
    "getBlockchainById", _CHAIN, "A blockchain of any subnet or L1.", lambda: (), lambda: (BlockchainDetails,), 20
)
CHAIN_IDS: Final = Operation(
    "getChainIdsForAddresses",
    _NETWORKS + "/addresses:listChainIds",
    "Which primary chains addresses have touched.",
    lambda: (p.REQUIRED_ADDRESSES,),
    lambda: (bodies.ChainInteractions,),
    100,
)
REWARDS: Final = Operation(
    "listHistoricalPrimaryNetworkRewards",
    _NETWORKS + "/rewards",
    "Rewards that were paid to addresses, or for validations of nodes.",
    lambda: (p.ADDRESSES, p.NODE_IDS, *_paged(), p.SORT_ORDER, p.CURRENCY),
    lambda: (bodies.HistoricalRewards,),
    100,
)
VALIDATOR: Final = Operation(
    "getSingleValidatorDetails",
    _NETWORKS + "/validators/{nodeId}",
    "The validations of a node, of every subnet and state.",
    lambda: (*_paged(), p.VALIDATION_STATUS, p.SORT_ORDER),
    lambda: (bodies.Validators,),
    20,
)

FORECAST: Final = Operation(
    "getSubnetForecast",
    _NETWORKS + "/subnets/{subnetId}/forecast",
    "When the validators of a subnet leave its quorum, when that makes the quorum impossible, and what keeps it.",
    lambda: (),
    lambda: (forecast_resources.Forecast,),
    100,
    SUBNETS,
)

EVM_CHAIN: Final = Operation(
    "getChainInfo", _EVM_CHAIN, "An EVM chain.", lambda: (), lambda: (bodies.EvmChainDetails,), 1, EVM
)
EVM_CHAINS: Final = Operation(
    "supportedChains",
    "/v1/chains",
    "The EVM chains that this daemon serves.",
    lambda: (p.NETWORK, p.FEATURE),
    lambda: (bodies.EvmChainList,),
    1,
    EVM,
)
EVM_BLOCK: Final = Operation(
    "getBlock", _EVM_CHAIN + "/blocks/{blockId}", "A block of an EVM chain.", lambda: (), lambda: (EvmBlock,), 10, EVM
)
ERC1155_TRANSFERS: Final = Operation(
    "listErc1155Transactions",
    _EVM_CHAIN + "/addresses/{address}/transactions:listErc1155",
    "ERC-1155 transfers that an address sent or received; a batch transfer has one entry per token id.",
    lambda: (p.START_BLOCK, p.END_BLOCK, *_paged(), p.SORT_ORDER),
    lambda: (bodies.Erc1155Transfers,),
    20,
    EVM,
)
COLLECTIBLES: Final = Operation(
    "listCollectibleBalances",
    _EVM_CHAIN + "/addresses/{address}/balances:listCollectibles",
    "NFTs that an address holds.",
    lambda: (p.PAGE_TOKEN, p.COLLECTIBLES_PAGE_SIZE, p.CONTRACT_ADDRESS),
    lambda: (bodies.CollectibleBalances,),
    20,
    EVM,
)
DEPLOYMENTS: Final = Operation(
    "listContractDeployments",
    _EVM_CHAIN + "/contracts/{address}/deployments",
    "Contracts that an account deployed, or that a contract created; newest first.",
    _paged,
    lambda: (bodies.DeployedContracts,),
    20,
    EVM,
)
TOKENS: Final = Operation(
    "listTokens", _COLLECTION, "Tokens of an NFT collection.", _paged, lambda: (bodies.NftTokens,), 20, EVM
)
TOKEN: Final = Operation(
    "getTokenDetails", _TOKEN, "A token of an NFT collection.", lambda: (), lambda: (NftToken,), 20, EVM
)
REINDEX: Final = Operation(
    "reindexNft",
    _TOKEN + ":reindex",
    "Fetch the metadata of a token again; once per hour and token.",
    lambda: (),
    lambda: (),
    10,
    EVM,
    "POST",
)

ICM_MESSAGES: Final = Operation(
    "listIcmMessages",
    "/v1/icm/messages",
    "ICM (Teleporter) messages between the indexed EVM chains and others, newest first.",
    lambda: (
        *(p.MESSAGE_CHAIN, p.SOURCE, p.DESTINATION, p.SENDER, p.RECIPIENT, p.MESSAGE_STATUS, p.IS_STUCK),
        p.MESSAGE_NETWORK,
        *(p.START_TIMESTAMP, p.END_TIMESTAMP),
        *_paged(),
    ),
    lambda: (bodies.IcmMessages,),
    100,
    ICM,
)
ICM_MESSAGE: Final = Operation(
    "getIcmMessage",
    "/v1/icm/messages/{messageId}",
    "An ICM message.",
    lambda: (),
    lambda: (bodies.IcmMessage,),
    10,
    ICM,
)
ICM_MESSAGES_OF_ADDRESS: Final = Operation(
    "listIcmMessagesByAddress",
    "/v1/icm/addresses/{address}/messages",
    "ICM messages that an address sent or received, newest first.",
    lambda: (p.MESSAGE_NETWORK, p.START_TIMESTAMP, p.END_TIMESTAMP, *_paged()),
    lambda: (bodies.IcmMessages,),
    100,
    ICM,
)
TELEPORTER_MESSAGES: Final = _deprecated(
    ICM_MESSAGES, "listTeleporterMessages", lambda: (bodies.DeprecatedIcmMessages,)
)
TELEPORTER_MESSAGE: Final = _deprecated(ICM_MESSAGE, "getTeleporterMessage", lambda: (bodies.DeprecatedIcmMessage,))
TELEPORTER_MESSAGES_OF_ADDRESS: Final = _deprecated(
    ICM_MESSAGES_OF_ADDRESS, "listTeleporterMessagesByAddress", lambda: (bodies.DeprecatedIcmMessages,)
)
TELEPORTER: Final = (TELEPORTER_MESSAGES, TELEPORTER_MESSAGE, TELEPORTER_MESSAGES_OF_ADDRESS)

AVG_TPS: Final = Operation(
    "getAvgTps",
    "/v1/avg_tps/{chainId}",
    "Average transactions per second of each UTC day, newest first; with `total`, `mainnet`, `testnet` of all chains.",
    lambda: (p.FROM, p.TO, p.PAGE_TOKEN, p.START_KEY, p.SERIES_PAGE_SIZE),
    lambda: (bodies.AverageTps,),
    20,
    METRICS_API,
)
TOKEN_HOLDERS: Final = Operation(
    "getAddressesByBalanceOverTime",
    _CONTRACT + "/balances",
    "Addresses that held more of an ERC-20 token than a threshold within a time, and their latest balances.",
    lambda: (p.THRESHOLD, p.START_TIMESTAMP, p.END_TIMESTAMP, p.PAGE_TOKEN, p.METRICS_PAGE_SIZE),
    lambda: (bodies.AddressesAboveThreshold, bodies.SdkAddressesAboveThreshold),
    1_000,
    METRICS_API,
)
NFT_HOLDERS: Final = Operation(
    "getNftHoldersByContractAddress",
    _CONTRACT + "/nfts:listHolders",
    "Addresses that hold NFTs of a collection, and how many token ids each holds.",
    lambda: (p.PAGE_TOKEN, p.METRICS_PAGE_SIZE),
    lambda: (bodies.NftHolders, bodies.SdkNftHolders),
    500,
    METRICS_API,
)
RPC_USAGE: Final = Operation(
    "getPrimaryNetworkRpcUsageMetrics",
    "/v1/primaryNetworkRpcUsageMetrics",
    "Usage of the RPC routes that this daemon forwards, by hour, day, week or month.",
    lambda: (p.REQUIRED_NETWORK, p.TIME_INTERVAL, p.USAGE_START, p.USAGE_END, p.GROUP_BY, *p.USAGE_FILTERS),
    lambda: (bodies.UsageMetrics,),
    200,
    USAGE,
)
EVENTS: Final = Operation(
    "listenEvents",
    "/v1/events",
    "Events of this daemon, or of all daemons on its store, as server-sent events: stored ones first, then new ones.",
    lambda: (p.AFTER, *p.EVENT_FILTERS),
    lambda: (),
    10,
    EVENT_LOG,
)

WEBHOOKS: Final = replace(
    EVENTS, name="webhooks", path="/v1/webhooks", list_parameters=lambda: (p.WEBHOOK_URL, *p.EVENT_FILTERS)
)
WEBHOOK: Final = replace(WEBHOOKS, path="/v1/webhooks/{webhookId}", method="DELETE")
WEBHOOK_TEST: Final = replace(WEBHOOKS, path="/v1/webhooks/{webhookId}:test", method="POST")

SIGNING_BLOCKS: Final = replace(
    EVENTS, name="signingBlocks", path="/v1/signing-blocks", list_parameters=lambda: p.BLOCK_FIELDS
)
SIGNING_BLOCK: Final = replace(SIGNING_BLOCKS, path="/v1/signing-blocks/{kind}/{value}", method="DELETE")

OPERATIONS: Final = (
    *(TRANSACTIONS, BLOCKS, BLOCKCHAIN, CHAIN_IDS, REWARDS, VALIDATOR, FORECAST),
    *(EVM_CHAIN, EVM_CHAINS, EVM_BLOCK, ERC1155_TRANSFERS, COLLECTIBLES, DEPLOYMENTS, TOKENS, TOKEN, REINDEX),
    *(ICM_MESSAGES, ICM_MESSAGE, ICM_MESSAGES_OF_ADDRESS, *TELEPORTER),
    RPC_USAGE,
    *(AVG_TPS, TOKEN_HOLDERS, NFT_HOLDERS),
)
