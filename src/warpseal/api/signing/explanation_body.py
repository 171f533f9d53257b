"""The body of an explained transaction, as the OpenAPI document describes it; `l1/explain` makes it."""

from __future__ import annotations

from typing import Literal

from warpseal.api.http.error_bodies import OriginProgress
from warpseal.l1.origins import Source as OriginSource
from warpseal.l1.request import HeightSource, PresentStatement
from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.warp.quorum_shortfall import MissingSigner


class ExplainedTransaction(Resource, frozen=True, gc=False, kw_only=True):
    """The transaction. status: at a node. type, chain: of an accepted one. p_chain_height_at_most: as far as known."""

    tx_hash: str
    status: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    chain: str | UnsetType = UNSET
    p_chain_height: str | UnsetType = UNSET
    p_chain_height_at_most: str | UnsetType = UNSET


class ExplainedFields(Resource, frozen=True, gc=False, kw_only=True):
    """The fields of the message, by its kind."""

    conversion_id: str | UnsetType = UNSET
    validation_id: str | UnsetType = UNSET
    registered: bool | UnsetType = UNSET
    nonce: str | UnsetType = UNSET
    weight: str | UnsetType = UNSET


class ExplainedMessage(Resource, frozen=True, gc=False, kw_only=True):
    """The message of the transaction. hex: of the unsigned message, with 0x."""

    hex: str
    id: str
    kind: str
    fields: ExplainedFields
    manager_chain_id: str
    manager_address: str
    subnet_id: str | UnsetType = UNSET


class ExplainedJustification(Resource, frozen=True, gc=False, kw_only=True):
    """The justification. hex: with 0x, null if it is not known. source: where it was found. progress: of the search."""

    hex: str | None
    source: OriginSource | UnsetType = UNSET
    progress: OriginProgress | UnsetType = UNSET


class ExplainedTruth(Resource, frozen=True, gc=False, kw_only=True):
    """Whether the statement holds. The other fields are those of a superseded one."""

    state: Literal["true", "superseded", "unknown"]
    now: PresentStatement | UnsetType = UNSET
    by_tx_hash: str | UnsetType = UNSET
    p_chain_height: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    justification: str | UnsetType = UNSET


class ExplainedHeight(Resource, frozen=True, gc=False, kw_only=True):
    """The P-Chain height of the validator set, and how it is chosen."""

    height: str
    source: HeightSource


class ExplainedWeights(Resource, frozen=True, gc=False, kw_only=True):
    """The weights of the validator set. with_key: of validators that can sign; validators: their number."""

    total: str
    required: str
    with_key: str
    validators: int


class ExplainedArchive(Resource, frozen=True, gc=False, kw_only=True):
    """The stored signatures, and the weight of the set that signed them."""

    signatures: int
    shares: int
    weight: str


class ExplainedCheck(Resource, frozen=True, gc=False, kw_only=True):
    """A check. ok: null if its result is not known."""

    check: str
    ok: bool | None
    why: str


class Explanation(Resource, frozen=True, gc=False, kw_only=True):
    """The plan for signing a transaction's message: as far as it is known, and every check in order.

    truth: whether the statement holds. inactive: the heaviest inactive L1 validators. stored: what was signed before.
    failing: the first check that fails, or null.
    """

    transaction: ExplainedTransaction
    checks: tuple[ExplainedCheck, ...]
    failing: str | None
    message: ExplainedMessage | UnsetType = UNSET
    justification: ExplainedJustification | UnsetType = UNSET
    truth: ExplainedTruth | UnsetType = UNSET
    signing_subnet_id: str | UnsetType = UNSET
    p_chain_height: ExplainedHeight | UnsetType = UNSET
    weights: ExplainedWeights | UnsetType = UNSET
    inactive: tuple[MissingSigner, ...] | UnsetType = UNSET
    stored: ExplainedArchive | UnsetType = UNSET
