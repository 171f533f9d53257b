"""Misbehaviour of simulated validators, and its grammar: `10%:slow=2s`, `0,3-5:refuse=6/later`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final


class ReplyKind(StrEnum):
    """The kind of response to a signature request."""

    HONEST = "honest"
    # A valid signature of another message; the signature of another validator.
    WRONG = "wrong"
    STOLEN = "stolen"
    # Random bytes instead of a response; 96 bytes that are not a point; too few bytes, too many,
    # none.
    GARBAGE = "garbage"
    NOT_A_POINT = "notapoint"
    SHORT = "short"
    LONG = "long"
    EMPTY = "empty"
    # On the wire: half a frame and a disconnect; a length beyond the limit; a zip bomb; a
    # disconnect.
    TRUNCATED = "truncated"
    OVERSIZED = "oversized"
    BOMB = "bomb"
    DROP = "drop"


class ListenMode(StrEnum):
    """Whether and where the validator listens."""

    OPEN = "open"
    # Claims a port on which no process listens; accepts connections and sends nothing; claims a
    # private address.
    CLOSED = "closed"
    MUTE = "mute"
    PRIVATE = "private"


class InvalidBehaviour(ValueError):
    """The text does not describe a behaviour; the message names the invalid part."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An application error: code and text."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a validator differs from a node.

    The second group of fields is fixed when the network is built.
    """

    silent: bool = False
    delay_s: tuple[float, float] = (0.0, 0.0)
    # Responder "not yet" until so long after it was first asked for the message.
    signs_after_s: float = 0.0
    refusal: Refusal | None = None
    reply: ReplyKind = ReplyKind.HONEST
    # Its P-Chain is this many blocks, or this many seconds, behind the tip.
    lag_blocks: int = 0
    behind_s: float = 0.0
    # A second response of another kind after the first; and the number of copies of each response.
    second: ReplyKind | None = None
    copies: int = 1
    lost_pongs: float = 0.0
    flood_per_s: float = 0.0

    reach: ListenMode = ListenMode.OPEN
    keyless: bool = False
    balance_navax: int | None = None
    weight: int | None = None
    leaves_at: int | None = None
    joins_at: int | None = None

    @property
    def has_fixed_fields(self) -> bool:
        """Whether it contains fields that cannot change while the network runs."""
        return any(getattr(self, name) != getattr(_HONEST, name) for name in FIXED_FIELDS)


FIXED_FIELDS: Final = ("reach", "keyless", "balance_navax", "weight", "leaves_at", "joins_at")
_HONEST: Final = Behaviour()


def parse_behaviour(text: str) -> Behaviour:
    """Return the behaviour of words joined by `+`. Raises InvalidBehaviour."""
    behaviour = _HONEST
    for word in filter(None, text.split("+")):
        name, _, value = word.partition("=")
        behaviour = replace(behaviour, **_field(name.strip(), value.strip()))
    return behaviour


def parse_duration_s(text: str) -> float:
    """Return the seconds in `250ms`, `2s`, `1.5m` or a bare number.

    Raises InvalidBehaviour.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|)", text)
    if not match:
        raise InvalidBehaviour(f"{text!r} is not a duration such as 250ms, 2s or 1m")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}[match[2]]


def _field(name: str, value: str) -> dict[str, Any]:
    if name in tuple(ReplyKind):
        return {"reply": ReplyKind(name)}
    if name in tuple(ListenMode):
        return {"reach": ListenMode(name)}
    if name not in _WORDS:
        raise InvalidBehaviour(
            f"{name!r} is not a behaviour; known: {', '.join(behaviour_words())}"
        )
    try:
        return _WORDS[name](value)
    except ValueError as error:
        raise InvalidBehaviour(f"{name}={value}: {error}") from None


def behaviour_words() -> tuple[str, ...]:
    """Return every word of the grammar."""
    return (*_WORDS, *ReplyKind, *ListenMode)


def _delay(value: str) -> dict[str, Any]:
    shortest, _, longest = value.partition("-")
    shortest_s = parse_duration_s(shortest)
    return {"delay_s": (shortest_s, parse_duration_s(longest) if longest else shortest_s)}


def _refusal(value: str) -> dict[str, Any]:
    code, _, text = value.partition("/")
    return {"refusal": Refusal(int(code), text or "refused by the simulation")}


_WORDS: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "silent": lambda _: {"silent": True},
    "slow": _delay,
    "after": lambda value: {"signs_after_s": parse_duration_s(value)},
    "refuse": _refusal,
    "lag": lambda value: {"lag_blocks": int(value or 1)},
    "behind": lambda value: {"behind_s": parse_duration_s(value)},
    "duplicate": lambda value: {"copies": int(value or 2)},
    "twice": lambda value: {"second": ReplyKind(value or ReplyKind.WRONG)},
    "lost-pongs": lambda value: {"lost_pongs": float(value or 1)},
    "flood": lambda value: {"flood_per_s": float(value or 1000)},
    "keyless": lambda _: {"keyless": True},
    "inactive": lambda _: {"balance_navax": 0},
    "balance": lambda value: {"balance_navax": int(value)},
    "weight": lambda value: {"weight": int(value)},
    "leaves": lambda value: {"leaves_at": int(value)},
    "joins": lambda value: {"joins_at": int(value)},
}
