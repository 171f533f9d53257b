"""The checks of P-Chain transactions and the effects of accepted ones.

Source of truth: avalanchego `vms/platformvm/txs/executor/standard_tx_executor.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from warpseal.warp.ids import NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import ConversionData, RegisterL1Validator, bootstrap_validation_id
from warpseal_simnet import l1_transactions as l1
from warpseal_simnet.destination import RefusalCode
from warpseal_simnet.l1_transactions import InitialValidator
from warpseal_simnet.state import SimState
from warpseal_simnet.validator_sets import Validation
from warpseal_simnet.values import SimValidator

_MAX_UINT64: Final = 2**64 - 1
_EXPIRY_WINDOW_S: Final = 24 * 3600


class RejectedTransaction(Exception):
    """The P-Chain rejects the transaction; the text is the reason."""

    def __init__(self, reason: str, code: RefusalCode = RefusalCode.NOT_ALLOWED) -> None:
        super().__init__(reason)
        self.code = code


class TxExecutor:
    """The checks, each of which raises RejectedTransaction, and the effects with the next block."""

    def __init__(self, state: SimState) -> None:
        self._state = state

    def validation(self, validation_id: ValidationID) -> Validation:
        """Return the validator that exists under an id."""
        validation = self._state.validation(validation_id)
        if validation is None:
            raise RejectedTransaction(
                "could not load L1 validator: not found", RefusalCode.NO_VALIDATION
            )
        return validation

    def check_exists(self, validation: Validation) -> None:
        """Check that a validator still exists."""
        require(
            validation.present, "could not load L1 validator: not found", RefusalCode.NO_VALIDATION
        )

    def check_capacity(self, more: int = 1) -> None:
        """Check that this many more L1 validators can be active."""
        has_capacity = self._state.count_active() + more <= self._state.fees.config.capacity
        require(has_capacity, "already at the max number of active validators")

    def check_conversion(self, subnet_id: SubnetID, initial: Sequence[InitialValidator]) -> None:
        """Check that a subnet can become an L1 with these validators."""
        subnet = self._state.subnets[subnet_id]
        require(
            subnet.conversion_id is None, "subnet is not permissioned: it was converted already"
        )
        require(bool(initial), "L1 must have at least one validator")
        require(
            all(validator.weight > 0 for validator in initial), "validator weight must be non-zero"
        )
        ascending = all(first.node_id < second.node_id for first, second in pairwise(initial))
        require(ascending, "conversion validators are not sorted and unique")
        self.check_capacity(sum(validator.balance_navax > 0 for validator in initial))

    def convert(self, data: ConversionData, initial: Sequence[InitialValidator]) -> None:
        """Convert a subnet to an L1."""
        state, subnet_id, accrued = self._state, data.subnet_id, self._state.begin_block()
        state.subnets[subnet_id] = l1.converted(state.subnets[subnet_id], data)
        state.converted_at[subnet_id] = state.heights.current + 1
        for index, validator in enumerate(initial):
            node = state.by_node(NodeID(validator.node_id))
            assert node is not None
            validation_id = bootstrap_validation_id(subnet_id, index)
            self._add_validation(
                node,
                Validation(
                    subnet_id,
                    node.node_id,
                    node.bls_key,
                    validator.weight,
                    validation_id,
                    0,
                    validator.balance_navax and accrued + validator.balance_navax,
                ),
            )
            state.validations[subnet_id][-1].index = index

    def check_increase(self, validation: Validation) -> None:
        """Check that a validator still exists and can become active."""
        self.check_exists(validation)
        self.check_capacity(not validation.active)

    def check_registration(self, message: RegisterL1Validator, balance_navax: int) -> None:
        """Check that a registration is in time, new and possible."""
        now = self._state.next_time
        validations = self._state.validations.get(message.subnet_id, ())
        require(message.weight > 0, "weight must be greater than 0")
        expired = f"warp message expired at {message.expiry} and it is currently {now}"
        require(message.expiry > now, expired, RefusalCode.EXPIRED_REGISTRATION)
        is_early = message.expiry > now + _EXPIRY_WINDOW_S
        require(not is_early, "warp message not yet allowed", RefusalCode.EARLY_REGISTRATION)
        is_new = not self._state.was_registered(message.validation_id)
        require(is_new, "warp message already issued", RefusalCode.ALREADY_DELIVERED)
        has_validator = any(
            validation.node_id == message.node_id and validation.present and validation.is_l1
            for validation in validations
        )
        require(not has_validator, "an L1 validator of this node exists")
        self.check_capacity(balance_navax > 0)
        require(
            sum(validation.weight for validation in validations if validation.present)
            + message.weight
            <= _MAX_UINT64,
            "weight overflow",
        )

    def register(
        self, message: RegisterL1Validator, node: SimValidator, balance_navax: int
    ) -> None:
        """Register a node as a validator; it tracks the L1 from now on."""
        self._state.registrations[message.validation_id] = message
        end = balance_navax and self._state.begin_block() + balance_navax
        validation = Validation(
            message.subnet_id,
            node.node_id,
            node.bls_key,
            message.weight,
            message.validation_id,
            0,
            end,
        )
        self._add_validation(node, validation)

    def check_weight(self, validation_id: ValidationID, nonce: int, weight: int) -> None:
        """Check that a weight change has the next nonce and leaves the L1 a validator."""
        validation = self.validation(validation_id)
        check_nonce(validation, nonce)
        require(nonce < _MAX_UINT64 or weight == 0, "nonce overflows", RefusalCode.RESERVED_NONCE)
        if weight == 0:
            others = (
                other
                for other in self._state.validations[validation.subnet_id]
                if other.present and other.is_l1 and other is not validation
            )
            is_last = "attempting to remove the last L1 validator from a converted subnet"
            require(any(others), is_last, RefusalCode.LAST_VALIDATOR)

    def increase_balance(self, validation: Validation, amount_navax: int) -> None:
        """Add to a validator's balance; an inactive one becomes active."""
        paid_until = validation.end_accumulated_fee or self._state.begin_block()
        validation.end_accumulated_fee = paid_until + amount_navax

    def _add_validation(self, node: SimValidator, validation: Validation) -> None:
        validation.start_time, validation.is_l1 = self._state.next_time, True
        node.subnets |= {validation.subnet_id}
        node.chains.update(self._state.chains_of(validation.subnet_id))
        self._state.add_validation(validation)


def check_nonce(validation: Validation, nonce: int) -> None:
    """Check that a weight change is newer than the last one."""
    stale = f"warp message contains stale nonce {nonce} must be at least {validation.min_nonce}"
    require(nonce >= validation.min_nonce, stale, RefusalCode.STALE_NONCE)


def set_weight(validation: Validation, nonce: int, weight: int) -> None:
    """Change the weight of a validator; weight 0 removes it."""
    validation.min_nonce = nonce + 1
    if weight:
        validation.weight = weight
    else:
        validation.present = False


def disable(validation: Validation) -> None:
    """Take a validator's balance away."""
    validation.end_accumulated_fee = 0


def require(holds: bool, reason: str, code: RefusalCode = RefusalCode.NOT_ALLOWED) -> None:
    """Raise RejectedTransaction unless a condition holds."""
    if not holds:
        raise RejectedTransaction(reason, code)
