"""What the published SDKs insist on, as strict models: every required key with its type, every
closed list of values.

Source of truth: the validators of @avalabs/avacloud-sdk 0.13.0 and @avalanche-sdk/chainkit 0.3.13:
keys that they do not know are ignored, a missing or null one refuses the whole page, and pages of
transactions are tried as P, X and C.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

Network = Literal["mainnet", "fuji", "testnet"]
AssetType = Literal["secp256k1", "nft"]
ChainId = Literal[
    "11111111111111111111111111111111LpoYY",
    "2oYMBNV4eNHyqk2fjjV5nVQLDbtmNJzq5s3qs3Lo6ftnC6FByM",
    "2JVSBoinj9C2J33VntvzYtVJNZdN2NKiwwKjcumHUWEb5DbBrm",
    "2q9e4r6Mu3U68nU1fYjgbR6JvwrRx36CohpAX5UQxse55x1Q5",
    "yH8D7ThNJkxmtkuv2jgBa4P1Rn3Qpr4pPr7QYNfcdoS6k6HWp",
]
PType = Literal[
    "AddValidatorTx", "AddSubnetValidatorTx", "AddDelegatorTx", "CreateChainTx", "CreateSubnetTx",
    "ImportTx", "ExportTx", "AdvanceTimeTx", "RewardValidatorTx", "RemoveSubnetValidatorTx",
    "TransformSubnetTx", "AddPermissionlessValidatorTx", "AddPermissionlessDelegatorTx", "BaseTx",
    "TransferSubnetOwnershipTx", "ConvertSubnetToL1Tx", "RegisterL1ValidatorTx",
    "SetL1ValidatorWeightTx", "DisableL1ValidatorTx", "IncreaseL1ValidatorBalanceTx", "UNKNOWN",
]  # fmt: skip
XType = Literal["BaseTx", "CreateAssetTx", "OperationTx", "ImportTx", "ExportTx", "UNKNOWN"]
RewardKind = Literal["VALIDATOR", "DELEGATOR", "VALIDATOR_FEE"]
Number = int | float


class CamelCaseStruct(Struct, rename="camel", kw_only=True):
    """Keys in camel case; a field with a default may be absent, and is right if it is there."""


class Asset(CamelCaseStruct, kw_only=True):
    asset_id: str
    name: str
    symbol: str
    denomination: Number
    type: AssetType
    amount: str


class PUtxo(CamelCaseStruct, kw_only=True):
    addresses: list[str]
    asset: Asset
    consumed_on_chain_id: str
    created_on_chain_id: str
    utxo_id: str
    amount: str
    asset_id: str
    block_number: str
    block_timestamp: Number
    output_index: Number
    tx_hash: str
    utxo_type: Literal["STAKE", "TRANSFER"]
    consuming_tx_hash: str = ""
    consuming_block_number: str = ""
    utxo_bytes: str = ""
    consuming_block_timestamp: Number = 0
    platform_locktime: Number = 0
    stakeable_locktime: Number = 0
    threshold: Number = 0
    utxo_start_timestamp: Number = 0
    utxo_end_timestamp: Number = 0
    reward_type: RewardKind = "VALIDATOR"
    staked: bool = False


class Credential(CamelCaseStruct, kw_only=True):
    signature: str = ""
    public_key: str = ""


class XUtxo(CamelCaseStruct, kw_only=True):
    addresses: list[str]
    asset: Asset
    consumed_on_chain_id: str
    created_on_chain_id: str
    utxo_id: str
    creation_tx_hash: str
    locktime: Number
    output_index: str
    threshold: Number
    timestamp: Number
    utxo_type: str
    consuming_tx_hash: str = ""
    utxo_bytes: str = ""
    consuming_tx_timestamp: Number = 0
    credentials: list[Credential] = []
    group_id: Number = 0
    payload: str = ""


class Bls(CamelCaseStruct, kw_only=True):
    public_key: str
    proof_of_possession: str


class Owner(CamelCaseStruct, kw_only=True):
    locktime: Number
    threshold: Number
    addresses: list[str]


class Manager(CamelCaseStruct, kw_only=True):
    blockchain_id: str
    contract_address: str


class L1(CamelCaseStruct, kw_only=True):
    validation_id: str
    validation_id_hex: str
    node_id: str
    subnet_id: str
    weight: Number
    remaining_balance: Number
    balance_change: Number = 0
    bls_credentials: dict[str, Any] = {}


class NewChain(CamelCaseStruct, kw_only=True):
    chain_name: str
    vm_id: str
    genesis_data: dict[str, Any] = {}


class PTx(CamelCaseStruct, kw_only=True):
    tx_hash: str
    tx_type: PType
    block_timestamp: Number
    block_number: str
    block_hash: str
    consumed_utxos: list[PUtxo]
    emitted_utxos: list[PUtxo]
    value: list[Asset]
    amount_burned: list[Asset]
    amount_staked: list[Asset]
    amount_l1_validator_balance_burned: list[Asset]
    source_chain: str = ""
    destination_chain: str = ""
    delegation_fee_percent: str = ""
    node_id: str = ""
    subnet_id: str = ""
    estimated_reward: str = ""
    reward_tx_hash: str = ""
    memo: str = ""
    staking_tx_hash: str = ""
    start_timestamp: Number = 0
    end_timestamp: Number = 0
    reward_addresses: list[str] = []
    l1_validator_manager_details: Manager | Literal[""] = ""
    l1_validator_details: list[L1] = []
    subnet_ownership_info: Owner | Literal[""] = ""
    bls_credentials: Bls | Literal[""] = ""
    blockchain_info: NewChain | Literal[""] = ""


class Vertex(CamelCaseStruct, kw_only=True):
    hash: str
    height: Number
    timestamp: Number


class AssetCreated(CamelCaseStruct, kw_only=True):
    asset_id: str
    name: str
    symbol: str
    denomination: Number
    type: AssetType
    created_at_timestamp: Number
    cap: Literal["fixed", "variable"]


class _XTx(CamelCaseStruct, kw_only=True, tag_field="chainFormat"):
    tx_hash: str
    timestamp: Number
    tx_type: XType
    memo: str
    consumed_utxos: list[XUtxo]
    emitted_utxos: list[XUtxo]
    amount_unlocked: list[Asset]
    amount_created: list[Asset]
    source_chain: str = ""
    destination_chain: str = ""
    asset_created: AssetCreated | Literal[""] = ""


class LinearTx(_XTx, kw_only=True, tag="linear"):
    block_height: Number
    block_hash: str


class NonLinearTx(_XTx, kw_only=True, tag="non-linear"):
    vertices: list[Vertex]


class EvmInput(CamelCaseStruct, kw_only=True):
    from_address: str
    asset: Asset
    credentials: list[Credential]


class EvmOutput(CamelCaseStruct, kw_only=True):
    to_address: str
    asset: Asset


class _CTx(CamelCaseStruct, kw_only=True, tag_field="txType"):
    tx_hash: str
    block_height: Number
    block_hash: str
    timestamp: Number
    memo: str
    amount_unlocked: list[Asset]
    amount_created: list[Asset]
    source_chain: str
    destination_chain: str


class ExportTx(_CTx, kw_only=True, tag="ExportTx"):
    evm_inputs: list[EvmInput]
    emitted_utxos: list[XUtxo]


class ImportTx(_CTx, kw_only=True, tag="ImportTx"):
    evm_outputs: list[EvmOutput]
    consumed_utxos: list[XUtxo]


class ChainInfo(CamelCaseStruct, kw_only=True):
    chain_name: Literal["p-chain", "x-chain", "c-chain"]
    network: Network


class PPage(CamelCaseStruct, kw_only=True):
    transactions: list[PTx]
    chain_info: ChainInfo
    next_page_token: str = "-"


class XPage(CamelCaseStruct, kw_only=True):
    transactions: list[LinearTx | NonLinearTx]
    chain_info: ChainInfo
    next_page_token: str = "-"


class CPage(CamelCaseStruct, kw_only=True):
    transactions: list[ExportTx | ImportTx]
    chain_info: ChainInfo
    next_page_token: str = "-"


class Proposer(CamelCaseStruct, kw_only=True):
    proposer_id: str = ""
    proposer_parent_id: str = ""
    proposer_node_id: str = ""
    proposer_p_chain_height: Number = 0
    proposer_timestamp: Number = 0


class Block(CamelCaseStruct, kw_only=True):
    block_number: str
    block_hash: str
    parent_hash: str
    block_timestamp: Number
    block_type: str
    tx_count: Number
    transactions: list[str]
    block_size_bytes: Number
    l1_validators_accrued_fees: Number = 0
    active_l1_validators: Number = 0
    current_supply: str = ""
    proposer_details: Proposer | Literal[""] = ""


class BlockPage(CamelCaseStruct, kw_only=True):
    blocks: list[Block]
    chain_info: ChainInfo
    next_page_token: str = "-"


class Blockchain(CamelCaseStruct, kw_only=True):
    create_block_timestamp: Number
    create_block_number: str
    blockchain_id: str
    vm_id: str
    subnet_id: str
    blockchain_name: str
    evm_chain_id: Number
    genesis_data: dict[str, Any] = {}


class Interaction(CamelCaseStruct, kw_only=True):
    address: str
    blockchain_ids: list[ChainId]


class Interactions(CamelCaseStruct, kw_only=True):
    addresses: list[Interaction]


class Price(CamelCaseStruct, kw_only=True):
    currency_code: str
    value: Number


class RewardAsset(Asset, kw_only=True):
    historical_price: Price | Literal[""] = ""


class Reward(CamelCaseStruct, kw_only=True):
    addresses: list[str]
    tx_hash: str
    amount_staked: str
    node_id: str
    start_timestamp: Number
    end_timestamp: Number
    reward_type: RewardKind
    utxo_id: str
    output_index: Number
    reward: RewardAsset
    reward_tx_hash: str


class RewardPage(CamelCaseStruct, kw_only=True):
    historical_rewards: list[Reward]
    next_page_token: str = "-"


class Rewards(CamelCaseStruct, kw_only=True):
    validation_reward_amount: str
    delegation_reward_amount: str
    reward_addresses: list[str] = []
    reward_tx_hash: str = ""


class Health(CamelCaseStruct, kw_only=True):
    reachability_percent: Number
    benched_p_chain_requests_percent: Number
    benched_x_chain_requests_percent: Number
    benched_c_chain_requests_percent: Number


class Geolocation(CamelCaseStruct, kw_only=True):
    city: str
    country: str
    country_code: str
    latitude: Number
    longitude: Number


class _Validation(CamelCaseStruct, kw_only=True, tag_field="validationStatus"):
    tx_hash: str
    node_id: str
    subnet_id: str
    amount_staked: str
    start_timestamp: Number
    end_timestamp: Number
    delegation_fee: str = ""
    bls_credentials: Bls | Literal[""] = ""


class Pending(_Validation, kw_only=True, tag="pending"):
    pass


class Active(_Validation, kw_only=True, tag="active"):
    stake_percentage: Number
    delegator_count: Number
    uptime_performance: Number
    potential_rewards: Rewards
    validator_health: Health
    geolocation: Geolocation | None
    amount_delegated: str = ""
    delegation_capacity: str = ""
    avalanche_go_version: str = ""


class Completed(_Validation, kw_only=True, tag="completed"):
    delegator_count: Number
    rewards: Rewards
    amount_delegated: str = ""


class Removed(_Validation, kw_only=True, tag="removed"):
    remove_tx_hash: str
    remove_timestamp: Number


class ValidatorPage(CamelCaseStruct, kw_only=True):
    validators: list[Pending | Active | Completed | Removed]
    next_page_token: str = "-"


class BalanceOwner(CamelCaseStruct, kw_only=True):
    addresses: list[str]
    threshold: Number


class FullL1(CamelCaseStruct, kw_only=True):
    validation_id: str
    validation_id_hex: str
    node_id: str
    subnet_id: str
    weight: Number
    remaining_balance: Number
    creation_timestamp: Number
    bls_credentials: Bls
    remaining_balance_owner: BalanceOwner
    deactivation_owner: BalanceOwner


class L1Page(CamelCaseStruct, kw_only=True):
    validators: list[FullL1]
    block_height: str
    next_page_token: str = "-"


EvmTokenType = Literal["ERC-721", "ERC-1155"]
IndexStatus = Literal[
    "UNKNOWN", "MISSING_TOKEN", "INVALID_TOKEN_URI", "INVALID_TOKEN_URI_SCHEME",
    "UNREACHABLE_TOKEN_URI", "THROTTLED_TOKEN_URI", "METADATA_CONTENT_TOO_LARGE",
    "INVALID_METADATA", "INVALID_METADATA_JSON", "INDEXED", "UNINDEXED",
]  # fmt: skip
LinkType = Literal[
    "Blog", "CoinGecko", "CoinMarketCap", "Discord", "Documentation", "Facebook", "Github",
    "Instagram", "LinkedIn", "Medium", "Reddit", "Support", "Telegram", "TikTok", "Twitter",
    "Website", "Whitepaper", "Youtube",
]  # fmt: skip


class NativeToken(CamelCaseStruct, kw_only=True):
    name: str
    symbol: str
    decimals: Number
    logo_uri: str = ""
    description: str = ""


class Utilities(CamelCaseStruct, kw_only=True):
    multicall: str = ""


class EvmChain(CamelCaseStruct, kw_only=True):
    chain_id: str
    status: Literal["OK", "UNAVAILABLE"]
    chain_name: str
    description: str
    vm_name: Literal["EVM", "BITCOIN", "ETHEREUM"]
    rpc_url: str
    is_testnet: bool
    network_token: NativeToken
    platform_chain_id: str = ""
    subnet_id: str = ""
    vm_id: str = ""
    explorer_url: str = ""
    ws_url: str = ""
    chain_logo_uri: str = ""
    utility_addresses: Utilities = msgspec.field(default_factory=Utilities)
    private: bool = False
    enabled_features: list[Literal["nftIndexing", "webhooks", "teleporter"]] = []


class EvmChainList(CamelCaseStruct, kw_only=True):
    chains: list[EvmChain]


class EvmBlock(CamelCaseStruct, kw_only=True):
    chain_id: str
    block_number: str
    block_hash: str
    base_fee: str
    gas_used: str
    gas_limit: str
    gas_cost: str
    parent_hash: str
    fees_spent: str
    cumulative_transactions: str
    block_timestamp: Number
    tx_count: Number


class Holder(CamelCaseStruct, kw_only=True):
    address: str
    name: str = ""
    symbol: str = ""
    logo_uri: str = ""
    decimals: Number = 0


class Metadata(CamelCaseStruct, kw_only=True):
    index_status: IndexStatus
    metadata_last_updated_timestamp: Number = 0
    name: str = ""
    symbol: str = ""
    image_uri: str = ""
    description: str = ""
    animation_uri: str = ""
    external_url: str = ""
    background: str = ""
    attributes: str = ""
    decimals: Number = 0
    properties: str = ""


class MovedToken(CamelCaseStruct, kw_only=True):
    address: str
    erc_type: Literal["ERC-1155"]
    token_id: str
    token_uri: str
    metadata: Metadata


class Erc1155Transfer(CamelCaseStruct, kw_only=True):
    block_number: str
    block_timestamp: Number
    block_hash: str
    tx_hash: str
    sender: Holder = msgspec.field(name="from")
    to: Holder
    log_index: Number
    value: str
    erc1155_token: MovedToken


class Erc1155Page(CamelCaseStruct, kw_only=True):
    transactions: list[Erc1155Transfer]
    next_page_token: str = "-"


class Erc721Token(CamelCaseStruct, kw_only=True, tag_field="ercType", tag="ERC-721"):
    address: str
    name: str
    symbol: str
    token_id: str
    token_uri: str
    metadata: Metadata
    owner_address: str = ""


class Erc1155Token(CamelCaseStruct, kw_only=True, tag_field="ercType", tag="ERC-1155"):
    address: str
    token_id: str
    token_uri: str
    metadata: Metadata


class Erc721Balance(Erc721Token, kw_only=True, tag_field="ercType", tag="ERC-721"):
    chain_id: str


class Erc1155Balance(Erc1155Token, kw_only=True, tag_field="ercType", tag="ERC-1155"):
    chain_id: str
    balance: str


class CollectiblePage(CamelCaseStruct, kw_only=True):
    collectible_balances: list[Erc721Balance | Erc1155Balance]
    next_page_token: str = "-"


class TokenPage(CamelCaseStruct, kw_only=True):
    tokens: list[Erc721Token | Erc1155Token]
    next_page_token: str = "-"


class Image(CamelCaseStruct, kw_only=True):
    asset_id: str = ""
    image_uri: str = ""


class Link(CamelCaseStruct, kw_only=True):
    type: LinkType
    url: str


class Deployment(CamelCaseStruct, kw_only=True):
    tx_hash: str
    deployer_address: str
    deployer_contract_address: str = ""


class Contract(CamelCaseStruct, kw_only=True, tag_field="ercType", tag="UNKNOWN"):
    address: str
    name: str = ""
    description: str = ""
    official_site: str = ""
    email: str = ""
    color: str = ""
    logo_asset: Image = msgspec.field(default_factory=Image)
    banner_asset: Image = msgspec.field(default_factory=Image)
    resource_links: list[Link] = []
    tags: list[str] = []
    deployment_details: Deployment


class Erc721Contract(Contract, kw_only=True, tag_field="ercType", tag="ERC-721"):
    symbol: str = ""


class Erc1155Contract(Erc721Contract, kw_only=True, tag_field="ercType", tag="ERC-1155"):
    pass


class Erc20Contract(Erc721Contract, kw_only=True, tag_field="ercType", tag="ERC-20"):
    decimals: Number


class ContractPage(CamelCaseStruct, kw_only=True):
    contracts: list[Contract | Erc721Contract | Erc1155Contract | Erc20Contract]
    next_page_token: str = "-"


def read_transactions(body: bytes) -> PPage | XPage | CPage:
    """Return a page as the SDKs take it, the first of three that fits. Raises ValidationError."""
    for kind in (PPage, XPage):
        try:
            page: PPage | XPage = read(body, kind)
        except msgspec.ValidationError:
            continue
        return page
    last: CPage = read(body, CPage)
    return last


def read(body: bytes, kind: type[Any]) -> Any:
    """Return a response as the SDKs take it. Raises ValidationError."""
    page = msgspec.json.decode(body, type=kind)
    # With an empty token one of the SDKs would ask for ever.
    if getattr(page, "next_page_token", "-") == "":
        raise msgspec.ValidationError("an empty nextPageToken")
    return page
