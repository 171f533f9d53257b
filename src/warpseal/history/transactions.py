"""Accepted transactions of the three primary chains with all that is known of them, as they are told to callers."""

from __future__ import annotations

from msgspec import Struct

from warpseal.chains.ids import Address, BlockID, TxID
from warpseal.history.chains import PrimaryChain
from warpseal.history.outputs import Amount, Asset, Signer, Utxo
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID


class BlsKey(Struct, frozen=True, gc=False):
    """A compressed public key (48 bytes) and the proof that its secret is known (96 bytes)."""

    public_key: bytes
    proof_of_possession: bytes


class Owner(Struct, frozen=True, gc=False):
    """Who must sign for something, and from when on (unix seconds)."""

    locktime: int
    threshold: int
    addresses: tuple[Address, ...]


class Manager(Struct, frozen=True, gc=False):
    """The contract that manages an L1's validators. address: as many bytes as its chain has it."""

    chain_id: ChainID
    address: bytes


class L1Change(Struct, frozen=True, gc=False, kw_only=True):
    """An L1 validator that a transaction touched, as of that transaction.

    remaining_navax: its balance after the transaction's block. change_navax: negative where something was returned.
    """

    validation_id: ValidationID
    node_id: NodeID
    subnet_id: SubnetID
    weight: int
    remaining_navax: int
    change_navax: int | None = None
    bls: BlsKey | None = None


class NewBlockchain(Struct, frozen=True, gc=False):
    """What a CreateChainTx creates. genesis: the bytes as they are in the transaction."""

    name: str
    vm_id: bytes
    genesis: bytes


class PTransaction(Struct, frozen=True, gc=False, kw_only=True):
    """A P-Chain transaction.

    kind: the node's name of its type, or "UNKNOWN". time, start, end: unix seconds. value, burned, staked,
    l1_funded: by asset, none of it 0. delegation_fee_shares: of 1,000,000. estimated_reward: nAVAX (or the subnet's
    asset). reward_tx_id: what closed this stake; staking_tx_id: what this transaction closes.
    """

    tx_id: TxID
    kind: str
    time: int
    height: int
    block_id: BlockID
    consumed: tuple[Utxo, ...] = ()
    emitted: tuple[Utxo, ...] = ()
    value: tuple[Amount, ...] = ()
    burned: tuple[Amount, ...] = ()
    staked: tuple[Amount, ...] = ()
    l1_funded: tuple[Amount, ...] = ()
    source_chain: ChainID | None = None
    destination_chain: ChainID | None = None
    start: int | None = None
    end: int | None = None
    delegation_fee_shares: int | None = None
    node_id: NodeID | None = None
    subnet_id: SubnetID | None = None
    manager: Manager | None = None
    l1_changes: tuple[L1Change, ...] = ()
    estimated_reward: int | None = None
    reward_tx_id: TxID | None = None
    staking_tx_id: TxID | None = None
    memo: bytes = b""
    reward_addresses: tuple[Address, ...] = ()
    subnet_owner: Owner | None = None
    bls: BlsKey | None = None
    blockchain: NewBlockchain | None = None

    @property
    def chain(self) -> PrimaryChain:
        """Where it was accepted."""
        return PrimaryChain.P


class AssetCreation(Struct, frozen=True, gc=False):
    """An asset that a CreateAssetTx created. has_fixed_cap: none can be minted later."""

    asset: Asset
    created_at: int
    has_fixed_cap: bool


class Vertex(Struct, frozen=True, gc=False):
    """A vertex of the X-Chain before it had blocks."""

    vertex_id: bytes
    height: int
    time: int


class XTransaction(Struct, frozen=True, gc=False, kw_only=True):
    """An X-Chain transaction.

    height, block_id: None before the chain had blocks; then `vertices` are told, as far as they are known.
    is_time_approximate: the time is a container's, not a block's.
    """

    tx_id: TxID
    kind: str
    time: int
    height: int | None
    block_id: BlockID | None
    consumed: tuple[Utxo, ...] = ()
    emitted: tuple[Utxo, ...] = ()
    memo: bytes = b""
    source_chain: ChainID | None = None
    destination_chain: ChainID | None = None
    asset_created: AssetCreation | None = None
    vertices: tuple[Vertex, ...] = ()
    is_time_approximate: bool = False

    @property
    def chain(self) -> PrimaryChain:
        """Where it was accepted."""
        return PrimaryChain.X


class EvmInput(Struct, frozen=True, gc=False):
    """What an export takes from an account. address: 20 bytes."""

    address: bytes
    amount: Amount
    signers: tuple[Signer, ...] = ()


class EvmOutput(Struct, frozen=True, gc=False):
    """What an import gives to an account. address: 20 bytes."""

    address: bytes
    amount: Amount


class CTransaction(Struct, frozen=True, gc=False, kw_only=True):
    """An atomic transaction of the C-Chain: "ExportTx" (evm_inputs, emitted) or "ImportTx" (consumed, evm_outputs)."""

    tx_id: TxID
    kind: str
    time: int
    height: int
    block_id: BlockID
    source_chain: ChainID
    destination_chain: ChainID
    consumed: tuple[Utxo, ...] = ()
    emitted: tuple[Utxo, ...] = ()
    evm_inputs: tuple[EvmInput, ...] = ()
    evm_outputs: tuple[EvmOutput, ...] = ()

    @property
    def chain(self) -> PrimaryChain:
        """Where it was accepted."""
        return PrimaryChain.C


Transaction = PTransaction | XTransaction | CTransaction

__all__ = [
    "AssetCreation",
    "BlsKey",
    "CTransaction",
    "EvmInput",
    "EvmOutput",
    "L1Change",
    "Manager",
    "NewBlockchain",
    "Owner",
    "PTransaction",
    "Transaction",
    "Vertex",
    "XTransaction",
]
