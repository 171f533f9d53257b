"""The P-Chain as it was: what a node or a validator knows whose chain ends at an older block."""

from __future__ import annotations

from warpseal.simnet.sets import Member, Seat
from warpseal.simnet.state import World
from warpseal.simnet.values import SimSubnet
from warpseal.warp.ids import SubnetID, ValidationID


class View:
    """The state after the block at `height`, below 0 that of block 0; at the tip the world itself, whatever changes."""

    def __init__(self, world: World, height: int) -> None:
        self.world = world
        self.height = min(max(0, height), world.heights.current)
        self._is_tip = self.height == world.heights.current

    @property
    def chain_time(self) -> int:
        """The time of the block, unix seconds."""
        return self.world.heights.time_of(self.height)

    @property
    def proposed(self) -> int:
        """The height that a new block refers to."""
        return self.world.heights.proposed_at(self.height)

    @property
    def epoch(self) -> tuple[int, int, int]:
        """Number, start and P-Chain height of the epoch of every chain."""
        return self.world.heights.epoch_at(self.height)

    @property
    def subnets(self) -> tuple[SimSubnet, ...]:
        """Every subnet that exists."""
        return tuple(self._then(subnet) for subnet in self.world.subnets.values() if self._exists(subnet.subnet_id))

    def subnet(self, subnet_id: bytes) -> SimSubnet | None:
        """Return a subnet, converted or not, or None where there is none."""
        subnet = self.world.subnets.get(SubnetID(subnet_id))
        return self._then(subnet) if subnet and self._exists(subnet.subnet_id) else None

    def conversion_id(self, subnet_id: bytes) -> bytes | None:
        """Return what a subnet's conversion commits to, or None where it was not converted."""
        subnet = self.subnet(subnet_id)
        return subnet.conversion_id if subnet else None

    def seats(self, subnet_id: SubnetID) -> tuple[Seat, ...]:
        """Return the present seats of a subnet."""
        if self._is_tip or not self.world.keeps_seats_of(subnet_id):
            seats = tuple(self.world.seats.get(subnet_id, ()))
        else:
            seats = self.world.seat_history.at(subnet_id, self.height)
        return tuple(seat for seat in seats if seat.present)

    def validation(self, validation_id: ValidationID) -> Seat | None:
        """Return the L1 validator that exists under an id, active or not."""
        if self._is_tip:
            return self.world.validation(validation_id)
        seat = self._seat(validation_id)
        return seat if seat and seat.present else None

    def was_registered(self, validation_id: ValidationID) -> bool:
        """Tell whether an L1 validator exists or once existed under an id."""
        if self._is_tip:
            return self.world.was_registered(validation_id)
        return self._seat(validation_id) is not None

    def set_at(self, subnet_id: SubnetID, height: int) -> tuple[Member, ...]:
        """Return a subnet's set after the block at `height`, which is not beyond this state's."""
        return self.world.set_at(subnet_id, height)

    def _seat(self, validation_id: ValidationID) -> Seat | None:
        subnet_id, place = self.world.place_of(validation_id)
        seats = self.world.seat_history.at(subnet_id, self.height)
        return seats[place] if place is not None and place < len(seats) else None

    def _exists(self, subnet_id: SubnetID) -> bool:
        return self.height >= self.world.created_at.get(subnet_id, 0)

    def _then(self, subnet: SimSubnet) -> SimSubnet:
        converted_at = self.world.converted_at.get(subnet.subnet_id, 0)
        return subnet.unconverted() if self.height < converted_at else subnet
