"""Makes the world that a plan describes. Equal plans make equal worlds; only RSA keys are fresh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from random import Random
from typing import Final

from warpseal.simnet.identity import make_identity
from warpseal.simnet.messages import messages_of
from warpseal.simnet.plan import PRIMARY, InvalidPlan, L1Plan, Plan, Rule, chosen, parse_weights
from warpseal.simnet.sets import Seat, members_of
from warpseal.simnet.validator import SimValidator
from warpseal.simnet.world import ChainKind, Heights, SimChain, SimSubnet, World
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, SubnetID, ValidationID
from warpseal.warp.l1_messages import ConversionData, ConversionValidator, bootstrap_validation_id

# Seats began so long ago that every uptime message is true.
_AGE_S: Final = 30 * 24 * 3600
_BALANCE_NAVAX: Final = 100_000_000_000
_FIRST_L1_HEIGHT: Final = 1


def build_world(plan: Plan) -> World:
    """Return the world of a plan, its messages included. Raises InvalidPlan."""
    _check(plan)
    heights = Heights(plan.height, plan.proposed_lag, plan.epoch_blocks, plan.height, [plan.settings.clock()])
    world = World(plan.network_id, heights, plan.settings.clock)
    builder = _Builder(plan, world)
    builder.primary()
    for number, l1 in enumerate(plan.l1s):
        builder.l1(number, l1)
    builder.apply_rules()
    builder.settle()
    for chain in tuple(world.chains.values()):
        world.add_messages(messages_of(world, chain, plan.messages))
    return world


def _check(plan: Plan) -> None:
    if plan.validators < 1 or plan.nodes < 1 or plan.messages < 0 or plan.height < _FIRST_L1_HEIGHT:
        raise InvalidPlan("a network has at least one validator, one node and a height of 1")
    if not 0 <= plan.rsa <= plan.validators or plan.epoch_blocks < 1 or plan.proposed_lag < 0:
        raise InvalidPlan("rsa is at most the number of validators; epochs have at least one block")
    if not 0 < plan.network_id < 2**32:
        raise InvalidPlan("a network id is a uint32 above 0")


class _Builder:
    """The steps from a plan to a world; one random source, so that their order matters."""

    def __init__(self, plan: Plan, world: World) -> None:
        self._plan = plan
        self._world = world
        self._rng = Random(plan.seed)
        self._scopes: dict[str, list[int]] = {}

    def primary(self) -> None:
        """Add the Primary Network, its chains and its validators."""
        world, plan = self._world, self._plan
        world.subnets[PRIMARY_NETWORK] = SimSubnet(PRIMARY_NETWORK, PRIMARY)
        self._chain(SimChain(P_CHAIN, PRIMARY_NETWORK, ChainKind.P, "P-Chain", "P"))
        for alias, kind in (("X", ChainKind.X), ("C", ChainKind.EVM)):
            chain_id = ChainID(self._id(f"chain {alias}"))
            self._chain(SimChain(chain_id, PRIMARY_NETWORK, kind, f"{alias}-Chain", alias))
        chains = set(world.chains)
        for weight in parse_weights(plan.weights, plan.validators, self._rng):
            validator = self._node(primary=True, rsa=len(world.validators) < plan.rsa)
            validator.chains |= chains
            self._seat(PRIMARY_NETWORK, validator, weight)
        self._scopes[PRIMARY] = [validator.index for validator in world.validators]

    def l1(self, number: int, l1: L1Plan) -> None:
        """Add an L1 (or a permissioned subnet), its chains and its validators."""
        name = f"l1-{number}"
        subnet_id = SubnetID(self._id(name))
        validators = self._validators_of(l1)
        chain_ids = [ChainID(self._id(f"{name} chain {place}")) for place in range(l1.chains)]
        for chain_id in chain_ids:
            self._chain(SimChain(chain_id, subnet_id, ChainKind.EVM, f"{name}-chain"))
        weights = parse_weights(l1.weights, len(validators), self._rng)
        # The conversion's transaction names its validators in ascending order of their NodeIDs.
        order = sorted(validator.node_id for validator in validators)
        for validator, weight in zip(validators, weights, strict=True):
            validator.chains.update(chain_ids)
            validator.subnets |= {subnet_id}
            index = None if l1.permissioned else order.index(validator.node_id)
            self._seat(subnet_id, validator, weight, l1_index=index)
        self._world.subnets[subnet_id] = (
            SimSubnet(subnet_id, name) if l1.permissioned else self._converted(name, subnet_id, chain_ids[0])
        )
        self._scopes[name] = [validator.index for validator in validators]

    def apply_rules(self) -> None:
        """Give validators their behaviours; of several rules about one, the last one counts."""
        everybody = [validator.index for validator in self._world.validators]
        for rule in self._plan.rules:
            members = self._scopes.get(rule.scope, []) if rule.scope else everybody
            if not members:
                raise InvalidPlan(f"there is no {rule.scope}")
            for index in chosen(rule, members, self._rng):
                self._behave(self._world.validators[index], rule)

    def settle(self) -> None:
        """Record the first sets: the Primary Network from genesis, the others from the first block on."""
        schedule = _Schedule(self._world, self._plan)
        schedule.react(self._world.heights.current)
        self._world.history.put(PRIMARY_NETWORK, 0, members_of(self._world.seats[PRIMARY_NETWORK]))
        self._world.settle(_FIRST_L1_HEIGHT)
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
            # Every other validator's weight was changed before, so that there are weights to attest.
            seat.min_nonce = l1_index % 2
        self._world.add_seat(seat)

    def _converted(self, name: str, subnet_id: SubnetID, manager_chain_id: ChainID) -> SimSubnet:
        seats = sorted(self._world.seats[subnet_id], key=lambda seat: seat.node_id)
        initial = tuple(ConversionValidator(seat.node_id, seat.public_key or bytes(48), seat.weight) for seat in seats)
        address = self._id(f"{name} manager")[:20]
        data = ConversionData(subnet_id, manager_chain_id, address, initial)
        return SimSubnet(subnet_id, name, data.conversion_id, manager_chain_id, address)

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
        return sha256(f"warpseal simnet {self._plan.network_id} {self._plan.seed} {what}".encode()).digest()


class _Schedule:
    """What happens at certain heights: who leaves, who joins, whose weight changes."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._every = plan.churn_every
        self._rng = Random(plan.seed + 1)

    def react(self, height: int) -> None:
        """Change the seats that the block at `height` changes."""
        for seats in self._world.seats.values():
            for seat in seats:
                self._come_and_go(seat, height)
            if self._every and height > self._world.heights.first and height % self._every == 0:
                self._change_weight(self._rng.choice(seats))

    def _come_and_go(self, seat: Seat, height: int) -> None:
        validator = self._world.by_node(seat.node_id)
        if validator is None:
            return
        joins, leaves = validator.behaviour.joins_at, validator.behaviour.leaves_at
        if joins is not None or leaves is not None:
            seat.present = (joins is None or height >= joins) and (leaves is None or height < leaves)

    def _change_weight(self, seat: Seat) -> None:
        seat.weight = max(1, seat.weight + self._rng.choice((-1, 1)) * max(1, seat.weight // 10))
        seat.min_nonce += seat.is_l1
