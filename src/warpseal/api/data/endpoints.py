"""The endpoints of the Data API and of the Metrics API, one row each.

Source of truth: the specification's endpoints 3 to 19; operation ids and compute units are the
hosted service's, which has no forecast. The routes, the OpenAPI document, the bodies of pages, the
table of docs/data-api.md and the tests are made of these rows. The ports listen before handlers,
parsers and resources are loaded, so rows name them as texts: "module:name" below `warpseal`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from warpseal.api.http.operations import SIGNING

ParameterKind = Literal[
    "account",
    "addresses",
    "boolean",
    "continent",
    "country",
    "currency",
    "event types",
    "EVM feature",
    "ICM status",
    "id",
    "id text",
    "integer",
    "node id",
    "node ids",
    "reason",
    "signing block kind",
    "sort order",
    "text",
    "time interval",
    "transaction types",
    "uint256",
    "usage grouping",
    "validation status",
]
Admission = Literal["data", "metrics", "usage", "admin"]
"""The callers that are admitted.

data: Every caller within the rate limits of `/v1`.
metrics: Every caller within the rate limits of the Metrics API.
usage: Readers of the usage.
admin: Callers with the admin token.
"""

MAX_LIST_ENTRIES: Final = 64
MAX_PAGE_SIZE: Final = 100
MAX_METRICS_PAGE_SIZE: Final = 5_000
MAX_POINTS: Final = 2_160
MAX_TIMESTAMP: Final = 2**53
MAX_BLOCK_NUMBER: Final = 2**63 - 1


class Parameter(Struct, frozen=True):
    """A query parameter, or a field of the body of an administrator's POST.

    kind: It names the parser and the schema, which stand in parameters.py.
    default: A request without the parameter has this value, and the schema shows it.
    minimum, maximum: They bound an integer.
    """

    name: str
    kind: ParameterKind
    description: str
    default: int | str | None = None
    required: bool = False
    minimum: int | None = None
    maximum: int | None = None


class PageBody(Struct, frozen=True):
    """The body of a page: `nextPageToken`, the items under their name, and the fields of `beside`.

    items: The field that holds the items.
    resources: The class of each kind of item, as "module:class".
    title, description: The schema shows them.
    beside: The "module:class" of a resource whose fields stand behind the items.
    """

    items: str
    resources: tuple[str, ...]
    title: str
    description: str
    beside: str = ""


class EndpointRow(Struct, frozen=True, kw_only=True):
    """The row of one endpoint, from which its route, its schema and its page tokens are made.

    name: The operation id. Page tokens carry it, so it must never change.
    number: The specification gives the endpoint this number; None if the specification does not
    have it.
    bodies: A success has one of these bodies: a page, or the "module:class" of a resource. An
    endpoint has several
        if it serves several kinds of chains or dialects; it sends the first page among them.
    context: The "module:class" of the object that the handler takes.
    needs: The handler takes these fields of EndpointNeeds behind its context.
    units: A request costs this many compute units.
    since: The first version of Warpseal that had the endpoint.
    status: A success has this HTTP status.
    deprecated_at: The endpoint is deprecated from this time, in unix seconds.
    """

    name: str
    number: int | None = None
    path: str
    summary: str
    handler: str
    units: int
    since: str
    tag: str
    method: Literal["GET", "POST", "DELETE"] = "GET"
    parameters: tuple[Parameter, ...] = ()
    bodies: tuple[PageBody | str, ...] = ()
    context: str = ""
    needs: tuple[str, ...] = ()
    admission: Admission = "data"
    status: int = 200
    deprecated_at: int | None = None

    @property
    def page(self) -> PageBody:
        """The page that a list sends."""
        return next(body for body in self.bodies if isinstance(body, PageBody))

    @property
    def default_page_size(self) -> int:
        """The page size of a request that names none."""
        size = next(
            parameter.default for parameter in self.parameters if parameter.name == PAGE_SIZE.name
        )
        assert isinstance(size, int)
        return size


PRIMARY_NETWORK: Final = "Primary Network"
SUBNETS: Final = "Subnets"
EVM: Final = "EVM chains"
ICM: Final = "ICM messages"
METRICS_API: Final = "Metrics API"
USAGE: Final = "Usage"
EVENT_LOG: Final = "Events"

_NETWORK: Final = "/v1/networks/{network}"
_CHAIN: Final = _NETWORK + "/blockchains/{blockchainId}"
_EVM_CHAIN: Final = "/v1/chains/{chainId}"
_COLLECTION: Final = _EVM_CHAIN + "/nfts/collections/{address}/tokens"
_TOKEN: Final = _COLLECTION + "/{tokenId}"
_CONTRACT: Final = "/v2/chains/{chainId}/contracts/{address}"

_OF_PRIMARY: Final = "api.data.primary_context:PrimaryNetworkContext"
_OF_CHAIN: Final = "api.data.evm_context:EvmRequestContext"

# 2026-11-21, the day of the first version, which had the paths of /v1/icm as well.
_TELEPORTER_DEPRECATED_AT: Final = 1_795_219_200


def _page_size(default: int, maximum: int) -> Parameter:
    text = "How many items a page has at most; it may have fewer and not be the last."
    return Parameter("pageSize", "integer", text, default, minimum=1, maximum=maximum)


def _time(name: str, description: str) -> Parameter:
    return Parameter(name, "integer", description, minimum=0, maximum=MAX_TIMESTAMP)


def _block_number(name: str, description: str) -> Parameter:
    return Parameter(name, "integer", description, minimum=0, maximum=MAX_BLOCK_NUMBER)


ADDRESSES: Final = Parameter(
    "addresses",
    "addresses",
    f"Up to {MAX_LIST_ENTRIES} addresses, comma-separated: Bech32 with the network's prefix, P-, X-"
    " or C- in front or not; accounts of the C-Chain as 0x and 40 digits.",
)
START_TIMESTAMP: Final = _time("startTimestamp", "Unix seconds: items at this time and after it.")
END_TIMESTAMP: Final = _time("endTimestamp", "Unix seconds: items at this time and before it.")
SORT_ORDER: Final = Parameter("sortOrder", "sort order", "Oldest or newest first.", "desc")
PAGE_TOKEN: Final = Parameter(
    "pageToken",
    "text",
    "`nextPageToken` of the page before; valid 24 hours. It may come alone, or with the parameters"
    " repeated.",
)
PAGE_SIZE: Final = _page_size(10, MAX_PAGE_SIZE)
PAGED: Final = (PAGE_TOKEN, PAGE_SIZE)
START_KEY: Final = Parameter(
    "startKey", "text", "Another name of `pageToken`: `nextPageStartKey` of the page before."
)
METRICS_PAGED: Final = (PAGE_TOKEN, _page_size(1_000, MAX_METRICS_PAGE_SIZE))
NETWORK: Final = Parameter(
    "network", "text", "Only chains of this network: mainnet, fuji or testnet."
)

_CHAIN_NAME: Final = "base58-check or hex blockchain id, EVM chain id or alias."
_MESSAGE_NETWORK: Final = replace(
    NETWORK, description="Only messages of this network: mainnet, fuji or testnet."
)
_ICM_PAGE: Final = PageBody(
    "messages",
    ("api.data.bodies:IcmMessage",),
    "IcmMessages",
    "A page of ICM messages, newest first.",
)

EVENT_FILTERS: Final = (
    Parameter("types", "event types", "Only events of these types, repeated or comma-separated."),
    Parameter("sourceBlockchainId", "id text", "Only events about messages from this blockchain."),
    Parameter(
        "destinationBlockchainId", "id text", "Only events about messages to this blockchain."
    ),
    Parameter(
        "subnetId", "id text", "Only events about this subnet or L1, or messages that it signs."
    ),
)
BLOCK_KIND: Final = Parameter(
    "kind", "signing block kind", "What blocked messages have in common.", required=True
)

_BESIDE_CHAIN: Final = "api.data.bodies:ChainPageFields"


def _transactions(resource: str, title: str, description: str) -> PageBody:
    return PageBody("transactions", (resource,), title, description, _BESIDE_CHAIN)


_PRIMARY_ENDPOINTS: Final = (
    EndpointRow(
        name="listLatestPrimaryNetworkTransactions",
        number=3,
        path=_CHAIN + "/transactions",
        summary=(
            "Transactions of a primary chain: the latest ones, those of addresses, or those of an"
            " L1 validation."
        ),
        parameters=(
            ADDRESSES,
            Parameter(
                "l1ValidationId",
                "id",
                "P-Chain only: transactions that touch this L1 validation, base58-check or hex.",
            ),
            Parameter(
                "txTypes",
                "transaction types",
                "Types of transactions, repeated or comma-separated; only together with `addresses`"
                " or `l1ValidationId`.",
            ),
            START_TIMESTAMP,
            END_TIMESTAMP,
            *PAGED,
            SORT_ORDER,
        ),
        bodies=(
            _transactions(
                "resources.transactions:PChainTransaction",
                "PChainTransactions",
                "A page of P-Chain transactions.",
            ),
            _transactions(
                "resources.transactions:XChainTransaction",
                "XChainTransactions",
                "A page of X-Chain transactions.",
            ),
            _transactions(
                "resources.transactions:CChainTransaction",
                "CChainTransactions",
                "A page of the C-Chain's atomic transactions.",
            ),
            _transactions(
                "api.data.sdk_resources:SdkXChainTransaction",
                "SdkXChainTransactions",
                'A page of X-Chain transactions with `compat` "sdk".',
            ),
            _transactions(
                "api.data.sdk_resources:SdkCChainTransaction",
                "SdkCChainTransactions",
                'A page of the C-Chain\'s atomic transactions with `compat` "sdk".',
            ),
        ),
        handler="api.data.chain_endpoints:list_transactions",
        context=_OF_PRIMARY,
        units=100,
        since="0.1.0",
        tag=PRIMARY_NETWORK,
    ),
    EndpointRow(
        name="listLatestPrimaryNetworkBlocks",
        number=4,
        path=_CHAIN + "/blocks",
        summary="Blocks of a primary chain, newest first.",
        parameters=(START_TIMESTAMP, END_TIMESTAMP, *PAGED),
        bodies=(
            PageBody(
                "blocks",
                ("resources.blocks:PrimaryNetworkBlock",),
                "PrimaryNetworkBlocks",
                "A page of blocks, newest first.",
                _BESIDE_CHAIN,
            ),
        ),
        handler="api.data.chain_endpoints:list_blocks",
        context=_OF_PRIMARY,
        units=20,
        since="0.1.0",
        tag=PRIMARY_NETWORK,
    ),
    EndpointRow(
        name="getBlockchainById",
        number=5,
        path=_CHAIN,
        summary="A blockchain of any subnet or L1.",
        bodies=("resources.blocks:BlockchainDetails",),
        handler="api.data.chain_endpoints:get_blockchain",
        context=_OF_PRIMARY,
        units=20,
        since="0.1.0",
        tag=PRIMARY_NETWORK,
    ),
    EndpointRow(
        name="getChainIdsForAddresses",
        number=6,
        path=_NETWORK + "/addresses:listChainIds",
        summary="Which primary chains addresses have touched.",
        parameters=(replace(ADDRESSES, required=True),),
        bodies=("api.data.bodies:ChainInteractions",),
        handler="api.data.chain_endpoints:list_chain_ids",
        context=_OF_PRIMARY,
        units=100,
        since="0.1.0",
        tag=PRIMARY_NETWORK,
    ),
    EndpointRow(
        name="listHistoricalPrimaryNetworkRewards",
        number=7,
        path=_NETWORK + "/rewards",
        summary="Rewards that were paid to addresses, or for validations of nodes.",
        parameters=(
            ADDRESSES,
            Parameter(
                "nodeIds",
                "node ids",
                f"Up to {MAX_LIST_ENTRIES} node ids, comma-separated; `addresses` or `nodeIds` is"
                " required.",
            ),
            *PAGED,
            SORT_ORDER,
            Parameter(
                "currency",
                "currency",
                "Currency of `historicalPrice`, which is left out if no price is known.",
                "usd",
            ),
        ),
        bodies=(
            PageBody(
                "historicalRewards",
                ("api.data.staking_resources:HistoricalReward",),
                "HistoricalRewards",
                "A page of rewards.",
            ),
        ),
        handler="api.data.staking_endpoints:list_rewards",
        context=_OF_PRIMARY,
        needs=("prices",),
        units=100,
        since="0.1.0",
        tag=PRIMARY_NETWORK,
    ),
    EndpointRow(
        name="getSingleValidatorDetails",
        number=8,
        path=_NETWORK + "/validators/{nodeId}",
        summary="The validations of a node, of every subnet and state.",
        parameters=(
            *PAGED,
            Parameter(
                "validationStatus", "validation status", "Only validations with this status."
            ),
            SORT_ORDER,
        ),
        bodies=(
            PageBody(
                "validators",
                (
                    "api.data.staking_resources:PendingValidatorDetails",
                    "api.data.staking_resources:ActiveValidatorDetails",
                    "api.data.staking_resources:CompletedValidatorDetails",
                    "api.data.staking_resources:RemovedValidatorDetails",
                ),
                "Validators",
                "A page of a node's validations.",
            ),
        ),
        handler="api.data.staking_endpoints:get_validator",
        context=_OF_PRIMARY,
        needs=("uptimes",),
        units=20,
        since="0.1.0",
        tag=PRIMARY_NETWORK,
    ),
    EndpointRow(
        name="listL1Validators",
        path=_NETWORK + "/l1Validators",
        summary="Validators of L1s, with their weights and balances after the last indexed block.",
        parameters=(
            *PAGED,
            Parameter("l1ValidationId", "id", "Only this validation, base58-check or hex."),
            Parameter(
                "includeInactiveL1Validators",
                "boolean",
                "Also validators whose balance is used up or was taken back, and removed ones,"
                " whose weight is 0.",
            ),
            Parameter("nodeId", "node id", "Only validations of this node."),
            Parameter("subnetId", "id", "Only validators of this L1, base58-check or hex."),
        ),
        bodies=(
            PageBody(
                "validators",
                ("resources.l1_validators:CurrentL1Validator",),
                "CurrentL1Validators",
                "A page of validators of L1s.",
                "resources.l1_validators:L1ValidatorPageFields",
            ),
        ),
        handler="api.data.staking_endpoints:list_l1_validators",
        context=_OF_PRIMARY,
        units=20,
        since="0.2.0",
        tag=PRIMARY_NETWORK,
    ),
    EndpointRow(
        name="getSubnetForecast",
        path=_NETWORK + "/subnets/{subnetId}/forecast",
        summary=(
            "When the validators of a subnet leave its quorum, when that makes the quorum"
            " impossible, and what keeps it."
        ),
        bodies=("api.data.forecast_resources:Forecast",),
        handler="api.data.staking_endpoints:get_forecast",
        context=_OF_PRIMARY,
        needs=("forecasts",),
        units=100,
        since="0.1.0",
        tag=SUBNETS,
    ),
)

_EVM_ENDPOINTS: Final = (
    EndpointRow(
        name="getChainInfo",
        number=9,
        path=_EVM_CHAIN,
        summary="An EVM chain.",
        bodies=("api.data.bodies:EvmChainDetails",),
        handler="api.data.evm_endpoints:get_chain",
        context=_OF_CHAIN,
        units=1,
        since="0.1.0",
        tag=EVM,
    ),
    EndpointRow(
        name="supportedChains",
        path="/v1/chains",
        summary="The EVM chains that this daemon serves.",
        parameters=(
            NETWORK,
            Parameter("feature", "EVM feature", "Only chains with this feature."),
        ),
        bodies=("api.data.bodies:EvmChainList",),
        handler="api.data.evm_endpoints:list_chains",
        units=1,
        since="0.1.0",
        tag=EVM,
    ),
    EndpointRow(
        name="getBlock",
        number=10,
        path=_EVM_CHAIN + "/blocks/{blockId}",
        summary="A block of an EVM chain.",
        bodies=("resources.evm:EvmBlock",),
        handler="api.data.evm_endpoints:get_block",
        context=_OF_CHAIN,
        units=10,
        since="0.1.0",
        tag=EVM,
    ),
    EndpointRow(
        name="listErc1155Transactions",
        number=11,
        path=_EVM_CHAIN + "/addresses/{address}/transactions:listErc1155",
        summary=(
            "ERC-1155 transfers that an address sent or received; a batch transfer has one entry"
            " per token id."
        ),
        parameters=(
            _block_number("startBlock", "Items in this block and after it."),
            _block_number("endBlock", "Items before this block."),
            *PAGED,
            SORT_ORDER,
        ),
        bodies=(
            PageBody(
                "transactions",
                ("resources.evm:Erc1155Transfer",),
                "Erc1155Transfers",
                "A page of ERC-1155 transfers.",
            ),
        ),
        handler="api.data.evm_endpoints:list_erc1155_transfers",
        context=_OF_CHAIN,
        units=20,
        since="0.1.0",
        tag=EVM,
    ),
    EndpointRow(
        name="listCollectibleBalances",
        number=12,
        path=_EVM_CHAIN + "/addresses/{address}/balances:listCollectibles",
        summary="NFTs that an address holds.",
        parameters=(
            PAGE_TOKEN,
            _page_size(10, 500),
            Parameter("contractAddress", "account", "Only NFTs of this contract."),
        ),
        bodies=(
            PageBody(
                "collectibleBalances",
                ("resources.evm:CollectibleBalance",),
                "CollectibleBalances",
                "A page of the NFTs that an address holds.",
            ),
        ),
        handler="api.data.evm_endpoints:list_collectibles",
        context=_OF_CHAIN,
        units=20,
        since="0.1.0",
        tag=EVM,
    ),
    EndpointRow(
        name="listContractDeployments",
        number=13,
        path=_EVM_CHAIN + "/contracts/{address}/deployments",
        summary="Contracts that an account deployed, or that a contract created; newest first.",
        parameters=PAGED,
        bodies=(
            PageBody(
                "contracts",
                ("resources.evm:DeployedContract",),
                "DeployedContracts",
                "A page of the contracts that an address deployed.",
            ),
        ),
        handler="api.data.evm_endpoints:list_deployments",
        context=_OF_CHAIN,
        units=20,
        since="0.1.0",
        tag=EVM,
    ),
    EndpointRow(
        name="listTokens",
        number=14,
        path=_COLLECTION,
        summary="Tokens of an NFT collection.",
        parameters=PAGED,
        bodies=(
            PageBody(
                "tokens",
                ("resources.evm:NftToken",),
                "NftTokens",
                "A page of the tokens of a collection.",
            ),
        ),
        handler="api.data.evm_endpoints:list_tokens",
        context=_OF_CHAIN,
        units=20,
        since="0.1.0",
        tag=EVM,
    ),
    EndpointRow(
        name="getTokenDetails",
        path=_TOKEN,
        summary="A token of an NFT collection.",
        bodies=("resources.evm:NftToken",),
        handler="api.data.evm_endpoints:get_token",
        context=_OF_CHAIN,
        units=20,
        since="0.1.0",
        tag=EVM,
    ),
    EndpointRow(
        name="reindexNft",
        number=15,
        path=_TOKEN + ":reindex",
        method="POST",
        summary="Fetch the metadata of a token again; once per hour and token.",
        handler="api.data.evm_endpoints:reindex",
        context=_OF_CHAIN,
        units=10,
        since="0.1.0",
        status=201,
        tag=EVM,
    ),
)

_ICM_ENDPOINTS: Final = (
    EndpointRow(
        name="listIcmMessages",
        path="/v1/icm/messages",
        summary=(
            "ICM (Teleporter) messages between the indexed EVM chains and others, newest first."
        ),
        parameters=(
            Parameter(
                "blockchainId", "text", f"Only messages from or to this chain: {_CHAIN_NAME}"
            ),
            Parameter(
                "sourceBlockchainId", "text", f"Only messages from this chain: {_CHAIN_NAME}"
            ),
            Parameter(
                "destinationBlockchainId", "text", f"Only messages to this chain: {_CHAIN_NAME}"
            ),
            Parameter("from", "account", "Only messages of this sender, an account or contract."),
            Parameter("to", "account", "Only messages to this recipient, an account or contract."),
            Parameter("status", "ICM status", "Only messages with this status."),
            Parameter(
                "isStuck",
                "boolean",
                "Only messages that are stuck, or only others: not received, or not executed, five"
                " minutes later.",
            ),
            _MESSAGE_NETWORK,
            START_TIMESTAMP,
            END_TIMESTAMP,
            *PAGED,
        ),
        bodies=(_ICM_PAGE,),
        handler="api.data.icm_endpoints:list_messages",
        needs=("obstacles",),
        units=100,
        since="0.2.0",
        tag=ICM,
    ),
    EndpointRow(
        name="getIcmMessage",
        path="/v1/icm/messages/{messageId}",
        summary="An ICM message.",
        bodies=("api.data.bodies:IcmMessage",),
        handler="api.data.icm_endpoints:get_message",
        needs=("obstacles",),
        units=10,
        since="0.2.0",
        tag=ICM,
    ),
    EndpointRow(
        name="listIcmMessagesByAddress",
        path="/v1/icm/addresses/{address}/messages",
        summary="ICM messages that an address sent or received, newest first.",
        parameters=(_MESSAGE_NETWORK, START_TIMESTAMP, END_TIMESTAMP, *PAGED),
        bodies=(_ICM_PAGE,),
        handler="api.data.icm_endpoints:list_messages",
        needs=("obstacles",),
        units=100,
        since="0.2.0",
        tag=ICM,
    ),
)

_DEPRECATED_PAGE: Final = PageBody(
    "messages",
    ("api.data.bodies:DeprecatedIcmMessage",),
    "DeprecatedIcmMessages",
    "A page of ICM messages at the deprecated paths.",
)


def _at_teleporter(endpoint: EndpointRow) -> EndpointRow:
    """Return an endpoint of ICM messages at its path of Teleporter."""
    is_list = isinstance(endpoint.bodies[0], PageBody)
    return replace(
        endpoint,
        name=endpoint.name.replace("Icm", "Teleporter"),
        path=endpoint.path.replace("/icm/", "/teleporter/"),
        summary=f"Deprecated: `{endpoint.name}`.",
        bodies=(_DEPRECATED_PAGE if is_list else "api.data.bodies:DeprecatedIcmMessage",),
        deprecated_at=_TELEPORTER_DEPRECATED_AT,
    )


_USAGE_ENDPOINTS: Final = (
    EndpointRow(
        name="getPrimaryNetworkRpcUsageMetrics",
        number=16,
        path="/v1/primaryNetworkRpcUsageMetrics",
        summary="Usage of the RPC routes that this daemon forwards, by hour, day, week or month.",
        parameters=(
            replace(
                NETWORK,
                description="The network of this daemon: mainnet, fuji or testnet.",
                required=True,
            ),
            Parameter("timeInterval", "time interval", "Length of the buckets.", "daily"),
            _time(
                "startTimestamp",
                "Unix seconds, rounded down to 00:00 UTC: buckets that overlap the time from there"
                " on. By default 1, 30, 182 or 365 days before the end, by interval.",
            ),
            _time(
                "endTimestamp",
                "Unix seconds, rounded down to 00:00 UTC: the time before it. By default now. Both"
                " bounds on one day mean that day.",
            ),
            Parameter("groupBy", "usage grouping", "Label by which each bucket is split."),
            Parameter(
                "responseCode",
                "text",
                "Only responses with this HTTP status; 101: calls on WebSockets.",
            ),
            Parameter(
                "requestPath",
                "text",
                "Only this route, with any alias of its chain, such as /ext/bc/C/rpc.",
            ),
            Parameter(
                "country",
                "country",
                "Only clients of this country; XX: unknown, T1: the Tor network.",
            ),
            Parameter(
                "continent",
                "continent",
                "Only clients of this continent: AF, AN, AS, EU, NA, OC, SA; XX: unknown.",
            ),
            Parameter(
                "userAgent",
                "text",
                "Only clients with this product name, as groups by userAgent show it.",
            ),
            Parameter("rpcMethod", "text", "Only calls of this method."),
        ),
        bodies=("api.data.bodies:UsageMetrics",),
        handler="api.data.usage_endpoint:get_usage",
        needs=("usage",),
        admission="usage",
        units=200,
        since="0.1.0",
        tag=USAGE,
    ),
)

_HOLDERS_DESCRIPTION: Final = (
    "A page of holders, most token ids first; totals are of the collection, a name that it lacks is"
    " empty."
)
_METRICS_ENDPOINTS: Final = (
    EndpointRow(
        name="getAvgTps",
        number=17,
        path="/v1/avg_tps/{chainId}",
        summary=(
            "Average transactions per second of each UTC day, newest first; with `total`,"
            " `mainnet`, `testnet` of all chains."
        ),
        parameters=(
            _time("from", "Unix seconds: points at this time and after it."),
            _time("to", "Unix seconds: points at this time and before it."),
            PAGE_TOKEN,
            START_KEY,
            _page_size(100, MAX_POINTS),
        ),
        bodies=(
            PageBody(
                "results",
                ("api.data.bodies:TpsPoint",),
                "AverageTps",
                "A page of days, newest first. lastRun: when the index last advanced."
                " nextPageStartKey: nextPageToken.",
                "api.data.bodies:SeriesPageFields",
            ),
        ),
        handler="api.data.metrics_endpoints:get_avg_tps",
        admission="metrics",
        units=20,
        since="0.1.0",
        tag=METRICS_API,
    ),
    EndpointRow(
        name="getAddressesByBalanceOverTime",
        number=18,
        path=_CONTRACT + "/balances",
        summary=(
            "Addresses that held more of an ERC-20 token than a threshold within a time, and their"
            " latest balances."
        ),
        parameters=(
            Parameter(
                "threshold",
                "uint256",
                "Only addresses whose balance was above it, in the smallest unit of the token:"
                " decimal, 0..2^256-1.",
                required=True,
            ),
            START_TIMESTAMP,
            END_TIMESTAMP,
            *METRICS_PAGED,
        ),
        bodies=(
            PageBody(
                "addresses",
                ("api.data.bodies:HolderEntry",),
                "AddressesAboveThreshold",
                "A page of addresses, largest balance first. eventsInconsistent: the contract's"
                " events contradict each other.",
                "api.data.bodies:TokenPageFields",
            ),
            PageBody(
                "addresses",
                ("api.data.bodies:SdkHolderEntry",),
                "SdkAddressesAboveThreshold",
                'A page of addresses with `compat` "sdk".',
                "api.data.bodies:TokenPageFields",
            ),
        ),
        handler="api.data.metrics_endpoints:list_token_holders",
        context=_OF_CHAIN,
        admission="metrics",
        units=1_000,
        since="0.1.0",
        tag=METRICS_API,
    ),
    EndpointRow(
        name="getNftHoldersByContractAddress",
        number=19,
        path=_CONTRACT + "/nfts:listHolders",
        summary="Addresses that hold NFTs of a collection, and how many token ids each holds.",
        parameters=METRICS_PAGED,
        bodies=(
            PageBody(
                "addresses",
                ("api.data.bodies:HolderEntry",),
                "NftHolders",
                _HOLDERS_DESCRIPTION,
                "api.data.bodies:CollectionPageFields",
            ),
            PageBody(
                "addresses",
                ("api.data.bodies:SdkHolderEntry",),
                "SdkNftHolders",
                'A page of holders with `compat` "sdk".',
                "api.data.bodies:SdkCollectionPageFields",
            ),
        ),
        handler="api.data.metrics_endpoints:list_nft_holders",
        context=_OF_CHAIN,
        admission="metrics",
        units=500,
        since="0.1.0",
        tag=METRICS_API,
    ),
)

_EVENT_ENDPOINTS: Final = (
    EndpointRow(
        name="listenEvents",
        path="/v1/events",
        summary=(
            "Events of this daemon, or of all daemons on its store, as server-sent events: stored"
            " ones first, then new ones."
        ),
        parameters=(
            Parameter(
                "after",
                "text",
                "A cursor: events behind it, the stored ones first. Without it and the header"
                " `Last-Event-ID` from now on.",
            ),
            *EVENT_FILTERS,
        ),
        handler="api.data.event_endpoints:listen",
        needs=("feed",),
        units=10,
        since="0.2.0",
        tag=EVENT_LOG,
    ),
    EndpointRow(
        name="listWebhooks",
        path="/v1/webhooks",
        summary="All webhooks.",
        bodies=("events.webhooks:WebhookList",),
        handler="api.data.event_endpoints:list_webhooks",
        needs=("feed",),
        admission="admin",
        units=10,
        since="0.2.0",
        tag=EVENT_LOG,
    ),
    EndpointRow(
        name="addWebhook",
        path="/v1/webhooks",
        method="POST",
        summary=(
            "Send events to a URL from now on; only this response has the secret that signs the"
            " requests."
        ),
        parameters=(
            Parameter("url", "text", "Where events are sent.", required=True),
            *EVENT_FILTERS,
        ),
        bodies=("events.webhooks:Webhook",),
        handler="api.data.event_endpoints:add_webhook",
        needs=("feed",),
        admission="admin",
        units=10,
        since="0.2.0",
        status=201,
        tag=EVENT_LOG,
    ),
    EndpointRow(
        name="removeWebhook",
        path="/v1/webhooks/{webhookId}",
        method="DELETE",
        summary="Send no more events.",
        bodies=("events.webhooks:Webhook",),
        handler="api.data.event_endpoints:remove_webhook",
        needs=("feed",),
        admission="admin",
        units=10,
        since="0.2.0",
        tag=EVENT_LOG,
    ),
    EndpointRow(
        name="testWebhook",
        path="/v1/webhooks/{webhookId}:test",
        method="POST",
        summary=(
            "Send a request without events; if that succeeds, a webhook that fails or is paused"
            " continues."
        ),
        bodies=("events.webhooks:WebhookDelivery",),
        handler="api.data.event_endpoints:test_webhook",
        needs=("feed",),
        admission="admin",
        units=10,
        since="0.2.0",
        tag=EVENT_LOG,
    ),
)

_SIGNING_BLOCK_ENDPOINTS: Final = (
    EndpointRow(
        name="listSigningBlocks",
        path="/v1/signing-blocks",
        summary="All signing blocks.",
        bodies=("api.data.bodies:SigningBlockList",),
        handler="api.data.signing_block_endpoints:list_blocks",
        needs=("signing_blocks",),
        admission="admin",
        units=10,
        since="0.2.0",
        tag=SIGNING,
    ),
    EndpointRow(
        name="addSigningBlock",
        path="/v1/signing-blocks",
        method="POST",
        summary="Disable signing, on all daemons of the store.",
        parameters=(
            BLOCK_KIND,
            Parameter("value", "text", "The chain, sender or message.", required=True),
            Parameter("reason", "reason", "Why, for callers.", required=True),
        ),
        bodies=("store.values:SigningBlock",),
        handler="api.data.signing_block_endpoints:add",
        needs=("signing_blocks",),
        admission="admin",
        units=10,
        since="0.2.0",
        status=201,
        tag=SIGNING,
    ),
    EndpointRow(
        name="removeSigningBlock",
        path="/v1/signing-blocks/{kind}/{value}",
        method="DELETE",
        summary="Enable signing again.",
        bodies=("store.values:SigningBlock",),
        handler="api.data.signing_block_endpoints:remove",
        needs=("signing_blocks",),
        admission="admin",
        units=10,
        since="0.2.0",
        tag=SIGNING,
    ),
)

ENDPOINTS: Final = (
    *_PRIMARY_ENDPOINTS,
    *_EVM_ENDPOINTS,
    *_ICM_ENDPOINTS,
    *map(_at_teleporter, _ICM_ENDPOINTS),
    *_USAGE_ENDPOINTS,
    *_METRICS_ENDPOINTS,
    *_EVENT_ENDPOINTS,
    *_SIGNING_BLOCK_ENDPOINTS,
)
_BY_NAME: Final = {endpoint.name: endpoint for endpoint in ENDPOINTS}


# Each request loads its handler and its context.
@cache
def load(location: str) -> Any:
    """Return what a row names: "module:name" below `warpseal`."""
    module, _, name = location.partition(":")
    return getattr(import_module(f"warpseal.{module}"), name)


def find_endpoint(name: str) -> EndpointRow:
    """Return an endpoint by its operation id."""
    return _BY_NAME[name]
