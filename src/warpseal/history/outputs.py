"""Assets, amounts of them, and unspent or spent outputs, as they are told to callers.

These values are msgspec structs and not dataclasses because pages of them are made by the hundred a second.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from warpseal.chains.ids import Address, AssetID, TxID, UtxoID
from warpseal.history.chains import PrimaryChain


class RewardKind(StrEnum):
    """Who a reward output belongs to, and for what."""

    VALIDATOR = "VALIDATOR"
    DELEGATOR = "DELEGATOR"
    VALIDATOR_FEE = "VALIDATOR_FEE"


class Asset(Struct, frozen=True, gc=False):
    """What can be owned. denomination: decimal places; is_nft: counted in pieces."""

    asset_id: AssetID
    name: str
    symbol: str
    denomination: int
    is_nft: bool = False


class Amount(Struct, frozen=True, gc=False):
    """So much of an asset, in its smallest unit."""

    asset: Asset
    amount: int


class Signer(Struct, frozen=True, gc=False):
    """Who signed for spending: signature (65 bytes) and compressed public key (33 bytes) recovered from it."""

    signature: bytes
    public_key: bytes | None = None


class Spending(Struct, frozen=True, gc=False):
    """The transaction that consumed an output. time: unix seconds of its block."""

    tx_id: TxID
    height: int
    time: int
    signers: tuple[Signer, ...] = ()


class Utxo(Struct, frozen=True, gc=False, kw_only=True):
    """One output of any of the three chains.

    tx_id, output_index: what its id is made of; those of a reward are the staking transaction's.
    height, time: of the block in which it came into being (unix seconds). consumed_on: where it can be spent.
    kind: "TRANSFER", "STAKE" or, on the X-Chain, the name of another output. locktime, stakeable_locktime: unix
    seconds, 0 where there is none. stake_start, stake_end: the time for which it is staked. raw: its codec bytes.
    group_id, payload: of an NFT. is_incomplete: its origin is not known, what is told comes from the input alone.
    """

    utxo_id: UtxoID
    tx_id: TxID
    output_index: int
    asset: Asset
    amount: int
    addresses: tuple[Address, ...]
    threshold: int
    created_on: PrimaryChain
    consumed_on: PrimaryChain
    height: int
    time: int
    kind: str = "TRANSFER"
    locktime: int = 0
    stakeable_locktime: int = 0
    spent: Spending | None = None
    staked: bool = False
    stake_start: int | None = None
    stake_end: int | None = None
    reward: RewardKind | None = None
    raw: bytes | None = None
    group_id: int | None = None
    payload: bytes | None = None
    is_incomplete: bool = False
