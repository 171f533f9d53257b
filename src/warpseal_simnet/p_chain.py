"""The simulated P-Chain: transactions with the checks and effects of a node.

Source of truth: avalanchego `vms/platformvm/txs/executor/standard_tx_executor.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from msgspec.structs import replace

from warpseal.warp.codec import MalformedMessage
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import L1ValidatorWeight, PChainOwner, RegisterL1Validator
from warpseal.warp.message import AddressedCall
from warpseal_simnet import l1_transactions as l1
from warpseal_simnet import tx_builder
from warpseal_simnet.destination import (
    Delivery,
    ReceivedMessage,
    RefusalCode,
    refuse,
    verify_in_block,
)
from warpseal_simnet.l1_transactions import InitialValidator
from warpseal_simnet.ledger import Transaction
from warpseal_simnet.state import SimState
from warpseal_simnet.tx_builder import Funding, TxDraft
from warpseal_simnet.tx_executor import (
    RejectedTransaction,
    TxExecutor,
    check_nonce,
    disable,
    require,
    set_weight,
)
from warpseal_simnet.validator_sets import Validation
from warpseal_simnet.values import SimValidator

BALANCE_NAVAX: Final = 100_000_000_000
_EXPIRY_S: Final = 3600
_WEIGHT_TYPE: Final = 3
_NO_OWNER_KEYS: Final = PChainOwner(0, ())


@dataclass(frozen=True, slots=True)
class _Step:
    """A transaction with its check (raises RejectedTransaction) and its effect."""

    transaction: Transaction
    check: Callable[[], None]
    apply: Callable[[], None]


class PChain:
    """The P-Chain of a simulated network.

    Each method makes a transaction and a block that contains only it. With `later` it only issues
    the transaction, and `accept` makes the block. Methods raise RejectedTransaction.
    """

    def __init__(self, state: SimState) -> None:
        self._state = state
        self._executor = TxExecutor(state)
        self._waiting: dict[Transaction, _Step] = {}
        self._nonces: dict[ValidationID, int] = {}

    @property
    def height(self) -> int:
        """The height of the last block."""
        return self._state.heights.current

    @property
    def transactions(self) -> tuple[Transaction, ...]:
        """All accepted transactions in order, without the payments that fill empty blocks."""
        return self._state.ledger.accepted

    def block(self, height: int) -> bytes:
        """Return the bytes of a block. Raises LookupError beyond the tip."""
        raw = self._state.ledger.block(height)
        if raw is None:
            raise LookupError(height)
        return raw

    def conversion_of(self, subnet_id: SubnetID) -> Transaction:
        """Return the accepted conversion of an L1. Raises LookupError if there is none."""
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

        validators: indices of the initial validators; None for all nodes that track the subnet.
        weights: weights of the validators in that order, repeated.
        manager_chain_id: ID of the manager's chain; None for the chain of the plan.
        """
        if validators is None:
            validators = [node.index for node in self._trackers(subnet_id)]
        initial = [
            _initial(self._state.validators[index], weight, balance_navax)
            for index, weight in zip(validators, cycle(weights), strict=False)
        ]
        initial.sort(key=lambda validator: validator.node_id)
        chain_id = manager_chain_id or self._state.manager_chains[subnet_id]
        data = l1.subnet_data(subnet_id, chain_id, initial)
        transaction = l1.conversion(self._state, data, initial)
        return self._do(
            _Step(
                transaction,
                lambda: self._executor.check_conversion(subnet_id, initial),
                lambda: self._executor.convert(data, initial),
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

        validator: index of the node; None for the first that tracks the L1 without validating it.
        expiry: unix seconds; None for an hour from now.
        """
        node = self._spare(subnet_id) if validator is None else self._state.validators[validator]
        message = self._message(subnet_id, node, weight, expiry)
        return self._do(self._registration(message, node, balance_navax), later)

    def set_weight(
        self,
        validation_id: ValidationID,
        weight: int,
        *,
        nonce: int | None = None,
        later: bool = False,
    ) -> Transaction:
        """Change a validator's weight; 0 removes it.

        nonce: None for the next one.
        """
        validation = self._executor.validation(validation_id)
        if nonce is None:
            nonce = max(validation.min_nonce, self._nonces.get(validation_id, 0))
        transaction = self._do(self._weight_change(validation, nonce, weight), later)
        # Issued transactions count as well: a manager never uses a nonce twice.
        self._nonces[validation_id] = nonce + 1
        return transaction

    def remove(self, validation_id: ValidationID, *, later: bool = False) -> Transaction:
        """Remove a validator: its weight becomes 0."""
        return self.set_weight(validation_id, 0, later=later)

    def increase_balance(
        self, validation_id: ValidationID, amount_navax: int, *, later: bool = False
    ) -> Transaction:
        """Add to a validator's balance; an inactive one becomes active."""
        validation = self._executor.validation(validation_id)
        require(amount_navax > 0, "balance must be greater than 0")
        step = _Step(
            l1.funding(validation, amount_navax),
            lambda: self._executor.check_increase(validation),
            lambda: self._executor.increase_balance(validation, amount_navax),
        )
        return self._do(step, later)

    def disable(self, validation_id: ValidationID, *, later: bool = False) -> Transaction:
        """Take a validator's balance away: it stays registered, and inactive."""
        validation = self._executor.validation(validation_id)
        step = _Step(
            l1.disabling(validation),
            lambda: self._executor.check_exists(validation),
            lambda: disable(validation),
        )
        return self._do(step, later)

    def delegate(self, node_id: NodeID, weight: int, *, later: bool = False) -> Transaction:
        """Stake with a validator of the Primary Network, whose weight grows by it.

        weight: the stake, nAVAX.
        """
        validation = self._state.validation_of(PRIMARY_NETWORK, node_id)
        start_s, asset_id = self._state.next_time, self._state.ledger.asset_id

        def check() -> None:
            require(validation.present, "the node does not validate the Primary Network")

        def apply() -> None:
            validation.weight += weight

        draft = tx_builder.delegate(node_id, weight, start_s, asset_id)
        step = _Step(Transaction(draft.kind, lambda: draft), check, apply)
        return self._do(step, later)

    def base(self, *, later: bool = False) -> Transaction:
        """Make a payment that affects no L1."""
        return self._do(
            _Step(Transaction("BaseTx", tx_builder.base), lambda: None, lambda: None), later
        )

    def future(self, *, later: bool = False) -> Transaction:
        """Make a transaction of a type that no release up to 1.15.3 has; it affects no L1."""
        draft = TxDraft("FutureTx", b"a later release reads this")
        step = _Step(Transaction(draft.kind, lambda: draft), lambda: None, lambda: None)
        return self._do(step, later)

    def accept(self, *transactions: Transaction) -> int:
        """Put issued transactions into one block, in this order; return its height.

        If one is rejected, the block contains those before it.
        """
        accepted: list[Transaction] = []
        height = self.height + 1
        try:
            for transaction in transactions:
                step = self._waiting[transaction]
                step.check()
                self._state.begin_block()
                step.apply()
                accepted.append(transaction)
                del self._waiting[transaction]
        finally:
            if accepted:
                self._state.ledger.put(height, accepted)
                self._state.advance()
        return height

    def deliver(
        self, messages: Sequence[bytes], balance_navax: int = BALANCE_NAVAX
    ) -> list[Delivery]:
        """Build the next block with the transactions for these signed messages.

        Refused messages have no transaction in it.
        balance_navax: the balance of a validator that a message registers.
        """
        block = self._state.proposervm[P_CHAIN].next_block(self._state.next_time)
        accepted: list[Transaction] = []
        deliveries = []
        for raw in messages:
            delivery = verify_in_block(self._state, self._state.chains[P_CHAIN], block, raw)
            if delivery.accepted:
                try:
                    step = self._delivered(raw, balance_navax)
                    step.check()
                    self._state.begin_block()
                    step.apply()
                    accepted.append(step.transaction)
                except RejectedTransaction as error:
                    delivery = refuse(error.code, str(error))
            deliveries.append(delivery)
        self._state.ledger.put(self.height + 1, accepted)
        self._state.advance()
        return deliveries

    def _delivered(self, raw: bytes, balance_navax: int) -> _Step:
        """Return the transaction for a signed message of a manager. Raises RejectedTransaction."""
        unsigned = ReceivedMessage.parse(raw).unsigned
        try:
            call = AddressedCall.parse(unsigned.payload)
            message = _parse_request(call.payload)
        except MalformedMessage as error:
            text = f"failed to parse the payload: {error}"
            raise RejectedTransaction(text, RefusalCode.OTHER_DESTINATION) from None
        if isinstance(message, RegisterL1Validator):
            self._check_manager(message.subnet_id, unsigned.source_chain_id, call)
            node = self._state.by_node(NodeID(message.node_id))
            has_key = node is not None and node.bls_key == message.public_key
            if node is None or not has_key:
                raise RejectedTransaction(
                    "invalid proof of possession: the simulation lacks the node's key"
                )
            return self._registration(message, node, balance_navax, raw)
        validation = self._executor.validation(message.validation_id)
        check_nonce(validation, message.nonce)
        self._check_manager(validation.subnet_id, unsigned.source_chain_id, call)
        return self._weight_change(validation, message.nonce, message.weight, raw)

    def _check_manager(self, subnet_id: SubnetID, source: ChainID, call: AddressedCall) -> None:
        subnet = self._state.subnets.get(subnet_id)
        is_manager = subnet is not None and (subnet.manager_chain_id, subnet.manager_address) == (
            source,
            call.source_address,
        )
        require(is_manager, "the message is not of the L1's manager", RefusalCode.WRONG_MANAGER)

    def _registration(
        self,
        message: RegisterL1Validator,
        node: SimValidator,
        balance_navax: int,
        delivered: bytes | None = None,
    ) -> _Step:
        funding = Funding(node.identity.bls_proof, balance_navax)
        return _Step(
            l1.registration(self._state, message, funding, delivered),
            lambda: self._executor.check_registration(message, balance_navax),
            lambda: self._executor.register(message, node, balance_navax),
        )

    def _weight_change(
        self, validation: Validation, nonce: int, weight: int, delivered: bytes | None = None
    ) -> _Step:
        return _Step(
            l1.weight_change(self._state, validation, nonce, weight, delivered),
            lambda: self._executor.check_weight(validation.id, nonce, weight),
            lambda: set_weight(validation, nonce, weight),
        )

    def _do(self, step: _Step, later: bool) -> Transaction:
        self._waiting[step.transaction] = step
        if later:
            self._state.ledger.issue(step.transaction)
            return step.transaction
        try:
            self.accept(step.transaction)
        finally:
            self._waiting.pop(step.transaction, None)
        return step.transaction

    def _message(
        self, subnet_id: SubnetID, node: SimValidator, weight: int, expiry: int | None
    ) -> RegisterL1Validator:
        """Return the manager's message that registers a node.

        expiry: unix seconds; None for a time at which the message was never registered before.
        """
        until = self._state.next_time + _EXPIRY_S if expiry is None else expiry
        message = RegisterL1Validator(
            subnet_id, node.node_id, node.bls_key, until, _NO_OWNER_KEYS, _NO_OWNER_KEYS, weight
        )
        while expiry is None and message.validation_id in self._state.registrations:
            message = replace(message, expiry=message.expiry - 1)
        return message

    def _trackers(self, subnet_id: SubnetID) -> list[SimValidator]:
        return [node for node in self._state.validators if subnet_id in node.subnets]

    def _spare(self, subnet_id: SubnetID) -> SimValidator:
        validating = {
            validation.node_id
            for validation in self._state.validations.get(subnet_id, ())
            if validation.present
        }
        for node in self._trackers(subnet_id):
            if node.node_id not in validating:
                return node
        raise LookupError(
            "every node of the L1 validates it; plan spare nodes or call add_validator"
        )


def _parse_request(payload: bytes) -> RegisterL1Validator | L1ValidatorWeight:
    """Return what a manager asks for. Raises MalformedMessage."""
    if int.from_bytes(payload[2:6], "big") == _WEIGHT_TYPE:
        return L1ValidatorWeight.parse(payload)
    return RegisterL1Validator.parse(payload)


def _initial(node: SimValidator, weight: int, balance_navax: int) -> InitialValidator:
    return InitialValidator(
        node.node_id, node.bls_key, node.identity.bls_proof, weight, balance_navax
    )
