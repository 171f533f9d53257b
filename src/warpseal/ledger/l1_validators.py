"""The validators of L1s, and who of them still pays.

Source of truth: ACP-77, avalanchego `vms/platformvm/state/l1_validator.go`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from warpseal.warp.ids import NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import PChainOwner


@dataclass(frozen=True, slots=True)
class L1Validator:
    """One validation. end_accumulated_fee: at which sum of fees its balance is used up, nAVAX; 0: inactive."""

    validation_id: ValidationID
    subnet_id: SubnetID
    node_id: NodeID
    public_key: bytes
    remaining_balance_owner: PChainOwner
    deactivation_owner: PChainOwner
    start_s: int
    weight: int
    min_nonce: int
    end_accumulated_fee: int

    def balance(self, accrued_fees: int) -> int:
        """Return what is left, nAVAX, when `accrued_fees` have been paid by everybody."""
        return max(0, self.end_accumulated_fee - accrued_fees)


@dataclass(slots=True)
class L1Validators:
    """All validations that were not removed; the active ones also in the order in which they run out."""

    by_id: dict[ValidationID, L1Validator] = field(default_factory=dict)
    active: int = 0
    # Ends of those who were funded again or left stay until they come up.
    _ends: list[tuple[int, ValidationID]] = field(default_factory=list)

    @classmethod
    def of(cls, validators: Iterator[L1Validator]) -> L1Validators:
        """Return the set of these."""
        by_id = {validator.validation_id: validator for validator in validators}
        ends = [(each.end_accumulated_fee, key) for key, each in by_id.items() if each.end_accumulated_fee]
        active = len(ends)
        heapify(ends)
        return cls(by_id, active, ends)

    def put(self, validator: L1Validator) -> None:
        """Add a validator, or replace it."""
        before = self.by_id.get(validator.validation_id)
        was = before.end_accumulated_fee if before is not None else 0
        end = validator.end_accumulated_fee
        self.by_id[validator.validation_id] = validator
        if end and end != was:
            heappush(self._ends, (end, validator.validation_id))
        self.active += bool(end) - bool(was)

    def remove(self, validator: L1Validator) -> None:
        """Take out a validator, which must be there as it is given."""
        del self.by_id[validator.validation_id]
        self.active -= bool(validator.end_accumulated_fee)

    def deactivate_below(self, accrued_fees: int) -> list[L1Validator]:
        """Deactivate those whose end lies below `accrued_fees`; return them as they were, by their ends."""
        gone: list[L1Validator] = []
        ends = self._ends
        while ends and ends[0][0] < accrued_fees:
            end, validation_id = heappop(ends)
            validator = self.by_id.get(validation_id)
            if validator is None or validator.end_accumulated_fee != end:
                continue
            gone.append(validator)
            self.put(replace(validator, end_accumulated_fee=0))
        return gone

    def __iter__(self) -> Iterator[L1Validator]:
        """Yield all, by validation id."""
        for validation_id in sorted(self.by_id):
            yield self.by_id[validation_id]
