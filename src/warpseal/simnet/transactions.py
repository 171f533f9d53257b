"""What can be done on the simulated P-Chain: transactions that are checked and take effect as on a node.

Source of truth: avalanchego `vms/platformvm/txs/executor/standard_tx_executor.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from typing import Final

from warpseal.simnet import l1_transactions as l1
from warpseal.simnet import writing
from warpseal.simnet.l1_transactions import Initial
from warpseal.simnet.ledger import Transaction
from warpseal.simnet.sets import Seat
from warpseal.simnet.validator import SimValidator
from warpseal.simnet.world import World
from warpseal.warp.ids import ChainID, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import ConversionData, PChainOwner, RegisterL1Validator, bootstrap_validation_id

BALANCE_NAVAX: Final = 100_000_000_000
_MAX_UINT64: Final = 2**64 - 1
_EXPIRY_WINDOW_S: Final = 24 * 3600
_EXPIRY_S: Final = 3600
_NOBODY: Final = PChainOwner(0, ())


class RejectedTransaction(Exception):
    """A transaction that no block takes; the text says why."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A transaction with its check (raises RejectedTransaction) and its effect."""

    transaction: Transaction
    check: Callable[[], None]
    apply: Callable[[], None]


class PChain:
    """The P-Chain of a simulated network. Each call makes a transaction, and a block that holds it alone.

    later: the transaction is only issued; `accept` makes the block. Raises RejectedTransaction.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[Transaction, _Step] = {}
        self._nonces: dict[ValidationID, int] = {}

    @property
    def height(self) -> int:
        """The height of the last block."""
        return self._world.heights.current

    @property
    def transactions(self) -> tuple[Transaction, ...]:
        """Every accepted transaction in order, from the first block on; payments that fill empty blocks left out."""
        return self._world.ledger.accepted

    def block(self, height: int) -> bytes:
        """Return an accepted block's bytes. LookupError beyond the tip."""
        raw = self._world.ledger.block(height)
        if raw is None:
            raise LookupError(height)
        return raw

    def conversion_of(self, subnet_id: SubnetID) -> Transaction:
        """Return the accepted conversion of an L1. LookupError where there is none."""
        for transaction in self.transactions:
            if transaction.kind == "ConvertSubnetToL1Tx" and transaction.subnet_id == subnet_id:
                return transaction
        raise LookupError(subnet_id.hex())

    def convert(
        self,
        subnet_id: SubnetID,
        validators: Sequence[int] | None = None,
        *,
        weights: Sequence[int] = (1000,),
        balance_navax: int = BALANCE_NAVAX,
        manager_chain_id: ChainID | None = None,
        later: bool = False,
    ) -> Transaction:
        """Convert a subnet that the plan left unconverted.

        validators: indices of its initial validators (None: all that track it); weights: theirs, in that order,
        repeated; manager_chain_id: None for the plan's.
        """
        indices = [one.index for one in self._trackers(subnet_id)] if validators is None else list(validators)
        weighed = zip(indices, cycle(weights), strict=False)
        initial = sorted(
            (_initial(self._world.validators[index], weight, balance_navax) for index, weight in weighed),
            key=lambda one: one.node_id,
        )
        chain_id = manager_chain_id or self._world.manager_chains[subnet_id]
        data = l1.subnet_data(subnet_id, chain_id, initial)
        transaction = l1.conversion(self._world, data, initial)
        return self._do(
            _Step(
                transaction,
                lambda: self._check_conversion(subnet_id, initial),
                lambda: self._convert(data, initial),
            ),
            later,
        )

    def register(
        self,
        subnet_id: SubnetID,
        validator: int | None = None,
        *,
        weight: int = 1000,
        balance_navax: int = BALANCE_NAVAX,
        expiry: int | None = None,
        later: bool = False,
    ) -> Transaction:
        """Register a node as a validator of an L1.

        validator: its index (None: the first node that tracks the L1 and is none of its validators); expiry: unix
        seconds (None: in an hour).
        """
        node = self._spare(subnet_id) if validator is None else self._world.validators[validator]
        message = self._message(subnet_id, node, weight, expiry)
        transaction = l1.registration(self._world, message, node.identity.bls_proof, balance_navax)
        return self._do(
            _Step(
                transaction,
                lambda: self._check_registration(message),
                lambda: self._register(message, node, balance_navax),
            ),
            later,
        )

    def set_weight(
        self, validation_id: ValidationID, weight: int, *, nonce: int | None = None, later: bool = False
    ) -> Transaction:
        """Change a validator's weight; 0 removes it. nonce: None for the next one."""
        seat = self._seat(validation_id)
        if nonce is None:
            nonce = max(seat.min_nonce, self._nonces.get(validation_id, 0))
        self._nonces[validation_id] = nonce + 1
        transaction = l1.weight_change(self._world, seat, nonce, weight)
        return self._do(
            _Step(
                transaction,
                lambda: self._check_weight(validation_id, nonce, weight),
                lambda: _reweigh(seat, nonce, weight),
            ),
            later,
        )

    def remove(self, validation_id: ValidationID, *, later: bool = False) -> Transaction:
        """Remove a validator: its weight becomes 0."""
        return self.set_weight(validation_id, 0, later=later)

    def increase_balance(self, validation_id: ValidationID, amount_navax: int, *, later: bool = False) -> Transaction:
        """Add to a validator's balance; an inactive one becomes active."""
        seat = self._seat(validation_id)
        _require(amount_navax > 0, "balance must be greater than 0")
        step = _Step(l1.funding(seat, amount_navax), lambda: self._check(seat), lambda: _fund(seat, amount_navax))
        return self._do(step, later)

    def disable(self, validation_id: ValidationID, *, later: bool = False) -> Transaction:
        """Take a validator's balance away: it stays registered, and inactive."""
        seat = self._seat(validation_id)
        step = _Step(l1.disabling(seat), lambda: self._check(seat), lambda: _fund(seat, -seat.balance_navax))
        return self._do(step, later)

    def base(self, *, later: bool = False) -> Transaction:
        """Make a payment that concerns no L1."""
        return self._do(_Step(Transaction("BaseTx", writing.base), lambda: None, lambda: None), later)

    def accept(self, *transactions: Transaction) -> int:
        """Put issued transactions into one block, in this order; return its height.

        Those before the first that is rejected stand in the block all the same.
        """
        accepted: list[Transaction] = []
        height = self.height + 1
        try:
            for transaction in transactions:
                step = self._waiting[transaction]
                step.check()
                step.apply()
                accepted.append(transaction)
                del self._waiting[transaction]
        finally:
            if accepted:
                self._world.ledger.put(height, accepted)
                self._world.advance()
        return height

    def _do(self, step: _Step, later: bool) -> Transaction:
        self._waiting[step.transaction] = step
        if later:
            self._world.ledger.issue(step.transaction)
            return step.transaction
        try:
            self.accept(step.transaction)
        finally:
            self._waiting.pop(step.transaction, None)
        return step.transaction

    def _check_conversion(self, subnet_id: SubnetID, initial: Sequence[Initial]) -> None:
        subnet = self._world.subnets[subnet_id]
        _require(subnet.conversion_id is None, "subnet is not permissioned: it was converted already")
        _require(bool(initial), "L1 must have at least one validator")
        _require(all(one.weight > 0 for one in initial), "validator weight must be non-zero")
        ascending = all(one.node_id < two.node_id for one, two in pairwise(initial))
        _require(ascending, "conversion validators are not sorted and unique")

    def _convert(self, data: ConversionData, initial: Sequence[Initial]) -> None:
        world, subnet_id = self._world, data.subnet_id
        world.subnets[subnet_id] = l1.converted(world.subnets[subnet_id], data)
        world.converted_at[subnet_id] = self.height + 1
        for index, one in enumerate(initial):
            node = world.by_node(NodeID(one.node_id))
            assert node is not None
            self._seat_at(
                node,
                Seat(
                    subnet_id,
                    node.node_id,
                    node.bls_key,
                    one.weight,
                    bootstrap_validation_id(subnet_id, index),
                    int(world.clock()),
                    one.balance_navax,
                    index=index,
                    is_l1=True,
                ),
            )

    def _message(self, subnet_id: SubnetID, node: SimValidator, weight: int, expiry: int | None) -> RegisterL1Validator:
        """Return what the manager asks for; without an expiry, one that was never registered before."""
        until = int(self._world.clock()) + _EXPIRY_S if expiry is None else expiry
        message = RegisterL1Validator(subnet_id, node.node_id, node.bls_key, until, _NOBODY, _NOBODY, weight)
        while expiry is None and message.validation_id in self._world.registrations:
            message = replace(message, expiry=message.expiry - 1)
        return message

    def _check_registration(self, message: RegisterL1Validator) -> None:
        now = int(self._world.clock())
        seats = self._world.seats.get(message.subnet_id, ())
        _require(message.weight > 0, "weight must be greater than 0")
        _require(message.expiry > now, f"warp message expired at {message.expiry} and it is currently {now}")
        _require(message.expiry <= now + _EXPIRY_WINDOW_S, "warp message not yet allowed")
        _require(not self._world.was_registered(message.validation_id), "warp message already issued")
        taken = any(seat.node_id == message.node_id and seat.present and seat.is_l1 for seat in seats)
        _require(not taken, "an L1 validator of this node exists")
        _require(sum(seat.weight for seat in seats if seat.present) + message.weight <= _MAX_UINT64, "weight overflow")

    def _register(self, message: RegisterL1Validator, node: SimValidator, balance_navax: int) -> None:
        self._world.registrations[message.validation_id] = message
        self._seat_at(
            node,
            Seat(
                message.subnet_id,
                node.node_id,
                node.bls_key,
                message.weight,
                message.validation_id,
                int(self._world.clock()),
                balance_navax,
                is_l1=True,
            ),
        )

    def _seat_at(self, node: SimValidator, seat: Seat) -> None:
        node.subnets |= {seat.subnet_id}
        node.chains.update(self._world.chains_of(seat.subnet_id))
        self._world.add_seat(seat)

    def _check_weight(self, validation_id: ValidationID, nonce: int, weight: int) -> None:
        seat = self._seat(validation_id)
        _require(
            nonce >= seat.min_nonce, f"warp message contains stale nonce {nonce} must be at least {seat.min_nonce}"
        )
        _require(nonce < _MAX_UINT64 or weight == 0, "nonce overflows")
        if weight == 0:
            others = (one for one in self._world.seats[seat.subnet_id] if one.present and one.is_l1 and one is not seat)
            _require(any(others), "attempting to remove the last L1 validator from a converted subnet")

    def _check(self, seat: Seat) -> None:
        _require(seat.present, "could not load L1 validator: not found")

    def _seat(self, validation_id: ValidationID) -> Seat:
        seat = self._world.validation(validation_id)
        if seat is None:
            raise RejectedTransaction("could not load L1 validator: not found")
        return seat

    def _trackers(self, subnet_id: SubnetID) -> list[SimValidator]:
        return [one for one in self._world.validators if subnet_id in one.subnets]

    def _spare(self, subnet_id: SubnetID) -> SimValidator:
        seated = {seat.node_id for seat in self._world.seats.get(subnet_id, ()) if seat.present}
        for one in self._trackers(subnet_id):
            if one.node_id not in seated:
                return one
        raise LookupError("every node of the L1 validates it; plan spare ones, or add_validator")


def _initial(node: SimValidator, weight: int, balance_navax: int) -> Initial:
    return Initial(node.node_id, node.bls_key, node.identity.bls_proof, weight, balance_navax)


def _reweigh(seat: Seat, nonce: int, weight: int) -> None:
    seat.min_nonce = nonce + 1
    if weight:
        seat.weight = weight
    else:
        seat.present = False


def _fund(seat: Seat, amount_navax: int) -> None:
    seat.balance_navax += amount_navax


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise RejectedTransaction(reason)
