"""Values of usage: the labels of calls, and the sums for them.

Source of truth: the specification's endpoint 16; docs/usage-metrics.md.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from msgspec import Struct, field

OTHER: Final = "other"
"""Label value of everything beyond a bound."""
NO_METHOD: Final = "none"
"""Method of bodies that cannot be parsed, and of refused handshakes."""
CLIENT_LEFT: Final = 499
"""Status of calls whose client left before the response began; their times do not count."""


class Dimension(IntEnum):
    """The labels by which the sums of a bucket are stored: all of them, none, or one.

    The numbers are stored.
    """

    ALL = 0
    NONE = 1
    PATH = 2
    METHOD = 3
    STATUS = 4
    API_KEY = 5
    COUNTRY = 6
    USER_AGENT = 7


LABELS: Final = tuple(dimension for dimension in Dimension if dimension > Dimension.NONE)
"""The dimensions of single labels, in the order of UsageLabels."""


class CallOutcome(StrEnum):
    """Outcome of a call, for success rate and wasted credits."""

    SUCCESSFUL = "successful"
    INVALID = "invalid"
    FAILED = "failed"


class UsageLabels(NamedTuple):
    """Labels of calls.

    path: path of the route, with the primary alias of its chain.
    status: HTTP status; 101 on WebSockets.
    api_key: name of the key; "" without a key.
    country: code of ISO 3166-1 alpha-2, XX or T1.
    user_agent: product name.
    """

    path: str
    method: str
    status: int
    api_key: str
    country: str
    user_agent: str


class UsageTotals(Struct, array_like=True, gc=False):
    """Sums over calls with the same labels.

    times: number of calls by bucket of a DDSketch of 1 % accuracy, over milliseconds, without
        status 499.
    """

    requests: int = 0
    invalid: int = 0
    failed: int = 0
    credits: int = 0
    credits_wasted: int = 0
    times: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, other: UsageTotals) -> None:
        """Add the sums of other calls. The order of additions does not matter."""
        self.requests += other.requests
        self.invalid += other.invalid
        self.failed += other.failed
        self.credits += other.credits
        self.credits_wasted += other.credits_wasted
        times = self.times
        for bucket, calls in other.times.items():
            times[bucket] = times.get(bucket, 0) + calls
