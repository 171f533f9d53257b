"""Request and result of a signed message by transaction."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.warp.ids import SubnetID

HeightSource = Literal["request", "epoch", "proposed"]


class L1Request(Struct, frozen=True):
    """A request for the signed message of a P-Chain transaction.

    tx_id: 32 bytes.
    quorum, buffer: percent.
    height: of the validator set; None: the epoch height of the manager's chain if it has one, else
        the proposed height; 0: the proposed height.
    registration_tx_id, justification: the origin of a removed validation, if the caller knows it
        (None, empty: not given).
    timeout_s: None: the default.
    is_default_quorum: the caller named no quorum, so the manager's chain decides it if it is known.
    """

    tx_id: bytes
    quorum: int
    buffer: int
    height: int | None = None
    registration_tx_id: bytes | None = None
    justification: bytes = b""
    timeout_s: float | None = None
    is_default_quorum: bool = False


class PresentStatement(Resource, frozen=True, gc=False, kw_only=True):
    """The state of a validation now: that it is not registered, or its nonce and weight."""

    registered: bool | UnsetType = UNSET
    nonce: str | UnsetType = UNSET
    weight: str | UnsetType = UNSET

    @property
    def change(self) -> str:
        """What the transaction did that states it."""
        if self.registered is False:
            return "removed the validation"
        return f"set the validation's weight to {self.weight} with nonce {self.nonce}"


class SupersededStatement(Resource, frozen=True, gc=False, kw_only=True):
    """What replaces a statement that is not true any more.

    by_tx_hash: the transaction that changed it.
    message, justification: hex with 0x; the message that states it.
    """

    now: PresentStatement
    by_tx_hash: str | UnsetType = UNSET
    p_chain_height: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    justification: str | UnsetType = UNSET


class L1SignedMessage(Struct, frozen=True):
    """A signed message, verified against the set at `height`.

    superseded: the present statement, if it replaces the message's one.
    is_unchecked: no node answered whether the statement still holds.
    """

    signed_message: bytes
    height: int
    height_source: HeightSource
    signing_subnet_id: SubnetID
    cached: bool
    superseded: SupersededStatement | None = None
    is_unchecked: bool = False
