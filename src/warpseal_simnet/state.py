"""The state of the simulated P-Chain, now and at each height.

It changes only by blocks: every change increases the height.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from warpseal import bls
from warpseal.warp.ids import (
    P_CHAIN,
    PRIMARY_NETWORK,
    ChainID,
    MessageID,
    NodeID,
    SubnetID,
    ValidationID,
)
from warpseal.warp.l1_messages import RegisterL1Validator
from warpseal_simnet.fees import FeeConfig, FeeHistory, fee_config
from warpseal_simnet.ledger import Heights, Ledger
from warpseal_simnet.proposervm import EpochRule, ProposerVM
from warpseal_simnet.teleporter import Messenger
from warpseal_simnet.validator_sets import (
    SetEntry,
    SetHistory,
    Validation,
    ValidationHistory,
    build_set,
)
from warpseal_simnet.values import (
    ChainKind,
    SentMessage,
    SimChain,
    SimMessage,
    SimSubnet,
    SimValidator,
)
from warpseal_simnet.versions import Release, Version
from warpseal_simnet.warp_config import DEFAULT_RULE, WarpConfig


class SimState:
    """The state on which all simulated nodes agree."""

    def __init__(
        self,
        network_id: int,
        heights: Heights,
        clock: Callable[[], float],
        ledger: Ledger,
        fees: FeeConfig | None = None,
    ) -> None:
        """Start without chains and validators.

        fees: None for the network's.
        """
        self.network_id = network_id
        self.heights = heights
        self.clock = clock
        self.ledger = ledger
        self.fees = FeeHistory(fees or fee_config(network_id), heights)
        # The time of the next block, and the fee accrued until then, once its transactions are
        # executed.
        self._block_start: tuple[float, int] | None = None
        self.validators: list[SimValidator] = []
        self._by_node: dict[NodeID, SimValidator] = {}
        self._l1_positions: dict[ValidationID, tuple[SubnetID, int]] = {}
        self.subnets: dict[SubnetID, SimSubnet] = {}
        self.chains: dict[ChainID, SimChain] = {}
        self.proposervm: dict[ChainID, ProposerVM] = {}
        # Of EVM chains.
        self.warp: dict[ChainID, WarpConfig] = {}
        self.messengers: dict[ChainID, Messenger] = {}
        self.validations: dict[SubnetID, list[Validation]] = {}
        # Heights at which subnets were created and converted, if known.
        self.created_at: dict[SubnetID, int] = {}
        self.converted_at: dict[SubnetID, int] = {}
        # The first block at or after Etna; 0 if every block is.
        self.etna_height = 0
        # Unix seconds of upgrades that nodes know in addition, or at another time than usual, by
        # name.
        self.upgrades: dict[str, float] = {}
        # Unix seconds of the upgrades that only releases with them know, by name.
        self.fork_times: dict[str, float] = {}
        self.history = SetHistory()
        self.validation_history = ValidationHistory()
        self.messages: list[SimMessage] = []
        # Messages and blocks of EVM chains.
        self.message_ids: set[MessageID] = set()
        self.accepted_blocks: set[bytes] = set()
        # Accepted registrations, and the planned chain of each L1's manager.
        self.registrations: dict[ValidationID, RegisterL1Validator] = {}
        self.manager_chains: dict[SubnetID, ChainID] = {}
        # Messages of managers by chain, in order.
        self.sent_messages: dict[ChainID, list[SentMessage]] = {}
        self.on_block: list[Callable[[int], None]] = []

    def add_chain(
        self,
        chain: SimChain,
        rule: EpochRule,
        *,
        is_idle: bool = False,
        warp: WarpConfig | None = None,
    ) -> None:
        """Add a chain.

        is_idle: the chain builds no blocks with the P-Chain's.
        warp: the Warp rules of the chain; None for the default.
        """
        self.chains[chain.chain_id] = chain
        self.proposervm[chain.chain_id] = ProposerVM(self.heights, rule, is_idle=is_idle)
        if chain.kind is ChainKind.EVM:
            self.warp[chain.chain_id] = warp or WarpConfig(DEFAULT_RULE)
            self.messengers[chain.chain_id] = Messenger(chain.chain_id)

    def add_validator(self, validator: SimValidator) -> None:
        """Add a node; its index is its place."""
        self.validators.append(validator)
        self._by_node[validator.node_id] = validator

    def add_validation(self, validation: Validation) -> None:
        """Add a validation; it takes effect with the next block."""
        validations = self.validations.setdefault(validation.subnet_id, [])
        if validation.is_l1:
            self._l1_positions[validation.id] = (validation.subnet_id, len(validations))
        validations.append(validation)

    def by_node(self, node_id: NodeID) -> SimValidator | None:
        """Return the validator of a NodeID."""
        return self._by_node.get(node_id)

    def minimum_version(self, release: Release) -> Version:
        """Return the oldest version of a peer that a release accepts now."""
        fork_s = self.fork_times.get(release.upgrade)
        has_passed = fork_s is not None and self.clock() >= fork_s
        return release.minimum_after if has_passed else release.minimum

    def chains_of(self, subnet_id: SubnetID) -> tuple[ChainID, ...]:
        """Return the chains that a subnet validates."""
        return tuple(
            chain.chain_id for chain in self.chains.values() if chain.subnet_id == subnet_id
        )

    def set_at(self, subnet_id: SubnetID, height: int) -> tuple[SetEntry, ...]:
        """Return a subnet's set after the block at `height`."""
        return self.history.at(subnet_id, height)

    def current_set(self, subnet_id: SubnetID) -> tuple[SetEntry, ...]:
        """Return a subnet's set now."""
        return self.set_at(subnet_id, self.heights.current)

    def primary_key(self, node_id: NodeID) -> bls.PublicKey | None:
        """Return the key of a current Primary Network validator that registered one."""
        if node_id not in self._by_node:
            return None
        for member in self.current_set(PRIMARY_NETWORK):
            if member.node_id == node_id and member.public_key is not None:
                return bls.parse_public_key(member.public_key)
        return None

    def validation(self, validation_id: ValidationID) -> Validation | None:
        """Return the L1 validator that exists under an id now, active or not."""
        if validation_id not in self._l1_positions:
            return None
        subnet_id, place = self._l1_positions[validation_id]
        validation = self.validations[subnet_id][place]
        return validation if validation.present else None

    def was_registered(self, validation_id: ValidationID) -> bool:
        """Return whether a validation with this ID ever existed.

        If so it can never be registered again.
        """
        return validation_id in self._l1_positions

    def position_of(self, validation_id: ValidationID) -> tuple[SubnetID, int | None]:
        """Return a validation's subnet and its index among the validations of the subnet.

        The index is None if the validation is unknown.
        """
        return self._l1_positions.get(validation_id, (PRIMARY_NETWORK, None))

    def has_validation_history(self, subnet_id: SubnetID) -> bool:
        """Return whether past validations of a subnet are recorded, as an L1's are."""
        return subnet_id != PRIMARY_NETWORK

    def validation_of(self, subnet_id: SubnetID, node_id: NodeID) -> Validation:
        """Return a node's validation in a subnet, preferably the current one.

        Raises KeyError if there is none.
        """
        validations = [
            validation
            for validation in self.validations.get(subnet_id, ())
            if validation.node_id == node_id
        ]
        if not validations:
            raise KeyError(node_id)
        return next(
            (validation for validation in validations if validation.present), validations[-1]
        )

    def add_messages(self, messages: Iterable[SimMessage]) -> None:
        """Add messages that validators sign from now on."""
        for message in messages:
            self.messages.append(message)
            self.message_ids.add(message.unsigned.id)

    def send(self, chain_id: ChainID, message: SentMessage) -> None:
        """Add a message that a contract emits; the validators of its chain sign it from now on."""
        if message.unsigned.id not in self.message_ids:
            self.sent_messages.setdefault(chain_id, []).append(message)
            self.message_ids.add(message.unsigned.id)

    def record_sets(self, height: int) -> None:
        """Record the validator sets from `height` on."""
        for subnet_id, validations in self.validations.items():
            self.history.put(subnet_id, height, build_set(validations))
            if self.has_validation_history(subnet_id):
                self.validation_history.put(subnet_id, height, validations)

    @property
    def next_time(self) -> int:
        """The time of the next P-Chain block, unix seconds."""
        if self._block_start is not None:
            return int(self._block_start[0])
        return int(max(self.clock(), self.heights.made_at[-1]))

    def begin_block(self) -> int:
        """Begin the next block: L1 validators pay for the time until then, or become inactive.

        Returns the accrued fee, from which the transactions of the block count balances.
        """
        if self._block_start is None:
            made_at = max(self.clock(), self.heights.made_at[-1])
            self._block_start = (made_at, self.fees.at_time(int(made_at)).accrued)
            self._deactivate_below(self._block_start[1] + 1)
        return self._block_start[1]

    def advance(self, blocks: int = 1) -> int:
        """Accept `blocks` blocks; earlier changes take effect with the first one.

        Return the height.
        """
        for _ in range(blocks):
            height = self.heights.current + 1
            self.begin_block()
            for on_block in self.on_block:
                on_block(height)
            self._end_block(height)
        return self.heights.current

    def _end_block(self, height: int) -> None:
        """Deactivate the L1 validators that cannot pay for another second, and accept the block."""
        assert self._block_start is not None
        (made_at, _), self._block_start = self._block_start, None
        paid = replace(self.fees.at_time(int(made_at)), active=self.count_active())
        self._deactivate_below(paid.after(self.fees.config, 1).accrued)
        self.record_sets(height)
        self.heights.made_at.append(made_at)
        self.proposervm[P_CHAIN].build(made_at, height)
        self.heights.current = height
        self.fees.record(height, self.count_active())
        for chain_id, proposer in self.proposervm.items():
            if chain_id != P_CHAIN:
                proposer.follow(height, made_at)

    def _deactivate_below(self, accrued: int) -> None:
        for validation in self._funded_validations():
            if validation.end_accumulated_fee < accrued:
                validation.end_accumulated_fee = 0

    def count_active(self) -> int:
        """Return how many L1 validators pay fees."""
        return sum(1 for _ in self._funded_validations())

    def _funded_validations(self) -> Iterator[Validation]:
        for validations in self.validations.values():
            yield from (
                validation
                for validation in validations
                if validation.present and validation.end_accumulated_fee
            )


class StateAt:
    """The state after the block at `height`.

    A height below 0 stands for block 0. At the tip it is the state itself, with later changes.
    """

    def __init__(self, state: SimState, height: int) -> None:
        self.state = state
        self.height = min(max(0, height), state.heights.current)
        self._is_tip = self.height == state.heights.current

    @property
    def chain_time(self) -> int:
        """The time of the block, unix seconds."""
        return self.state.heights.time_of(self.height)

    @cached_property
    def accrued_fee(self) -> int:
        """What an L1 validator that was always active has paid, nAVAX."""
        return self.state.fees.at(self.height).accrued

    @property
    def proposed(self) -> int:
        """The height that a new block refers to."""
        return self.state.heights.proposed_at(self.height)

    @property
    def subnets(self) -> tuple[SimSubnet, ...]:
        """Every subnet that exists."""
        return tuple(
            self._at_height(subnet)
            for subnet in self.state.subnets.values()
            if self._exists(subnet.subnet_id)
        )

    def subnet(self, subnet_id: bytes) -> SimSubnet | None:
        """Return a subnet as of this height, or None if it does not exist."""
        subnet = self.state.subnets.get(SubnetID(subnet_id))
        return self._at_height(subnet) if subnet and self._exists(subnet.subnet_id) else None

    def balance(self, validation: Validation) -> int:
        """Return the balance of an L1 validator, nAVAX."""
        return max(0, validation.end_accumulated_fee - self.accrued_fee)

    def conversion_id(self, subnet_id: bytes) -> bytes | None:
        """Return the conversion ID of a subnet, or None if it was not converted."""
        subnet = self.subnet(subnet_id)
        return subnet.conversion_id if subnet else None

    def validations(self, subnet_id: SubnetID) -> tuple[Validation, ...]:
        """Return the present validations of a subnet."""
        if self._is_tip or not self.state.has_validation_history(subnet_id):
            validations = tuple(self.state.validations.get(subnet_id, ()))
        else:
            validations = self.state.validation_history.at(subnet_id, self.height)
        return tuple(validation for validation in validations if validation.present)

    def validation(self, validation_id: ValidationID) -> Validation | None:
        """Return the L1 validator that exists under an id, active or not."""
        if self._is_tip:
            return self.state.validation(validation_id)
        validation = self._validation_at(validation_id)
        return validation if validation and validation.present else None

    def was_registered(self, validation_id: ValidationID) -> bool:
        """Return whether a validation with this ID exists or existed."""
        if self._is_tip:
            return self.state.was_registered(validation_id)
        return self._validation_at(validation_id) is not None

    def set_at(self, subnet_id: SubnetID, height: int) -> tuple[SetEntry, ...]:
        """Return a subnet's set after the block at `height`, which is not beyond this state's."""
        return self.state.set_at(subnet_id, height)

    def _validation_at(self, validation_id: ValidationID) -> Validation | None:
        subnet_id, place = self.state.position_of(validation_id)
        validations = self.state.validation_history.at(subnet_id, self.height)
        return validations[place] if place is not None and place < len(validations) else None

    def _exists(self, subnet_id: SubnetID) -> bool:
        return self.height >= self.state.created_at.get(subnet_id, 0)

    def _at_height(self, subnet: SimSubnet) -> SimSubnet:
        converted_at = self.state.converted_at.get(subnet.subnet_id, 0)
        return subnet.unconverted() if self.height < converted_at else subnet
