"""Validators, chains, subnets and messages of a simulated network."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cachetools import FIFOCache

from warpseal.warp.ids import ChainID, MessageID, NodeID, SubnetID, node_id_text
from warpseal.warp.message import UnsignedMessage
from warpseal_simnet.addresses import SignedAddress
from warpseal_simnet.behaviours import Behaviour
from warpseal_simnet.identity import Identity
from warpseal_simnet.versions import Release

# Nodes remember 500 signatures; more entries only save work of the simulation.
_MAX_MESSAGES: Final = 4096


class ChainKind(StrEnum):
    """The kind of a chain's virtual machine."""

    P = "p"
    EVM = "evm"
    X = "x"


@dataclass(frozen=True, slots=True)
class SimChain:
    """A blockchain and the subnet that validates it.

    evm_chain_id: ID of its EVM.
    is_simplex: the chain has no proposervm.
    """

    chain_id: ChainID
    subnet_id: SubnetID
    kind: ChainKind
    name: str
    alias: str | None = None
    evm_chain_id: int = 0
    is_simplex: bool = False


@dataclass(frozen=True, slots=True)
class SimSubnet:
    """A subnet.

    conversion_id and manager: None until it is an L1.
    name: `primary` or `l1-K`.
    """

    subnet_id: SubnetID
    name: str
    conversion_id: bytes | None = None
    manager_chain_id: ChainID | None = None
    manager_address: bytes = b""

    def unconverted(self) -> SimSubnet:
        """Return the subnet before its conversion to an L1."""
        return SimSubnet(self.subnet_id, self.name)


@dataclass(frozen=True, slots=True)
class SimMessage:
    """A message that validators sign, with its justification and the signing subnet."""

    unsigned: UnsignedMessage
    justification: bytes
    signing_subnet_id: SubnetID


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that a contract emitted.

    sender: 20 bytes; evm_tx_id: 32 bytes.
    """

    sender: bytes
    unsigned: UnsignedMessage
    evm_tx_id: bytes


@dataclass(slots=True)
class Counts:
    """Counters of a validator since the network was built."""

    connections: int = 0
    open_connections: int = 0
    finished_handshakes: int = 0
    app_requests: int = 0
    shares: int = 0
    refusals: int = 0


@dataclass(slots=True, eq=False)
class SimValidator:
    """A node of the network.

    index: the place of the node among all validators.
    bls_key: the registered key, 48 bytes.
    subnets: the tracked subnets besides the Primary Network.
    chains: the chains that the node runs.
    release: the release that the node runs; None for the first one of the network.
    """

    index: int
    identity: Identity
    bls_key: bytes
    validates_primary: bool
    subnets: frozenset[SubnetID] = frozenset()
    chains: set[ChainID] = field(default_factory=set)
    behaviour: Behaviour = field(default_factory=Behaviour)
    release: Release | None = None
    address: SignedAddress | None = None
    counts: Counts = field(default_factory=Counts)
    presigned: dict[MessageID, bytes] = field(default_factory=dict)
    shares: FIFOCache[MessageID, bytes] = field(default_factory=lambda: FIFOCache(_MAX_MESSAGES))
    first_asked_at: FIFOCache[MessageID, float] = field(
        default_factory=lambda: FIFOCache(_MAX_MESSAGES)
    )

    @property
    def node_id(self) -> NodeID:
        """The 20 bytes of its certificate."""
        return self.identity.node_id

    @property
    def name(self) -> str:
        """The NodeID's text."""
        return node_id_text(self.node_id)
