"""What the simulated P-Chain accepts, and what an accepted transaction does to its state.

Source of truth: avalanchego `vms/platformvm/txs/executor/standard_tx_executor.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from warpseal.simnet import l1_transactions as l1
from warpseal.simnet.l1_transactions import Initial
from warpseal.simnet.sets import Seat
from warpseal.simnet.state import World
from warpseal.simnet.validator import SimValidator
from warpseal.warp.ids import NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import ConversionData, RegisterL1Validator, bootstrap_validation_id

_MAX_UINT64: Final = 2**64 - 1
_EXPIRY_WINDOW_S: Final = 24 * 3600


class RejectedTransaction(Exception):
    """A transaction that no block takes; the text says why."""


class Acceptance:
    """The checks, each of which raises RejectedTransaction, and the effects with the next block."""

    def __init__(self, world: World) -> None:
        self._world = world

    def seat(self, validation_id: ValidationID) -> Seat:
        """Return the validator that exists under an id."""
        seat = self._world.validation(validation_id)
        if seat is None:
            raise RejectedTransaction("could not load L1 validator: not found")
        return seat

    def check_seat(self, seat: Seat) -> None:
        """Check that a validator still exists."""
        require(seat.present, "could not load L1 validator: not found")

    def check_conversion(self, subnet_id: SubnetID, initial: Sequence[Initial]) -> None:
        """Check that a subnet can become an L1 with these validators."""
        subnet = self._world.subnets[subnet_id]
        require(subnet.conversion_id is None, "subnet is not permissioned: it was converted already")
        require(bool(initial), "L1 must have at least one validator")
        require(all(one.weight > 0 for one in initial), "validator weight must be non-zero")
        ascending = all(one.node_id < two.node_id for one, two in pairwise(initial))
        require(ascending, "conversion validators are not sorted and unique")

    def convert(self, data: ConversionData, initial: Sequence[Initial]) -> None:
        """Make an L1 of a subnet."""
        world, subnet_id = self._world, data.subnet_id
        world.subnets[subnet_id] = l1.converted(world.subnets[subnet_id], data)
        world.converted_at[subnet_id] = world.heights.current + 1
        for index, one in enumerate(initial):
            node = world.by_node(NodeID(one.node_id))
            assert node is not None
            seat_id = bootstrap_validation_id(subnet_id, index)
            self._seat(node, Seat(subnet_id, node.node_id, node.bls_key, one.weight, seat_id, 0, one.balance_navax))
            world.seats[subnet_id][-1].index = index

    def check_registration(self, message: RegisterL1Validator) -> None:
        """Check that a registration is in time, new and possible."""
        now = int(self._world.clock())
        seats = self._world.seats.get(message.subnet_id, ())
        require(message.weight > 0, "weight must be greater than 0")
        require(message.expiry > now, f"warp message expired at {message.expiry} and it is currently {now}")
        require(message.expiry <= now + _EXPIRY_WINDOW_S, "warp message not yet allowed")
        require(not self._world.was_registered(message.validation_id), "warp message already issued")
        taken = any(seat.node_id == message.node_id and seat.present and seat.is_l1 for seat in seats)
        require(not taken, "an L1 validator of this node exists")
        require(sum(seat.weight for seat in seats if seat.present) + message.weight <= _MAX_UINT64, "weight overflow")

    def register(self, message: RegisterL1Validator, node: SimValidator, balance_navax: int) -> None:
        """Make a validator of a node, which tracks the L1 from now on."""
        self._world.registrations[message.validation_id] = message
        seat = Seat(
            message.subnet_id, node.node_id, node.bls_key, message.weight, message.validation_id, 0, balance_navax
        )
        self._seat(node, seat)

    def check_weight(self, validation_id: ValidationID, nonce: int, weight: int) -> None:
        """Check that a change of weight is the next one, and that somebody is left."""
        seat = self.seat(validation_id)
        require(nonce >= seat.min_nonce, f"warp message contains stale nonce {nonce} must be at least {seat.min_nonce}")
        require(nonce < _MAX_UINT64 or weight == 0, "nonce overflows")
        if weight == 0:
            others = (one for one in self._world.seats[seat.subnet_id] if one.present and one.is_l1 and one is not seat)
            require(any(others), "attempting to remove the last L1 validator from a converted subnet")

    def _seat(self, node: SimValidator, seat: Seat) -> None:
        seat.start_time, seat.is_l1 = int(self._world.clock()), True
        node.subnets |= {seat.subnet_id}
        node.chains.update(self._world.chains_of(seat.subnet_id))
        self._world.add_seat(seat)


def reweigh(seat: Seat, nonce: int, weight: int) -> None:
    """Change a validator's weight; without weight it is gone."""
    seat.min_nonce = nonce + 1
    if weight:
        seat.weight = weight
    else:
        seat.present = False


def fund(seat: Seat, amount_navax: int) -> None:
    """Add to a validator's balance, or take from it."""
    seat.balance_navax += amount_navax


def require(holds: bool, reason: str) -> None:
    """Raise RejectedTransaction where a condition does not hold."""
    if not holds:
        raise RejectedTransaction(reason)
