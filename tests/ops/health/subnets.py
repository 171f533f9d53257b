"""Tracked subnets whose connected weight the tests choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warpseal.validators.subnet_tracker import SubnetReadiness
from warpseal.warp.ids import SubnetID


class FakeSubnets:
    """Stands for the tracker: reads the subnets of a test at each check."""

    def __init__(self, read: Callable[[], Sequence[SubnetReadiness]] = tuple) -> None:
        self.readiness = read

    def readiness_of(self, subnet_id: SubnetID) -> SubnetReadiness | None:
        rows = [row for row in self.readiness() if row.subnet_id == subnet_id]
        return rows[0] if rows else None
