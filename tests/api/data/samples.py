"""Sample values of every kind, some with every field."""

from __future__ import annotations

import json

from tests.api.data.values import (
    Amount,
    AssetCreation,
    Block,
    CTransaction,
    EvmInput,
    EvmOutput,
    L1Change,
    Manager,
    NewBlockchain,
    Owner,
    PTransaction,
    Signer,
    Spending,
    Utxo,
    XTransaction,
)
from warpseal.chains.ids import Address, AssetID, BlockID, TxID, UtxoID
from warpseal.resources.base import UNSET, RewardType
from warpseal.resources.blocks import Blockchain, Proposer
from warpseal.resources.chains import PUBLIC_CHAINS, PrimaryChain
from warpseal.resources.outputs import Asset
from warpseal.resources.progress import ChainProgress
from warpseal.resources.transactions import (
    ActiveState,
    BlsCredentials,
    CompletedState,
    PendingState,
    RemovedState,
    Reward,
    Rewards,
    Validation,
    XChainVertex,
)
from warpseal.warp.ids import (
    P_CHAIN,
    PRIMARY_NETWORK,
    ChainID,
    NodeID,
    SubnetID,
    ValidationID,
    id_text,
)

NETWORK_ID = 5
CHAINS = PUBLIC_CHAINS[NETWORK_ID]
NOW = 1_800_000_000
AVAX = Asset(AssetID(b"\xa1" * 32), "Avalanche", "AVAX", 9)
CAT = Asset(AssetID(b"\xa2" * 32), "Cats", "CAT", 0, is_nft=True)
ALICE, BOB = Address(b"\x01" * 20), Address(b"\x02" * 20)
ACCOUNT = bytes.fromhex("5aaeb6053f3e94c9b9a09f33669435e7ef1beaed")
NODE, OTHER_NODE = NodeID(b"\x0a" * 20), NodeID(b"\x0b" * 20)
SUBNET = SubnetID(b"\x5b" * 32)
VALIDATION = ValidationID(b"\x7a" * 32)
KEY = BlsCredentials(public_key="0x80" + "01" * 47, proof_of_possession="0x90" + "02" * 95)

EVM_GENESIS = json.dumps(
    {
        "config": {
            "chainId": 99999,
            "homesteadBlock": 0,
            "subnetEVMTimestamp": 0,
            "eip150Hash": "0x2086799aeebeae135c246c65021c82b4e15a2c451340993aacfd2751886514f0",
            "allowFeeRecipients": False,
            "feeConfig": {"gasLimit": 8000000, "minBaseFee": 25000000000, "targetBlockRate": 2},
            "warpConfig": {
                "blockTimestamp": 5,
                "quorumNumerator": 67,
                "requirePrimaryNetworkSigners": True,
            },
            "txAllowListConfig": {"blockTimestamp": 0, "adminAddresses": ["0x" + "11" * 20]},
            "durangoTimestamp": 7,
        },
        "alloc": {"11" * 20: {"balance": "0x295be96e64066972000000", "storage": {"0x00": "0x01"}}},
        "nonce": "0x0",
        "timestamp": 0,
        "gasLimit": "8000000",
        "extraData": "0x00",
        "baseFeePerGas": None,
        "airdropAmount": None,
        "parentHash": "0x" + "00" * 32,
        "unheardOf": {},
    }
).encode()


def tx_id(number: int) -> TxID:
    return TxID(number.to_bytes(32, "big"))


def block_id(number: int) -> BlockID:
    return BlockID(b"\xbb" + number.to_bytes(31, "big"))


def utxo(number: int = 1, amount: int = 5, owner: Address = ALICE, **changes: object) -> Utxo:
    """An unspent output of the P-Chain."""
    fields: dict[str, object] = {
        "utxo_id": UtxoID(b"\x0c" + number.to_bytes(31, "big")),
        "tx_id": tx_id(number),
        "output_index": number,
        "asset": AVAX,
        "amount": amount,
        "addresses": (owner,),
        "threshold": 1,
        "created_on": PrimaryChain.P,
        "consumed_on": PrimaryChain.P,
        "height": number,
        "time": 1000 + number,
    }
    return Utxo(**{**fields, **changes})  # type: ignore[arg-type]


def p_tx(
    number: int, kind: str = "BaseTx", owner: Address = ALICE, **changes: object
) -> PTransaction:
    """A plain transaction of the P-Chain; its time is 1000 and its number."""
    fields: dict[str, object] = {
        "tx_id": tx_id(number),
        "kind": kind,
        "time": 1000 + number,
        "height": number,
        "block_id": block_id(number),
        "emitted": (utxo(number, owner=owner),),
        "value": (Amount(AVAX, 5),),
    }
    return PTransaction(**{**fields, **changes})  # type: ignore[arg-type]


FULL_UTXO = utxo(
    7,
    kind="STAKE",
    locktime=11,
    stakeable_locktime=12,
    spent=Spending(tx_id(8), 9, 10),
    staked=True,
    stake_start=13,
    stake_end=14,
    reward=RewardType.VALIDATOR_FEE,
    raw=b"\x00\x01",
    is_incomplete=True,
)
FULL_P = p_tx(
    50,
    "AddPermissionlessValidatorTx",
    consumed=(FULL_UTXO,),
    burned=(Amount(AVAX, 1),),
    staked=(Amount(AVAX, 2),),
    l1_funded=(Amount(AVAX, 3),),
    source_chain=CHAINS.x,
    destination_chain=CHAINS.c,
    start=20,
    end=30,
    delegation_fee_shares=25_000,
    node_id=NODE,
    subnet_id=PRIMARY_NETWORK,
    manager=Manager(CHAINS.c, ACCOUNT),
    l1_changes=(
        L1Change(
            validation_id=VALIDATION,
            node_id=NODE,
            subnet_id=SUBNET,
            weight=100,
            remaining_navax=7,
            change_navax=-3,
            bls=KEY,
        ),
    ),
    estimated_reward=40,
    reward_tx_id=tx_id(51),
    staking_tx_id=tx_id(49),
    memo=b"hi",
    reward_addresses=(BOB,),
    subnet_owner=Owner(0, 1, (ALICE, BOB)),
    bls=KEY,
    blockchain=NewBlockchain("dexalot", SUBNET, EVM_GENESIS),
)
X_UTXO = utxo(
    3,
    created_on=PrimaryChain.X,
    consumed_on=PrimaryChain.X,
    asset=CAT,
    amount=1,
    kind="NFT_TRANSFER",
    group_id=4,
    payload=b"\xff",
    spent=Spending(tx_id(4), 5, 6, (Signer(b"\x01" * 65, b"\x02" * 33), Signer(b"\x03" * 65))),
)
LINEAR_X = XTransaction(
    tx_id=tx_id(60),
    kind="CreateAssetTx",
    time=1060,
    height=60,
    block_id=block_id(60),
    consumed=(X_UTXO, utxo(2, 10, created_on=PrimaryChain.X, consumed_on=PrimaryChain.X)),
    emitted=(utxo(5, 9, created_on=PrimaryChain.X, consumed_on=PrimaryChain.X),),
    memo=b"\x01",
    asset_created=AssetCreation(CAT, 1060, has_fixed_cap=True),
)
OLD_X = XTransaction(
    tx_id=tx_id(61),
    kind="BaseTx",
    time=1061,
    height=None,
    block_id=None,
    vertices=(XChainVertex(hash=id_text(b"\x99" * 32), height=12, timestamp=1061),),
    is_time_approximate=True,
)
EXPORT = CTransaction(
    tx_id=tx_id(70),
    kind="ExportTx",
    time=1070,
    height=70,
    block_id=block_id(70),
    source_chain=CHAINS.c,
    destination_chain=P_CHAIN,
    emitted=(utxo(70, 4, created_on=PrimaryChain.C, consumed_on=PrimaryChain.P),),
    evm_inputs=(EvmInput(ACCOUNT, Amount(AVAX, 5), (Signer(b"\x04" * 65),)),),
)
IMPORT = CTransaction(
    tx_id=tx_id(71),
    kind="ImportTx",
    time=1071,
    height=71,
    block_id=block_id(71),
    source_chain=CHAINS.x,
    destination_chain=CHAINS.c,
    consumed=(utxo(71, 8, BOB, created_on=PrimaryChain.X, consumed_on=PrimaryChain.C),),
    evm_outputs=(EvmOutput(ACCOUNT, Amount(AVAX, 7)),),
)


def p_block(height: int, chain: PrimaryChain = PrimaryChain.P, **changes: object) -> Block:
    """A block; its time is 1000 and its height."""
    fields: dict[str, object] = {
        "chain": chain,
        "height": height,
        "block_id": block_id(height),
        "parent_id": block_id(height - 1),
        "kind": "BanffStandardBlock",
        "time": 1000 + height,
        "tx_ids": (tx_id(height),),
        "size_bytes": 300,
    }
    return Block(**{**fields, **changes})  # type: ignore[arg-type]


FULL_BLOCK = p_block(
    90,
    accrued_fees=5,
    active_l1_validators=6,
    supply=7,
    proposer=Proposer(b"\x01" * 32, b"\x02" * 32, NODE, 88, 1089),
)
EVM_CHAIN = Blockchain(
    chain_id=ChainID(b"\xe1" * 32),
    subnet_id=SUBNET,
    vm_id=b"\xe2" * 32,
    name="dexalot",
    genesis=EVM_GENESIS,
    height=12,
    time=1012,
)
OTHER_CHAIN = Blockchain(
    chain_id=ChainID(b"\xe3" * 32),
    subnet_id=SUBNET,
    vm_id=b"\xe4" * 32,
    name="hyper",
    genesis=b"\x00\x01",
    height=13,
    time=1013,
)


def reward(number: int, owner: Address = ALICE, node: NodeID = NODE, **changes: object) -> Reward:
    """A reward; it was paid at 1000 and its number."""
    fields: dict[str, object] = {
        "addresses": (owner,),
        "tx_id": tx_id(number),
        "node_id": node,
        "staked": 2_000,
        "start": 100,
        "end": 1000 + number,
        "kind": RewardType.DELEGATOR,
        "utxo_id": UtxoID(b"\x0d" * 32),
        "output_index": 2,
        "asset": AVAX,
        "amount": 33,
        "reward_tx_id": tx_id(number + 1),
        "paid_at": 1000 + number,
    }
    return Reward(**{**fields, **changes})  # type: ignore[arg-type]


def _validation(
    number: int,
    state: PendingState | ActiveState | CompletedState | RemovedState,
    **changes: object,
) -> Validation:
    fields: dict[str, object] = {
        "tx_id": tx_id(number),
        "node_id": NODE,
        "subnet_id": PRIMARY_NETWORK,
        "staked": 2_000,
        "start": 1000 + number,
        "end": 2000 + number,
        "state": state,
        "fee_shares": 20_000,
        "bls": KEY,
    }
    return Validation(**{**fields, **changes})  # type: ignore[arg-type]


COMPLETED = _validation(
    1, CompletedState(delegator_count=3, delegated=9, rewards=Rewards(11, 12, (ALICE,), tx_id(2)))
)
UNREWARDED = _validation(2, CompletedState(delegator_count=0, delegated=0, rewards=Rewards(0, 0)))
REMOVED = _validation(3, RemovedState(tx_id(5), 1500), subnet_id=SUBNET, fee_shares=None, bls=UNSET)
ACTIVE = _validation(
    4,
    ActiveState(
        delegator_count=2,
        total_stake=8_000,
        delegated=50,
        capacity=7_950,
        potential=Rewards(21, 22, (BOB,)),
    ),
)
PENDING = _validation(5, PendingState())
VALIDATIONS = [COMPLETED, UNREWARDED, REMOVED, ACTIVE, PENDING]

FRESH = [
    ChainProgress(chain=PrimaryChain.P, height=90, node_height=90, block_time=NOW - 100),
    ChainProgress(chain=PrimaryChain.X, height=60, node_height=65, block_time=NOW - 40),
    ChainProgress(chain=PrimaryChain.C, height=71, node_height=71, block_time=NOW - 3),
]
