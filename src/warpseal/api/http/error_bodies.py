"""Bodies of error responses; see docs/errors.md.

`error_response` builds them from the details of errors. The twins in kebab case are derived by the
document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from warpseal.delivery.report import DeliveryAdvice
from warpseal.l1.errors import OriginProgress
from warpseal.l1.request import SupersededStatement
from warpseal.resources.base import UNSET, Resource, UnsetType
from warpseal.upstream.errors import AnswerClass, NodeAttempt
from warpseal.warp.quorum_shortfall import MissingSigner, Verdict


class ErrorDetail(Resource, frozen=True, gc=False, kw_only=True):
    """What a program may want to know beyond the code.

    Each code has some of these keys, or none; see docs/errors.md.

    The fields from `verdict` to `hints` describe a missed quorum.
    counts: missing validators by reason.
    validators: the heaviest ones.
    """

    verdict: Verdict | UnsetType = UNSET
    signed_weight: str | UnsetType = UNSET
    required_weight: str | UnsetType = UNSET
    total_weight: str | UnsetType = UNSET
    p_chain_height: str | UnsetType = UNSET
    signing_subnet_id: str | UnsetType = UNSET
    counts: Mapping[str, int] | UnsetType = UNSET
    validators: tuple[MissingSigner, ...] | UnsetType = UNSET
    hints: tuple[str, ...] | UnsetType = UNSET
    advice: DeliveryAdvice | UnsetType = UNSET

    tx_hash: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    transaction_type: str | UnsetType = UNSET
    superseded: SupersededStatement | UnsetType = UNSET
    validation_id: str | UnsetType = UNSET
    progress: OriginProgress | UnsetType = UNSET

    kind: str | UnsetType = UNSET
    value: str | UnsetType = UNSET

    field: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    limit_bytes: int | UnsetType = UNSET

    message_network_id: int | UnsetType = UNSET
    network_id: int | UnsetType = UNSET
    blockchain_id: str | UnsetType = UNSET
    blockchain_ids: Mapping[str, str] | UnsetType = UNSET
    chain_id: str | UnsetType = UNSET
    destination_blockchain_id: str | UnsetType = UNSET
    manager_blockchain_id: str | UnsetType = UNSET
    oldest: str | UnsetType = UNSET
    tip: str | UnsetType = UNSET

    quorum: int | UnsetType = UNSET
    classes: tuple[AnswerClass, ...] | UnsetType = UNSET
    nodes: tuple[NodeAttempt, ...] | UnsetType = UNSET

    block_id: str | UnsetType = UNSET
    chain: str | UnsetType = UNSET
    height: str | UnsetType = UNSET
    node_height: str | UnsetType = UNSET
    lag_seconds: int | UnsetType = UNSET
    allowed_seconds: float | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    address: str | UnsetType = UNSET
    token_id: str | UnsetType = UNSET

    allowed: tuple[str, ...] | UnsetType = UNSET
    served: tuple[str, ...] | UnsetType = UNSET
    missing: str | UnsetType = UNSET
    setting: str | UnsetType = UNSET
    limit: int | UnsetType = UNSET
    scope: Literal["client", "daemon"] | UnsetType = UNSET
    expected_seconds: int | UnsetType = UNSET
    waiting: int | UnsetType = UNSET
    limit_units: int | UnsetType = UNSET
    window_seconds: int | UnsetType = UNSET


class Error(Resource, frozen=True, gc=False, kw_only=True):
    """An error.

    error: the status text.
    code: stable, see docs/errors.md.
    detail: machine-readable.
    """

    message: str
    error: str
    status_code: int
    code: str
    detail: ErrorDetail


class MetricsApiError(Resource, frozen=True, gc=False, kw_only=True):
    """An error of the Metrics API, whose message is a list."""

    message: tuple[str, ...]
    error: str
    status_code: int
    code: str
    detail: ErrorDetail


class KebabError(Resource, frozen=True, gc=False, kw_only=True):
    """An error as the reference aggregator writes it."""

    error: str
    code: str
    detail: ErrorDetail
