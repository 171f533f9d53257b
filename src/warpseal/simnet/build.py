"""Makes the world that a plan describes. Equal plans make equal worlds; only RSA keys are fresh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from random import Random
from typing import Final

from warpseal.simnet import tx_builder
from warpseal.simnet.heights import Heights
from warpseal.simnet.identity import make_identity
from warpseal.simnet.l1_transactions import Initial, conversion, converted, subnet_data, weight_change
from warpseal.simnet.ledger import Ledger, Transaction
from warpseal.simnet.messages import messages_of
from warpseal.simnet.plan import PRIMARY, InvalidPlan, L1Plan, Plan, Rule, chosen, parse_weights
from warpseal.simnet.schedule import Schedule
from warpseal.simnet.sets import Seat, members_of
from warpseal.simnet.state import World
from warpseal.simnet.tx_builder import Purse
from warpseal.simnet.validator import SimValidator
from warpseal.simnet.values import ChainKind, SimChain, SimSubnet
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, ValidationID
from warpseal.warp.l1_messages import ConversionData, bootstrap_validation_id

# Seats began so long ago that every uptime message is true.
_AGE_S: Final = 30 * 24 * 3600
_BALANCE_NAVAX: Final = 100_000_000_000
_FIRST_L1_HEIGHT: Final = 1
_FIRST_EVM_CHAIN_ID: Final = 100_000
_WEIGHTS_SET: Final = 32
# A block has at most 256 KiB, an initial validator takes 200 bytes of it.
_MAX_INITIAL: Final = 1_200


def build_world(plan: Plan) -> World:
    """Return the world of a plan, its messages included. Raises InvalidPlan."""
    _check(plan)
    world = _empty_world(plan)
    builder = _Builder(plan, world)
    builder.primary()
    for number, l1 in enumerate(plan.l1s):
        builder.create(number, l1)
    for number, l1 in enumerate(plan.l1s):
        builder.l1(number, l1)
    builder.apply_rules()
    builder.convert()
    builder.settle()
    for chain in tuple(world.chains.values()):
        world.add_messages(messages_of(world, chain, plan.messages))
    return world


def seeded_id(plan: Plan, what: str) -> bytes:
    """Return 32 bytes that stand for `what` in the network of a plan."""
    return sha256(f"warpseal simnet {plan.network_id} {plan.seed} {what}".encode()).digest()


def _empty_world(plan: Plan) -> World:
    now = plan.settings.clock()
    heights = Heights(plan.height, plan.proposed_lag, plan.epoch_blocks, plan.height, [now], now - _AGE_S)
    ledger = Ledger(heights, Purse(plan.network_id, P_CHAIN, seeded_id(plan, "AVAX")))
    world = World(plan.network_id, heights, plan.settings.clock, ledger)
    world.etna_height = plan.etna_height
    return world


def _check(plan: Plan) -> None:
    if plan.validators < 1 or plan.nodes < 1 or plan.messages < 0 or plan.height < _FIRST_L1_HEIGHT:
        raise InvalidPlan("a network has at least one validator, one node and a height of 1")
    if not 0 <= plan.rsa <= plan.validators or plan.epoch_blocks < 0 or plan.proposed_lag < 0:
        raise InvalidPlan("rsa is at most the number of validators; epochs and lags are not negative")
    if not 0 <= plan.etna_height <= plan.height:
        raise InvalidPlan("Etna's height is at most the height at start")
    if not 0 < plan.network_id < 2**32:
        raise InvalidPlan("a network id is a uint32 above 0")


class _Builder:
    """The steps from a plan to a world; one random source, so that their order matters."""

    def __init__(self, plan: Plan, world: World) -> None:
        self._plan = plan
        self._world = world
        self._rng = Random(plan.seed)
        self._scopes: dict[str, list[int]] = {}
        self._subnets: list[SimSubnet] = []
        self._data: list[ConversionData] = []
        self._first_height = max(_FIRST_L1_HEIGHT, plan.etna_height)

    def primary(self) -> None:
        """Add the Primary Network, its chains and its validators."""
        world, plan = self._world, self._plan
        world.subnets[PRIMARY_NETWORK] = SimSubnet(PRIMARY_NETWORK, PRIMARY)
        self._chain(SimChain(P_CHAIN, PRIMARY_NETWORK, ChainKind.P, "P-Chain", "P"))
        for alias, kind in (("X", ChainKind.X), ("C", ChainKind.EVM)):
            chain_id = ChainID(self._id(f"chain {alias}"))
            self._chain(SimChain(chain_id, PRIMARY_NETWORK, kind, f"{alias}-Chain", alias, plan.network_id))
        chains = set(world.chains)
        for weight in parse_weights(plan.weights, plan.validators, self._rng):
            validator = self._node(primary=True, rsa=len(world.validators) < plan.rsa)
            validator.chains |= chains
            self._seat(PRIMARY_NETWORK, validator, weight)
        self._scopes[PRIMARY] = [validator.index for validator in world.validators]

    def create(self, number: int, l1: L1Plan) -> None:
        """Make a subnet and its chains, by transactions of the first block."""
        world, name = self._world, f"l1-{number}"
        creation = Transaction("CreateSubnetTx", tx_builder.create_subnet)
        world.ledger.prepare(creation)
        subnet = SimSubnet(SubnetID(creation.tx_id), name)
        made = [creation]
        for place in range(l1.chains):
            evm_chain_id = _FIRST_EVM_CHAIN_ID + 100 * number + place
            made.append(self._create_chain(subnet, evm_chain_id))
        for transaction in made:
            transaction.subnet_id = subnet.subnet_id
        world.ledger.put(self._first_height, made)
        world.subnets[subnet.subnet_id] = subnet
        world.created_at[subnet.subnet_id] = self._first_height
        world.seats[subnet.subnet_id] = []
        self._subnets.append(subnet)

    def _create_chain(self, subnet: SimSubnet, evm_chain_id: int) -> Transaction:
        genesis = f'{{"config":{{"chainId":{evm_chain_id}}}}}'.encode()
        name = f"{subnet.name}-chain"
        creation = Transaction("CreateChainTx", lambda: tx_builder.create_chain(subnet.subnet_id, name, genesis))
        self._world.ledger.prepare(creation)
        chain_id = ChainID(creation.tx_id)
        self._chain(SimChain(chain_id, subnet.subnet_id, ChainKind.EVM, name, evm_chain_id=evm_chain_id))
        return creation

    def l1(self, number: int, l1: L1Plan) -> None:
        """Add the validators of an L1 (or of a permissioned subnet)."""
        subnet = self._subnets[number]
        subnet_id = subnet.subnet_id
        self._world.manager_chains[subnet_id] = self._manager_chain(l1, subnet_id)
        validators = self._validators_of(l1)
        weights = parse_weights(l1.weights, len(validators), self._rng)
        # The conversion's transaction names its validators in ascending order of their NodeIDs.
        order = sorted(validator.node_id for validator in validators)
        for validator in (*validators, *(self._node(primary=False) for _ in range(l1.spare))):
            validator.chains.update(self._world.chains_of(subnet_id))
            validator.subnets |= {subnet_id}
        if not l1.unconverted:
            places = {node_id: place for place, node_id in enumerate(order)}
            for validator, weight in zip(validators, weights, strict=True):
                index = None if l1.permissioned else places[validator.node_id]
                self._seat(subnet_id, validator, weight, l1_index=index)
        if not l1.permissioned and not l1.unconverted:
            self._world.subnets[subnet_id] = self._converted(subnet)
        self._scopes[subnet.name] = [validator.index for validator in validators]

    def _manager_chain(self, l1: L1Plan, subnet_id: SubnetID) -> ChainID:
        world = self._world
        if l1.manager == "own":
            return world.chains_of(subnet_id)[0]
        if l1.manager == "C":
            return next(chain.chain_id for chain in world.chains.values() if chain.alias == "C")
        for subnet in self._subnets:
            if subnet.name == l1.manager:
                return world.chains_of(subnet.subnet_id)[0]
        raise InvalidPlan(f"there is no {l1.manager} for a manager to live on")

    def apply_rules(self) -> None:
        """Give validators their behaviours; of several rules about one, the last one counts."""
        everybody = [validator.index for validator in self._world.validators]
        for rule in self._plan.rules:
            members = self._scopes.get(rule.scope, []) if rule.scope else everybody
            if not members:
                raise InvalidPlan(f"there is no {rule.scope}")
            for index in chosen(rule, members, self._rng):
                self._behave(self._world.validators[index], rule)

    def convert(self) -> None:
        """Put what made the L1s into the first blocks: conversions, then the weights that changed since.

        A conversion that no block of a real network could hold is left out: only its consequences are there.
        """
        world, height, room = self._world, self._first_height, _MAX_INITIAL
        for data in self._data:
            seats = sorted(world.seats[data.subnet_id], key=lambda seat: seat.index)
            initial = [_initial(world, seat, one.weight) for seat, one in zip(seats, data.validators, strict=True)]
            if room < len(initial) <= _MAX_INITIAL:
                height, room = min(height + 1, world.heights.current), _MAX_INITIAL
            world.converted_at[data.subnet_id] = height
            if len(initial) <= _MAX_INITIAL:
                world.ledger.put(height, [conversion(world, data, initial)])
                room -= len(initial)
        self._set_weights(min(height + 1, world.heights.current))

    def _set_weights(self, height: int) -> None:
        """Let the L1s have changed weights that are not those of their conversions, or that are to be attested."""
        for data in self._data:
            seats = sorted(self._world.seats[data.subnet_id], key=lambda seat: seat.index)
            for seat, one in zip(seats, data.validators, strict=True):
                if seat.min_nonce or seat.weight != one.weight:
                    seat.min_nonce = 1
                    self._world.ledger.put(height, [weight_change(self._world, seat, 0, seat.weight)])

    def settle(self) -> None:
        """Record the first sets: the Primary Network from genesis, the others from the first block on."""
        schedule = Schedule(self._world, self._plan)
        schedule.react(self._world.heights.current)
        self._world.history.put(PRIMARY_NETWORK, 0, members_of(self._world.seats[PRIMARY_NETWORK]))
        self._world.settle(self._first_height)
        self._world.on_block.append(schedule.react)

    def _validators_of(self, l1: L1Plan) -> Sequence[SimValidator]:
        count = self._plan.validators if l1.validators is None else l1.validators
        if not l1.shared:
            return [self._node(primary=False) for _ in range(count)]
        if count > self._plan.validators:
            raise InvalidPlan(f"{count} shared validators are more than the primary network has")
        return self._world.validators[:count]

    def _node(self, *, primary: bool, rsa: bool = False) -> SimValidator:
        index = len(self._world.validators)
        identity = make_identity(self._id(f"validator {index}"), rsa_key=rsa)
        validator = SimValidator(index, identity, identity.bls_public_key, primary)
        validator.chains.add(P_CHAIN)
        self._world.add_validator(validator)
        return validator

    def _seat(self, subnet_id: SubnetID, validator: SimValidator, weight: int, l1_index: int | None = None) -> None:
        start = int(self._world.clock()) - _AGE_S
        if l1_index is None:
            seat_id = ValidationID(self._id(f"{subnet_id.hex()} {validator.index}"))
            seat = Seat(subnet_id, validator.node_id, validator.bls_key, weight, seat_id, start)
        else:
            seat_id = bootstrap_validation_id(subnet_id, l1_index)
            seat = Seat(subnet_id, validator.node_id, validator.bls_key, weight, seat_id, start)
            seat.is_l1, seat.index, seat.balance_navax = True, l1_index, _BALANCE_NAVAX
            # Every other validator's weight was set before (of the first), so that there are weights to attest.
            seat.min_nonce = l1_index % 2 if l1_index < _WEIGHTS_SET else 0
        self._world.add_seat(seat)

    def _converted(self, subnet: SimSubnet) -> SimSubnet:
        seats = sorted(self._world.seats[subnet.subnet_id], key=lambda seat: seat.index)
        initial = [_initial(self._world, seat, seat.weight) for seat in seats]
        data = subnet_data(subnet.subnet_id, self._world.manager_chains[subnet.subnet_id], initial)
        self._data.append(data)
        return converted(subnet, data)

    def _behave(self, validator: SimValidator, rule: Rule) -> None:
        behaviour = rule.behaviour
        validator.behaviour = behaviour
        for seat in self._seats_of(validator, rule.scope):
            if behaviour.weight is not None:
                seat.weight = behaviour.weight
            if behaviour.keyless and not seat.is_l1:
                seat.public_key = None
            if behaviour.balance_navax is not None and seat.is_l1:
                seat.balance_navax = behaviour.balance_navax

    def _seats_of(self, validator: SimValidator, scope: str | None) -> Iterator[Seat]:
        for subnet_id, seats in self._world.seats.items():
            if scope in (None, self._world.subnets[subnet_id].name):
                yield from (seat for seat in seats if seat.node_id == validator.node_id)

    def _chain(self, chain: SimChain) -> None:
        self._world.chains[chain.chain_id] = chain

    def _id(self, what: str) -> bytes:
        return seeded_id(self._plan, what)


def _initial(world: World, seat: Seat, weight: int) -> Initial:
    validator = world.by_node(seat.node_id)
    assert validator is not None
    proof = validator.identity.bls_proof
    return Initial(seat.node_id, validator.bls_key, proof, weight, seat.balance_navax)
