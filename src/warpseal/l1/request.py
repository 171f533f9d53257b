"""Request and result of a signed message by transaction."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.warp.ids import SubnetID

HeightSource = Literal["request", "epoch", "proposed"]


class L1Request(Struct, frozen=True):
    """A request for the signed message of a P-Chain transaction.

    tx_id: id of the transaction, 32 bytes.
    quorum, buffer: shares of the weight, percent.
    height: height of the validator set. None is the epoch height of the manager's chain, or the
        proposed height if it has no epoch; 0 is the proposed height.
    registration_tx_id, justification: origin of a removed validation, None and empty if the caller
        does not know it.
    timeout_s: timeout of the request, None for the default.
    is_default_quorum: the caller named no quorum. Then that of the manager's chain counts,
        if it is known.
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
        """The verb phrase about the transaction that led to this state."""
        if self.registered is False:
            return "removed the validation"
        return f"set the validation's weight to {self.weight} with nonce {self.nonce}"


class SupersededStatement(Resource, frozen=True, gc=False, kw_only=True):
    """The statement that replaces one that is not true any more.

    by_tx_hash: hash of the transaction that changed the state.
    message, justification: message of the present state and its justification, hex with 0x.
    """

    now: PresentStatement
    by_tx_hash: str | UnsetType = UNSET
    p_chain_height: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    justification: str | UnsetType = UNSET


class L1SignedMessage(Struct, frozen=True):
    """A signed message, verified against the set at `height`.

    superseded: present statement, if it replaces that of the message.
    is_unchecked: no node answered if the statement still holds.
    """

    signed_message: bytes
    height: int
    height_source: HeightSource
    signing_subnet_id: SubnetID
    cached: bool
    superseded: SupersededStatement | None = None
    is_unchecked: bool = False
