"""Request and result of a signed message by transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from warpseal.warp.ids import SubnetID

HeightSource = Literal["request", "epoch", "proposed"]


@dataclass(frozen=True, slots=True)
class L1Request:
    """A request for the signed message of a P-Chain transaction.

    tx_id: 32 bytes. quorum, buffer: percent. height: of the validator set; None: the epoch height of the manager's
    chain if it has one, else the proposed height; 0: the proposed height. registration_tx_id, justification: the origin
    of a removed validation, if the caller knows it (None, empty: not given). timeout_s: None: the default.
    is_default_quorum: the caller named no quorum, so that of the manager's chain counts if it is known.
    """

    tx_id: bytes
    quorum: int
    buffer: int
    height: int | None = None
    registration_tx_id: bytes | None = None
    justification: bytes = b""
    timeout_s: float | None = None
    is_default_quorum: bool = False


@dataclass(frozen=True, slots=True)
class L1SignedMessage:
    """A signed message, verified against the set at `height`.

    superseded: None, or what replaces the message's statement by now, JSON-ready. is_unchecked: no node answered
    whether the statement still holds.
    """

    signed_message: bytes
    height: int
    height_source: HeightSource
    signing_subnet_id: SubnetID
    cached: bool
    superseded: Mapping[str, Any] | None = None
    is_unchecked: bool = False
