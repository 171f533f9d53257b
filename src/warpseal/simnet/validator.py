"""One simulated validator: its keys, what it runs, how it behaves, what it was asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from warpseal.simnet.addresses import SignedAddress
from warpseal.simnet.behaviours import Behaviour
from warpseal.simnet.identity import Identity
from warpseal.warp.ids import ChainID, MessageID, NodeID, SubnetID, node_id_text


@dataclass(slots=True)
class Counts:
    """What a validator saw and did since the network was built."""

    connections: int = 0
    open_connections: int = 0
    finished_handshakes: int = 0
    app_requests: int = 0
    shares: int = 0
    refusals: int = 0


@dataclass(slots=True, eq=False)
class SimValidator:
    """A node of the network. index: its place among all validators; bls_key: 48 bytes, as registered.

    subnets: what it tracks besides the Primary Network; chains: what it runs.
    """

    index: int
    identity: Identity
    bls_key: bytes
    validates_primary: bool
    subnets: frozenset[SubnetID] = frozenset()
    chains: set[ChainID] = field(default_factory=set)
    behaviour: Behaviour = field(default_factory=Behaviour)
    address: SignedAddress | None = None
    counts: Counts = field(default_factory=Counts)
    shares: dict[MessageID, bytes] = field(default_factory=dict)
    first_asked_at: dict[MessageID, float] = field(default_factory=dict)

    @property
    def node_id(self) -> NodeID:
        """The 20 bytes of its certificate."""
        return self.identity.node_id

    @property
    def name(self) -> str:
        """The NodeID's text."""
        return node_id_text(self.node_id)
