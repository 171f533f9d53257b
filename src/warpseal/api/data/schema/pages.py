"""Whole answers: pages of resources, and what a failure looks like. A last page has no nextPageToken at all."""

from __future__ import annotations

from typing import Any

from warpseal.api.data.schema.base import UNSET, Resource, UnsetType
from warpseal.api.data.schema.blocks import PrimaryNetworkBlock
from warpseal.api.data.schema.enums import PrimaryNetworkChainName
from warpseal.api.data.schema.staking import (
    ActiveValidatorDetails,
    CompletedValidatorDetails,
    HistoricalReward,
    PendingValidatorDetails,
    RemovedValidatorDetails,
)
from warpseal.api.data.schema.transactions import (
    CChainTransaction,
    PChainTransaction,
    SdkCChainTransaction,
    SdkXChainTransaction,
    XChainTransaction,
)


class ChainInfo(Resource, frozen=True, gc=False, kw_only=True):
    """Which chain of which network; the network as the path has it."""

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


class Error(Resource, frozen=True, gc=False, kw_only=True):
    """What went wrong. error: the status text. code: stable, see docs/errors.md. detail: what a program may want."""

    message: str
    error: str
    status_code: int
    code: str
    detail: dict[str, Any]
