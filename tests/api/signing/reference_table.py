"""What Warpseal answers to each exchange recorded with the reference aggregator, and why where it
differs.

The recording is tests/vectors/localnet/reference-aggregator.jsonl; a position is a line of it,
counted from 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests import paths

RECORDING: Final = paths.LOCALNET / "reference-aggregator.jsonl"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One recorded request and answer.

    request: a JSON object, a raw text, or None for no body.
    """

    position: int
    method: str
    path: str
    request: dict[str, Any] | str | None
    status: int
    content_type: str
    body: str

    @property
    def raw_request(self) -> bytes:
        """The body as it was sent."""
        if self.request is None:
            return b""
        return (
            self.request.encode()
            if isinstance(self.request, str)
            else json.dumps(self.request).encode()
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """What Warpseal answers.

    code: code of the error.
    text: part of the error text; None means the reference's text, then the reason.
    deviation: reason why status or text differ from the reference's on purpose; empty if they are
        equal.
    """

    status: int
    code: str | None = None
    text: str | None = None
    deviation: str = ""


def load_exchanges() -> list[Exchange]:
    """Return the recording, line by line."""
    lines = RECORDING.read_text().splitlines()
    return [Exchange(position=position, **json.loads(line)) for position, line in enumerate(lines)]


SAME: Final = Expected(200)


def _each(positions: Iterable[int], expected: Expected) -> dict[int, Expected]:
    return dict.fromkeys(positions, expected)


def _bad_request(code: str) -> Expected:
    return Expected(400, code)


_INACTIVE: Final = Expected(
    503,
    "quorum_not_reached",
    deviation=(
        "The reference waits and says 500; one validator is inactive, so that 100 % cannot be"
        " reached until its balance is topped up: the reply says so at once and names the"
        " validator."
    ),
)
_WRONG_SUBNET: Final = Expected(
    400,
    "wrong_signing_subnet",
    "does not run the source chain",
    "The reference asks validators that do not run the chain until the deadline, and says 500; the"
    " P-Chain knows which subnet does, and Warpseal names it at once.",
)
_NO_SET: Final = Expected(
    400,
    "no_validators",
    "no validators at P-Chain height 1",
    "The reference says 500 to a wrong request.",
)
_AHEAD: Final = Expected(
    400,
    "height_too_new",
    "does not exist yet",
    "The reference says 500 to a wrong request, and passes on what its node said.",
)
_UNKNOWN_FIELD: Final = Expected(
    400,
    "unknown_field",
    "unknown-key: no such field",
    "The reference ignores unknown keys silently; a setting makes Warpseal do the same.",
)
_OTHER_SPELLING: Final = Expected(
    400,
    "no_validators",
    "no validators at P-Chain height 1",
    "The reference ignores this spelling of the height and signs with another set than was asked"
    " for.",
)
_UNKNOWN_CHAIN: Final = Expected(
    404, "unknown_chain", "no blockchain with id", "The reference says 500 to a wrong request."
)
_NO_ROUTE: Final = Expected(
    404,
    "not_found",
    "no such path",
    "The reference answers plain text; every error of Warpseal is JSON.",
)
_METRICS: Final = Expected(
    200,
    deviation=(
        "Warpseal shows /metrics on its metrics port only, and has more series than the reference."
    ),
)

EXPECTED: Final[dict[int, Expected]] = {
    **_each(range(38), SAME),
    **_each((1, 4, 7, 28, 31, 34), _INACTIVE),
    38: _WRONG_SUBNET,
    **_each((39, 40), _bad_request("nothing_to_sign")),
    41: _bad_request("undecodable_message"),
    **_each((42, 43, 44), _bad_request("not_a_warp_message")),
    45: _bad_request("invalid_quorum"),
    46: SAME,
    47: _bad_request("invalid_quorum_buffer"),
    48: _bad_request("undecodable_body"),
    49: _bad_request("invalid_signing_subnet"),
    50: _NO_SET,
    51: _AHEAD,
    52: SAME,
    53: _bad_request("undecodable_justification"),
    54: _UNKNOWN_FIELD,
    55: _bad_request("unusable_justification"),
    56: _UNKNOWN_CHAIN,
    57: _OTHER_SPELLING,
    **_each((58, 59, 60), _bad_request("undecodable_body")),
    61: SAME,
    62: _NO_ROUTE,
    63: SAME,
    **_each((64, 65), _METRICS),
}
"""By position."""

REFUSED_BEFORE_AGGREGATION: Final = (*range(39, 46), 47, 48, 49, 53, 54, 55, 58, 59, 60, 62)
"""Positions that the HTTP API answers without an aggregation."""

SIGNED: Final = tuple(
    position for position, expected in EXPECTED.items() if expected == SAME and position != 63
)
"""Positions that are answered with a signed message."""
