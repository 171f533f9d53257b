"""The state of a simulated P-Chain: subnets, chains, seats, heights, and what can be signed.

It changes only by blocks: every change is one more height.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from warpseal import bls
from warpseal.simnet.sets import Member, Seat, SetHistory, members_of
from warpseal.simnet.validator import SimValidator
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, MessageID, NodeID, SubnetID, ValidationID
from warpseal.warp.message import UnsignedMessage


class ChainKind(StrEnum):
    """What a chain's virtual machine signs: P-Chain facts, EVM messages, or nothing (X-Chain)."""

    P = "p"
    EVM = "evm"
    X = "x"


@dataclass(frozen=True, slots=True)
class SimChain:
    """A blockchain and the subnet that validates it."""

    chain_id: ChainID
    subnet_id: SubnetID
    kind: ChainKind
    name: str
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class SimSubnet:
    """A subnet. conversion_id and manager: None until it is an L1. name: `primary` or `l1-K`."""

    subnet_id: SubnetID
    name: str
    conversion_id: bytes | None = None
    manager_chain_id: ChainID | None = None
    manager_address: bytes = b""


@dataclass(frozen=True, slots=True)
class SimMessage:
    """A message that validators sign, with the justification they want and the subnet that is to sign it."""

    unsigned: UnsignedMessage
    justification: bytes
    signing_subnet_id: SubnetID


@dataclass(slots=True)
class Heights:
    """Where the P-Chain stands. made_at: unix seconds of the blocks since `first`."""

    current: int
    proposed_lag: int = 0
    epoch_blocks: int = 5
    first: int = 0
    made_at: list[float] = field(default_factory=list)

    @property
    def proposed(self) -> int:
        """The height that a new block would refer to."""
        return max(0, self.current - self.proposed_lag)

    @property
    def epoch(self) -> tuple[int, int, int]:
        """Number, start (unix seconds) and P-Chain height of the current epoch of every chain."""
        number = (self.current - self.first) // self.epoch_blocks
        return number + 1, int(self.made_at[number * self.epoch_blocks]), self.first + number * self.epoch_blocks


class World:
    """Everything that simulated nodes agree on."""

    def __init__(self, network_id: int, heights: Heights, clock: Callable[[], float]) -> None:
        self.network_id = network_id
        self.heights = heights
        self.clock = clock
        self.validators: list[SimValidator] = []
        self._by_node: dict[NodeID, SimValidator] = {}
        self._validations: dict[ValidationID, Seat] = {}
        self.subnets: dict[SubnetID, SimSubnet] = {}
        self.chains: dict[ChainID, SimChain] = {}
        self.seats: dict[SubnetID, list[Seat]] = {}
        self.history = SetHistory()
        self.messages: list[SimMessage] = []
        # What EVM chains have emitted or accepted.
        self.known_messages: set[MessageID] = set()
        self.accepted_blocks: set[bytes] = set()
        self.on_block: list[Callable[[int], None]] = []

    def add_validator(self, validator: SimValidator) -> None:
        """Add a node; its index is its place."""
        self.validators.append(validator)
        self._by_node[validator.node_id] = validator

    def add_seat(self, seat: Seat) -> None:
        """Give a validator its place in a subnet; it counts from the next block on."""
        self.seats.setdefault(seat.subnet_id, []).append(seat)
        if seat.is_l1:
            self._validations[seat.id] = seat

    def by_node(self, node_id: NodeID) -> SimValidator | None:
        """Return the validator of a NodeID."""
        return self._by_node.get(node_id)

    def chains_of(self, subnet_id: SubnetID) -> tuple[ChainID, ...]:
        """Return the chains that a subnet validates."""
        return tuple(chain.chain_id for chain in self.chains.values() if chain.subnet_id == subnet_id)

    def set_at(self, subnet_id: SubnetID, height: int) -> tuple[Member, ...]:
        """Return a subnet's set after the block at `height`."""
        return self.history.at(subnet_id, height)

    def current_set(self, subnet_id: SubnetID) -> tuple[Member, ...]:
        """Return a subnet's set now."""
        return self.set_at(subnet_id, self.heights.current)

    def primary_key(self, node_id: NodeID) -> bls.PublicKey | None:
        """Return the key of a current Primary Network validator that registered one."""
        if node_id not in self._by_node:
            return None
        for member in self.current_set(PRIMARY_NETWORK):
            if member.node_id == node_id and member.public_key is not None:
                return bls.parse_public_key(member.public_key)
        return None

    def validation(self, validation_id: ValidationID) -> Seat | None:
        """Return the L1 validator that exists under an id now, active or not."""
        seat = self._validations.get(validation_id)
        return seat if seat and seat.present else None

    def was_registered(self, validation_id: ValidationID) -> bool:
        """Tell whether an L1 validator once existed under an id; it can never be registered again."""
        return validation_id in self._validations

    def seat(self, subnet_id: SubnetID, node_id: NodeID) -> Seat:
        """Return a validator's seat in a subnet, present or not. KeyError where there is none."""
        for seat in self.seats[subnet_id]:
            if seat.node_id == node_id:
                return seat
        raise KeyError(node_id)

    def add_messages(self, messages: Iterable[SimMessage]) -> None:
        """Make messages known: from now on they are signed."""
        for message in messages:
            self.messages.append(message)
            self.known_messages.add(message.unsigned.id)

    def settle(self, height: int) -> None:
        """Record the sets that the seats make, from `height` on."""
        for subnet_id, seats in self.seats.items():
            self.history.put(subnet_id, height, members_of(seats))

    def advance(self, blocks: int = 1) -> int:
        """Accept `blocks` more blocks; seats changed before take effect with the first. Return the height."""
        for _ in range(blocks):
            height = self.heights.current + 1
            for react in self.on_block:
                react(height)
            self.settle(height)
            self.heights.made_at.append(self.clock())
            self.heights.current = height
        return self.heights.current
