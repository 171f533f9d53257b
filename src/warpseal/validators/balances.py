"""L1 validators without enough balance: which ones they are, and how errors and `/ready` name them.

Pure.

Source of truth: avalanchego `vms/platformvm/validators/fee`, ACP-77.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from warpseal.node.p_chain import CurrentValidation
from warpseal.warp.ids import NodeID, id_text, node_id_text
from warpseal.warp.quorum_shortfall import MissingSigner

UNDERFUNDED_ADVICE: Final = (
    "The weight of inactive L1 validators counts in the total, and they cannot sign: top up their"
    " balance, or disable and remove them."
)
FIXED_HEIGHT_ADVICE: Final = (
    "A balance that is topped up counts at later heights only: ask for the proposed height."
)


def inactive_nodes(
    current: Iterable[CurrentValidation], min_balance_navax: int
) -> frozenset[NodeID]:
    """Return the nodes without a validation that has the balance, or pays no fee."""
    low: set[NodeID] = set()
    sound: set[NodeID] = set()
    for validation in current:
        is_low = validation.balance is not None and validation.balance < min_balance_navax
        (low if is_low else sound).add(validation.node_id)
    return frozenset(low - sound)


def underfunded_validations(
    current: Iterable[CurrentValidation], min_balance_navax: int
) -> tuple[CurrentValidation, ...]:
    """Return the validations of L1 validators that are inactive or nearly drained."""
    return tuple(
        entry
        for entry in current
        if entry.balance is not None and entry.balance < min_balance_navax
    )


def describe_underfunded(validation: CurrentValidation) -> MissingSigner:
    """Return an underfunded L1 validator as errors and `/ready` name it; it has no key of a set."""
    reason = "inactive" if validation.balance == 0 else "underfunded"
    node_ids = (node_id_text(validation.node_id),)
    return MissingSigner(
        node_ids=node_ids,
        weight=str(validation.weight),
        reason=reason,
        **balance_fields(validation),
    )


def balance_fields(validation: CurrentValidation) -> dict[str, Any]:
    """Return the fields of a MissingSigner that say what an L1 validator has left."""
    balance = validation.balance or 0
    state = f"underfunded: balance {_avax(balance)} AVAX" if balance else "inactive: balance 0"
    return {
        "validation_id": id_text(validation.validation_id),
        "balance": str(validation.balance),
        "state": state,
    }


def _avax(navax: int) -> str:
    """Return an amount with as many decimals as it has."""
    return f"{navax // 10**9}.{navax % 10**9:09}".rstrip("0").rstrip(".")
