"""Builds the chain state of a plan. Equal plans give equal states, except for RSA keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from random import Random
from typing import Final

from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, ValidationID
from warpseal.warp.l1_messages import ConversionData, bootstrap_validation_id
from warpseal_simnet import tx_builder
from warpseal_simnet.identity import make_identity
from warpseal_simnet.l1_transactions import (
    InitialValidator,
    conversion,
    converted,
    subnet_data,
    weight_change,
)
from warpseal_simnet.ledger import Heights, Ledger, Transaction
from warpseal_simnet.messages import build_messages
from warpseal_simnet.plan import (
    PRIMARY,
    InvalidPlan,
    L1Plan,
    Plan,
    Rule,
    parse_weights,
    select_members,
)
from warpseal_simnet.proposervm import EpochRule
from warpseal_simnet.state import SimState
from warpseal_simnet.tx_builder import Utxo, Wallet
from warpseal_simnet.validator_sets import Validation, build_set
from warpseal_simnet.values import ChainKind, SimChain, SimSubnet, SimValidator
from warpseal_simnet.warp_config import WarpConfig

# Validations started so long ago that every uptime message is true.
_AGE_S: Final = 30 * 24 * 3600
_BALANCE_NAVAX: Final = 100_000_000_000
_PRIMARY_CHAINS: Final = (("X", ChainKind.X, b"avm"), ("C", ChainKind.EVM, b"evm"))
_FIRST_L1_HEIGHT: Final = 1
_FIRST_EVM_CHAIN_ID: Final = 100_000
_WEIGHTS_SET: Final = 32
# A block has at most 256 KiB, an initial validator takes 200 bytes of it.
_MAX_INITIAL: Final = 1_200
# A price of 1 AVAX a second: it uses up the usual balance in minutes.
_MAX_PRICE_NAVAX: Final = 10**9


def build_state(plan: Plan) -> SimState:
    """Return the state of a plan, including its messages. Raises InvalidPlan."""
    _check(plan)
    state = _empty_state(plan)
    builder = _Builder(plan, state)
    builder.add_primary_network()
    for number, l1 in enumerate(plan.l1s):
        builder.create_subnet(number, l1)
    for number, l1 in enumerate(plan.l1s):
        builder.add_l1_validators(number, l1)
    builder.apply_rules()
    builder.convert_l1s()
    builder.record_first_sets()
    for chain in tuple(state.chains.values()):
        state.add_messages(build_messages(state, chain, plan.messages))
    return state


def seeded_id(plan: Plan, name: str) -> bytes:
    """Return the 32-byte ID of `name` in the network of a plan."""
    return sha256(f"warpseal simnet {plan.network_id} {plan.seed} {name}".encode()).digest()


def _empty_state(plan: Plan) -> SimState:
    now = plan.settings.clock()
    heights = Heights(plan.height, plan.proposed_lag, plan.height, [now], now - _AGE_S)
    chains = [_create_primary_chain(plan, alias, vm_name) for alias, _, vm_name in _PRIMARY_CHAINS]
    ledger = Ledger(heights, _wallet(plan), chains)
    state = SimState(plan.network_id, heights, plan.settings.clock, ledger, plan.fees)
    state.etna_height = plan.etna_height
    # A fee is due for the time since the last block before Etna, or since the genesis.
    started_at = max(0, plan.etna_height - 1)
    while started_at and heights.time_of(started_at) == heights.time_of(plan.etna_height):
        started_at -= 1
    state.fees.record(started_at, 0)
    return state


def _wallet(plan: Plan) -> Wallet:
    return Wallet(plan.network_id, P_CHAIN, seeded_id(plan, "AVAX"))


def _create_primary_chain(plan: Plan, alias: str, vm_name: bytes) -> bytes:
    """Return the transaction of the genesis that creates the X- or the C-Chain."""
    return tx_builder.create_genesis_chain(
        _wallet(plan), f"{alias}-Chain", vm_name, seeded_id(plan, f"chain {alias}")
    )


def _check(plan: Plan) -> None:
    if plan.validators < 1 or plan.nodes < 1 or plan.messages < 0 or plan.height < _FIRST_L1_HEIGHT:
        raise InvalidPlan("a network has at least one validator, one node and a height of 1")
    if (
        not 0 <= plan.rsa <= plan.validators
        or min(plan.epoch_blocks, plan.epoch_s, plan.proposed_lag) < 0
    ):
        raise InvalidPlan(
            "rsa is at most the number of validators; epochs and lags are not negative"
        )
    if not 0 <= plan.etna_height <= plan.height:
        raise InvalidPlan("Etna's height is at most the height at start")
    if any(place >= plan.nodes for rule in plan.node_rules for place in rule.places):
        raise InvalidPlan(
            f"a rule about nodes names one that is not there; there are {plan.nodes}, from 0"
        )
    if not 0 < plan.network_id < 2**32:
        raise InvalidPlan("a network id is a uint32 above 0")


class _Builder:
    """The steps from a plan to a state. They share a random source, so their order matters."""

    def __init__(self, plan: Plan, state: SimState) -> None:
        self._plan = plan
        self._state = state
        self._rng = Random(plan.seed)
        self._scopes: dict[str, list[int]] = {}
        self._subnets: list[SimSubnet] = []
        self._data: list[ConversionData] = []
        # Balances of L1 validators at the start, nAVAX.
        self._balances: dict[ValidationID, int] = {}
        self._first_height = max(_FIRST_L1_HEIGHT, plan.etna_height)

    def add_primary_network(self) -> None:
        """Add the Primary Network, its chains and its validators."""
        state, plan = self._state, self._plan
        state.subnets[PRIMARY_NETWORK] = SimSubnet(PRIMARY_NETWORK, PRIMARY)
        self._chain(SimChain(P_CHAIN, PRIMARY_NETWORK, ChainKind.P, "P-Chain", "P"))
        for alias, kind, vm_name in _PRIMARY_CHAINS:
            chain_id = ChainID(sha256(_create_primary_chain(plan, alias, vm_name)).digest())
            self._chain(
                SimChain(chain_id, PRIMARY_NETWORK, kind, f"{alias}-Chain", alias, plan.network_id)
            )
        chains = set(state.chains)
        for weight in parse_weights(plan.weights, plan.validators, self._rng):
            validator = self._node(primary=True, rsa=len(state.validators) < plan.rsa)
            validator.chains |= chains
            self._add_validation(PRIMARY_NETWORK, validator, weight)
        self._scopes[PRIMARY] = [validator.index for validator in state.validators]

    def create_subnet(self, number: int, l1: L1Plan) -> None:
        """Create a subnet and its chains by transactions of the first block."""
        state, name = self._state, f"l1-{number}"
        creation = Transaction("CreateSubnetTx", tx_builder.create_subnet)
        state.ledger.prepare(creation)
        subnet = SimSubnet(SubnetID(creation.tx_id), name)
        transactions = [creation]
        for place in range(l1.chains):
            evm_chain_id = _FIRST_EVM_CHAIN_ID + 100 * number + place
            transactions.append(self._create_chain(subnet, evm_chain_id, l1))
        for transaction in transactions:
            transaction.subnet_id = subnet.subnet_id
        state.ledger.put(self._first_height, transactions)
        state.subnets[subnet.subnet_id] = subnet
        state.created_at[subnet.subnet_id] = self._first_height
        state.validations[subnet.subnet_id] = []
        self._subnets.append(subnet)

    def _create_chain(self, subnet: SimSubnet, evm_chain_id: int, l1: L1Plan) -> Transaction:
        genesis = f'{{"config":{{"chainId":{evm_chain_id}}}}}'.encode()
        name = f"{subnet.name}-chain"
        creation = Transaction(
            "CreateChainTx", lambda: tx_builder.create_chain(subnet.subnet_id, name, genesis)
        )
        self._state.ledger.prepare(creation)
        chain_id = ChainID(creation.tx_id)
        chain = SimChain(
            chain_id,
            subnet.subnet_id,
            ChainKind.EVM,
            name,
            evm_chain_id=evm_chain_id,
            is_simplex=l1.simplex,
        )
        self._chain(chain, is_idle=l1.idle, warp=WarpConfig(l1.warp, l1.warp_upgrades))
        return creation

    def add_l1_validators(self, number: int, l1: L1Plan) -> None:
        """Add the validators of an L1 (or of a permissioned subnet)."""
        subnet = self._subnets[number]
        subnet_id = subnet.subnet_id
        self._state.manager_chains[subnet_id] = self._manager_chain(l1, subnet_id)
        validators = self._validators_of(l1)
        weights = parse_weights(l1.weights, len(validators), self._rng)
        # A conversion lists its validators in ascending order of their NodeIDs.
        order = sorted(validator.node_id for validator in validators)
        for validator in (*validators, *(self._node(primary=False) for _ in range(l1.spare))):
            validator.chains.update(self._state.chains_of(subnet_id))
            validator.subnets |= {subnet_id}
        if not l1.unconverted:
            places = {node_id: place for place, node_id in enumerate(order)}
            for validator, weight in zip(validators, weights, strict=True):
                index = None if l1.permissioned else places[validator.node_id]
                self._add_validation(subnet_id, validator, weight, l1_index=index)
        if not l1.permissioned and not l1.unconverted:
            self._state.subnets[subnet_id] = self._converted(subnet)
        self._scopes[subnet.name] = [validator.index for validator in validators]

    def _manager_chain(self, l1: L1Plan, subnet_id: SubnetID) -> ChainID:
        state = self._state
        if l1.manager == "own":
            return state.chains_of(subnet_id)[0]
        if l1.manager == "C":
            return next(chain.chain_id for chain in state.chains.values() if chain.alias == "C")
        for subnet in self._subnets:
            if subnet.name == l1.manager:
                return state.chains_of(subnet.subnet_id)[0]
        raise InvalidPlan(f"there is no {l1.manager} for a manager to live on")

    def apply_rules(self) -> None:
        """Give validators their behaviours; the last rule about a validator counts."""
        all_indices = [validator.index for validator in self._state.validators]
        for rule in self._plan.rules:
            members = self._scopes.get(rule.scope, []) if rule.scope else all_indices
            if not members:
                raise InvalidPlan(f"there is no {rule.scope}")
            for index in select_members(rule, members, self._rng):
                self._behave(self._state.validators[index], rule)

    def convert_l1s(self) -> None:
        """Put the conversions of the L1s into the first blocks, then the weight changes since.

        A conversion that is too large for a block is left out; only its effects are part of the
        state.
        """
        state, height, room, active = self._state, self._first_height, _MAX_INITIAL, 0
        for data in self._data:
            if room < len(data.validators) <= _MAX_INITIAL:
                height, room = min(height + 1, state.heights.current), _MAX_INITIAL
            room -= len(data.validators) if len(data.validators) <= _MAX_INITIAL else 0
            state.converted_at[data.subnet_id] = height
            active += sum(
                self._balances[validation.id] > 0
                for validation in state.validations[data.subnet_id]
            )
            state.fees.record(height, active)
        self._check_fee(height, active)
        state.fees.record(state.heights.current, active)
        for data in self._data:
            self._put_conversion(data)
        self._set_weights(min(height + 1, state.heights.current))

    def _check_fee(self, height: int, active: int) -> None:
        """Check that balances can pay the fee that has risen since the last conversion.

        Raises InvalidPlan.
        """
        heights, config = self._state.heights, self._state.fees.config
        surplus = active - config.target
        seconds = heights.time_of(heights.current) - heights.time_of(height)
        if surplus > 0 and config.price(surplus * seconds) > _MAX_PRICE_NAVAX:
            raise InvalidPlan(
                f"{active} active L1 validators are too many for a fee target of {config.target}:"
                f" since their conversion, {seconds} s ago, the fee has risen beyond 1 AVAX a"
                " second; raise the target"
            )

    def _put_conversion(self, data: ConversionData) -> None:
        """Fund the validators of an L1, and put the conversion into its block.

        The validators have paid fees since the conversion.
        """
        state, height = self._state, self._state.converted_at[data.subnet_id]
        accrued = state.fees.at(state.heights.current).accrued
        accrued_before = state.fees.at(height).accrued
        initial = []
        validations = sorted(
            state.validations[data.subnet_id], key=lambda validation: validation.index
        )
        for validation, converted_validator in zip(validations, data.validators, strict=True):
            balance = self._balances[validation.id]
            validation.start_time = state.heights.time_of(height)
            validation.end_accumulated_fee = balance and balance + accrued
            funded = balance and balance + accrued - accrued_before
            initial.append(_initial(state, validation, converted_validator.weight, funded))
        if len(initial) <= _MAX_INITIAL:
            state.ledger.put(height, [conversion(state, data, initial)])

    def _set_weights(self, height: int) -> None:
        """Add changes of weights that differ from the conversion or that are to be attested."""
        for data in self._data:
            validations = sorted(
                self._state.validations[data.subnet_id], key=lambda validation: validation.index
            )
            for validation, converted_validator in zip(validations, data.validators, strict=True):
                if validation.min_nonce or validation.weight != converted_validator.weight:
                    validation.min_nonce = 1
                    self._state.ledger.put(
                        height, [weight_change(self._state, validation, 0, validation.weight)]
                    )

    def record_first_sets(self) -> None:
        """Record the first sets: the Primary Network's from genesis, L1s' from the first block."""
        schedule = Schedule(self._state, self._plan)
        schedule.apply(self._state.heights.current)
        first = build_set(self._state.validations[PRIMARY_NETWORK])
        self._state.history.put(PRIMARY_NETWORK, 0, first)
        proofs = {
            validator.node_id: validator.identity.bls_proof for validator in self._state.validators
        }
        signers = [
            None if entry.public_key is None else (entry.public_key, proofs[entry.node_id])
            for entry in first
        ]
        self._state.ledger.begin(
            [
                (entry.node_id, entry.weight, signer)
                for entry, signer in zip(first, signers, strict=True)
            ]
        )
        self._state.record_sets(self._first_height)
        self._state.on_block.append(schedule.apply)

    def _validators_of(self, l1: L1Plan) -> Sequence[SimValidator]:
        count = self._plan.validators if l1.validators is None else l1.validators
        if not l1.shared:
            return [self._node(primary=False) for _ in range(count)]
        if count > self._plan.validators:
            raise InvalidPlan(f"{count} shared validators are more than the primary network has")
        return self._state.validators[:count]

    def _node(self, *, primary: bool, rsa: bool = False) -> SimValidator:
        index = len(self._state.validators)
        identity = make_identity(self._id(f"validator {index}"), rsa_key=rsa)
        validator = SimValidator(index, identity, identity.bls_public_key, primary)
        validator.chains.add(P_CHAIN)
        self._state.add_validator(validator)
        return validator

    def _add_validation(
        self, subnet_id: SubnetID, validator: SimValidator, weight: int, l1_index: int | None = None
    ) -> None:
        start = int(self._state.clock()) - _AGE_S
        if l1_index is None:
            validation_id = ValidationID(self._id(f"{subnet_id.hex()} {validator.index}"))
            validation = Validation(
                subnet_id, validator.node_id, validator.bls_key, weight, validation_id, start
            )
        else:
            validation_id = bootstrap_validation_id(subnet_id, l1_index)
            validation = Validation(
                subnet_id, validator.node_id, validator.bls_key, weight, validation_id, start
            )
            validation.is_l1, validation.index = True, l1_index
            self._balances[validation_id] = _BALANCE_NAVAX
            # The weight of every second validator was set before, so that there are weights to
            # attest.
            validation.min_nonce = l1_index % 2 if l1_index < _WEIGHTS_SET else 0
        self._state.add_validation(validation)

    def _converted(self, subnet: SimSubnet) -> SimSubnet:
        validations = sorted(
            self._state.validations[subnet.subnet_id], key=lambda validation: validation.index
        )
        initial = [
            _initial(self._state, validation, validation.weight, 0) for validation in validations
        ]
        data = subnet_data(subnet.subnet_id, self._state.manager_chains[subnet.subnet_id], initial)
        self._data.append(data)
        return converted(subnet, data)

    def _behave(self, validator: SimValidator, rule: Rule) -> None:
        behaviour = rule.behaviour
        validator.behaviour = behaviour
        for validation in self._validations_of_rule(validator, rule.scope):
            if behaviour.weight is not None:
                validation.weight = behaviour.weight
            if behaviour.keyless and not validation.is_l1:
                validation.public_key = None
            if behaviour.balance_navax is not None and validation.is_l1:
                self._balances[validation.id] = behaviour.balance_navax

    def _validations_of_rule(
        self, validator: SimValidator, scope: str | None
    ) -> Iterator[Validation]:
        for subnet_id, validations in self._state.validations.items():
            if scope in (None, self._state.subnets[subnet_id].name):
                yield from (
                    validation
                    for validation in validations
                    if validation.node_id == validator.node_id
                )

    def _chain(
        self, chain: SimChain, *, is_idle: bool = False, warp: WarpConfig | None = None
    ) -> None:
        rule = EpochRule(self._plan.epoch_blocks, self._plan.epoch_s)
        if chain.is_simplex:
            rule = EpochRule(0)
        self._state.add_chain(chain, rule, is_idle=is_idle, warp=warp)

    def _id(self, name: str) -> bytes:
        return seeded_id(self._plan, name)


def _initial(
    state: SimState, validation: Validation, weight: int, balance_navax: int
) -> InitialValidator:
    validator = state.by_node(validation.node_id)
    assert validator is not None
    proof = validator.identity.bls_proof
    return InitialValidator(validation.node_id, validator.bls_key, proof, weight, balance_navax)


class Schedule:
    """The scheduled changes of a plan: validators that join or leave, and weight changes."""

    def __init__(self, state: SimState, plan: Plan) -> None:
        self._state = state
        self._every = plan.churn_every
        self._rng = Random(plan.seed + 1)

    def apply(self, height: int) -> None:
        """Apply the changes of the block at `height`."""
        for validations in self._state.validations.values():
            for validation in validations:
                self._join_or_leave(validation, height)
            if (
                self._every
                and validations
                and height > self._state.heights.first
                and height % self._every == 0
            ):
                self._change_weight(self._rng.choice(validations), height)

    def _join_or_leave(self, validation: Validation, height: int) -> None:
        validator = self._state.by_node(validation.node_id)
        if validator is None:
            return
        joins, leaves = validator.behaviour.joins_at, validator.behaviour.leaves_at
        if joins is not None or leaves is not None:
            validation.present = (joins is None or height >= joins) and (
                leaves is None or height < leaves
            )

    def _change_weight(self, validation: Validation, height: int) -> None:
        validation.weight = max(
            1, validation.weight + self._rng.choice((-1, 1)) * max(1, validation.weight // 10)
        )
        if validation.is_l1 and validation.present:
            self._state.ledger.put(
                height,
                [weight_change(self._state, validation, validation.min_nonce, validation.weight)],
            )
        validation.min_nonce += validation.is_l1


_COUNT: Final = 4
_UTXO_NAVAX: Final = 10**15


def build_x_payments(state: SimState, seed: int) -> dict[bytes, bytes]:
    """Return the signed bytes of accepted X-Chain transactions by ID.

    There are none without an X-Chain.
    """
    chain = next((chain for chain in state.chains.values() if chain.kind is ChainKind.X), None)
    if chain is None:
        return {}
    wallet = Wallet(state.network_id, chain.chain_id, state.ledger.asset_id)
    utxo = Utxo(sha256(f"X coin {seed}".encode()).digest(), 0, _UTXO_NAVAX)
    raw_txs: dict[bytes, bytes] = {}
    for _ in range(_COUNT):
        raw = tx_builder.x_transaction(wallet, utxo)
        utxo = tx_builder.change(utxo, tx_builder.base(), raw)
        raw_txs[utxo.tx_id] = raw
    return raw_txs
