"""What happens in a simulated network by itself: who joins and leaves at which height, and whose weight changes."""

from __future__ import annotations

from random import Random

from warpseal.simnet.l1_transactions import weight_change
from warpseal.simnet.plan import Plan
from warpseal.simnet.sets import Seat
from warpseal.simnet.state import World


class Schedule:
    """What happens at certain heights: who leaves, who joins, whose weight changes."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._every = plan.churn_every
        self._rng = Random(plan.seed + 1)

    def react(self, height: int) -> None:
        """Change the seats that the block at `height` changes."""
        for seats in self._world.seats.values():
            for seat in seats:
                self._come_and_go(seat, height)
            if self._every and seats and height > self._world.heights.first and height % self._every == 0:
                self._change_weight(self._rng.choice(seats), height)

    def _come_and_go(self, seat: Seat, height: int) -> None:
        validator = self._world.by_node(seat.node_id)
        if validator is None:
            return
        joins, leaves = validator.behaviour.joins_at, validator.behaviour.leaves_at
        if joins is not None or leaves is not None:
            seat.present = (joins is None or height >= joins) and (leaves is None or height < leaves)

    def _change_weight(self, seat: Seat, height: int) -> None:
        seat.weight = max(1, seat.weight + self._rng.choice((-1, 1)) * max(1, seat.weight // 10))
        if seat.is_l1 and seat.present:
            self._world.ledger.put(height, [weight_change(self._world, seat, seat.min_nonce, seat.weight)])
        seat.min_nonce += seat.is_l1
