"""The operations of the Data API: paths, parameters, answers and compute units.

Source of truth: the specification's endpoints 3 to 8; operation ids and compute units are the hosted service's. The
routes are mounted from this table and the OpenAPI document is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warpseal.api.data import parameters as p
from warpseal.api.data.bodies import (
    CChainTransactions,
    ChainInteractions,
    HistoricalRewards,
    PChainTransactions,
    PrimaryNetworkBlocks,
    SdkCChainTransactions,
    SdkXChainTransactions,
    Validators,
    XChainTransactions,
)
from warpseal.history.blocks import BlockchainDetails
from warpseal.history.resources import Resource

_NETWORKS: Final = "/v1/networks/{network}"
_CHAIN: Final = _NETWORKS + "/blockchains/{blockchainId}"


@dataclass(frozen=True, slots=True)
class Operation:
    """An endpoint. path: a template. answers: the resources of a success. units: compute units of a request."""

    name: str
    path: str
    summary: str
    parameters: tuple[p.Parameter, ...]
    answers: tuple[type[Resource], ...]
    units: int
    tag: str = "Primary Network"


_PAGED: Final = (p.PAGE_TOKEN, p.PAGE_SIZE)

TRANSACTIONS: Final = Operation(
    "listLatestPrimaryNetworkTransactions",
    _CHAIN + "/transactions",
    "Transactions of a primary chain: the latest ones, those of addresses, or those of an L1 validation.",
    (
        p.ADDRESSES,
        p.L1_VALIDATION_ID,
        p.TX_TYPES,
        p.START_TIMESTAMP,
        p.END_TIMESTAMP,
        *_PAGED,
        p.SORT_ORDER,
    ),
    (PChainTransactions, XChainTransactions, CChainTransactions, SdkXChainTransactions, SdkCChainTransactions),
    100,
)
BLOCKS: Final = Operation(
    "listLatestPrimaryNetworkBlocks",
    _CHAIN + "/blocks",
    "Blocks of a primary chain, newest first.",
    (p.START_TIMESTAMP, p.END_TIMESTAMP, *_PAGED),
    (PrimaryNetworkBlocks,),
    20,
)
BLOCKCHAIN: Final = Operation(
    "getBlockchainById", _CHAIN, "A blockchain of any subnet or L1.", (), (BlockchainDetails,), 20
)
CHAIN_IDS: Final = Operation(
    "getChainIdsForAddresses",
    _NETWORKS + "/addresses:listChainIds",
    "Which primary chains addresses have touched.",
    (p.REQUIRED_ADDRESSES,),
    (ChainInteractions,),
    100,
)
REWARDS: Final = Operation(
    "listHistoricalPrimaryNetworkRewards",
    _NETWORKS + "/rewards",
    "Rewards that were paid to addresses, or for validations of nodes.",
    (p.ADDRESSES, p.NODE_IDS, *_PAGED, p.SORT_ORDER, p.CURRENCY),
    (HistoricalRewards,),
    100,
)
VALIDATOR: Final = Operation(
    "getSingleValidatorDetails",
    _NETWORKS + "/validators/{nodeId}",
    "The validations of a node, of every subnet and state.",
    (*_PAGED, p.VALIDATION_STATUS, p.SORT_ORDER),
    (Validators,),
    20,
)

OPERATIONS: Final = (TRANSACTIONS, BLOCKS, BLOCKCHAIN, CHAIN_IDS, REWARDS, VALIDATOR)
