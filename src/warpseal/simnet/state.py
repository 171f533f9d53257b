"""The state of a simulated P-Chain: subnets, chains, seats, heights, and what can be signed.

It changes only by blocks: every change is one more height.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from warpseal import bls
from warpseal.simnet.heights import Heights
from warpseal.simnet.ledger import Ledger
from warpseal.simnet.sets import Member, Seat, SeatHistory, SetHistory, members_of
from warpseal.simnet.validator import SimValidator
from warpseal.simnet.values import SentMessage, SimChain, SimMessage, SimSubnet
from warpseal.warp.ids import PRIMARY_NETWORK, ChainID, MessageID, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import RegisterL1Validator


class World:
    """Everything that simulated nodes agree on."""

    def __init__(self, network_id: int, heights: Heights, clock: Callable[[], float], ledger: Ledger) -> None:
        self.network_id = network_id
        self.heights = heights
        self.clock = clock
        self.ledger = ledger
        self.validators: list[SimValidator] = []
        self._by_node: dict[NodeID, SimValidator] = {}
        self._validations: dict[ValidationID, tuple[SubnetID, int]] = {}
        self.subnets: dict[SubnetID, SimSubnet] = {}
        self.chains: dict[ChainID, SimChain] = {}
        self.seats: dict[SubnetID, list[Seat]] = {}
        # Heights at which subnets were made and converted, where that is known.
        self.created_at: dict[SubnetID, int] = {}
        self.converted_at: dict[SubnetID, int] = {}
        # The first block at or after Etna; 0 where every block is.
        self.etna_height = 0
        self.history = SetHistory()
        self.seat_history = SeatHistory()
        self.messages: list[SimMessage] = []
        # What EVM chains have emitted or accepted.
        self.known_messages: set[MessageID] = set()
        self.accepted_blocks: set[bytes] = set()
        # Registrations that were accepted, and the chain on which each L1's manager is to live.
        self.registrations: dict[ValidationID, RegisterL1Validator] = {}
        self.manager_chains: dict[SubnetID, ChainID] = {}
        # What managers emitted, by chain, in order.
        self.sent: dict[ChainID, list[SentMessage]] = {}
        self.on_block: list[Callable[[int], None]] = []

    def add_validator(self, validator: SimValidator) -> None:
        """Add a node; its index is its place."""
        self.validators.append(validator)
        self._by_node[validator.node_id] = validator

    def add_seat(self, seat: Seat) -> None:
        """Give a validator its place in a subnet; it counts from the next block on."""
        seats = self.seats.setdefault(seat.subnet_id, [])
        if seat.is_l1:
            self._validations[seat.id] = (seat.subnet_id, len(seats))
        seats.append(seat)

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

    @property
    def chain_time(self) -> int:
        """The time of the last block, unix seconds."""
        return self.heights.time_of(self.heights.current)

    def conversion_id(self, subnet_id: bytes) -> bytes | None:
        """Return what a subnet's conversion commits to, or None where it was not converted."""
        subnet = self.subnets.get(SubnetID(subnet_id))
        return subnet.conversion_id if subnet else None

    def validation(self, validation_id: ValidationID) -> Seat | None:
        """Return the L1 validator that exists under an id now, active or not."""
        if validation_id not in self._validations:
            return None
        subnet_id, place = self._validations[validation_id]
        seat = self.seats[subnet_id][place]
        return seat if seat.present else None

    def was_registered(self, validation_id: ValidationID) -> bool:
        """Tell whether an L1 validator once existed under an id; it can never be registered again."""
        return validation_id in self._validations

    def place_of(self, validation_id: ValidationID) -> tuple[SubnetID, int | None]:
        """Return whose validator, and which of its seats, an id names; the place is None where it names nobody."""
        return self._validations.get(validation_id, (PRIMARY_NETWORK, None))

    def keeps_seats_of(self, subnet_id: SubnetID) -> bool:
        """Tell whether older seats of a subnet are remembered: those of L1s are."""
        return subnet_id != PRIMARY_NETWORK

    def seat(self, subnet_id: SubnetID, node_id: NodeID) -> Seat:
        """Return a validator's seat in a subnet, the present one of several. KeyError where there is none."""
        found = [seat for seat in self.seats.get(subnet_id, ()) if seat.node_id == node_id]
        if not found:
            raise KeyError(node_id)
        return next((seat for seat in found if seat.present), found[-1])

    def add_messages(self, messages: Iterable[SimMessage]) -> None:
        """Make messages known: from now on they are signed."""
        for message in messages:
            self.messages.append(message)
            self.known_messages.add(message.unsigned.id)

    def send(self, chain_id: ChainID, sent: SentMessage) -> None:
        """Let a contract emit a message, unless it did before; its chain's validators sign it from now on."""
        if sent.unsigned.id not in self.known_messages:
            self.sent.setdefault(chain_id, []).append(sent)
            self.known_messages.add(sent.unsigned.id)

    def settle(self, height: int) -> None:
        """Record the sets that the seats make, from `height` on."""
        for subnet_id, seats in self.seats.items():
            self.history.put(subnet_id, height, members_of(seats))
            if self.keeps_seats_of(subnet_id):
                self.seat_history.put(subnet_id, height, seats)

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
