"""The P-Chain as it was: what a node or a validator knows whose chain ends at an older block."""

from __future__ import annotations

from bisect import bisect_right
from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from warpseal.simnet.sets import Member, Seat
from warpseal.warp.ids import SubnetID, ValidationID

if TYPE_CHECKING:
    from warpseal.simnet.world import SimSubnet, World

_STATE: Final = attrgetter("weight", "min_nonce", "present", "balance_navax", "public_key")


class SeatHistory:
    """The seats of every subnet after every block, kept as changes. Seats are only ever added."""

    def __init__(self) -> None:
        self._heights: dict[SubnetID, list[int]] = {}
        self._seats: dict[SubnetID, list[tuple[Seat, ...]]] = {}
        self._last: dict[SubnetID, list[object]] = {}

    def put(self, subnet_id: SubnetID, height: int, seats: list[Seat]) -> None:
        """Record the seats from `height` on; heights come in ascending order."""
        states = list(map(_STATE, seats))
        before = self._last.get(subnet_id, [])
        if states == before:
            return
        kept = self._seats.setdefault(subnet_id, [])
        old = kept[-1] if kept else ()
        unchanged = len(before)
        made = tuple(
            old[place] if place < unchanged and before[place] == states[place] else copy(seat)
            for place, seat in enumerate(seats)
        )
        heights = self._heights.setdefault(subnet_id, [])
        if heights and heights[-1] == height:
            kept[-1] = made
        else:
            heights.append(height)
            kept.append(made)
        self._last[subnet_id] = list(states)

    def at(self, subnet_id: SubnetID, height: int) -> tuple[Seat, ...]:
        """Return the seats after the block at `height`, present or not."""
        version = bisect_right(self._heights.get(subnet_id, []), height) - 1
        return self._seats[subnet_id][version] if version >= 0 else ()


class View:
    """The state after the block at `height`; at the tip it is the world itself, whatever changes there."""

    def __init__(self, world: World, height: int) -> None:
        self.world = world
        self.height = height
        self._is_tip = height == world.heights.current

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
