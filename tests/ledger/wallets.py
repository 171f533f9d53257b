"""Legal P-Chain transactions of a made-up history, as far as the model's state allows them."""

from __future__ import annotations

from typing import Any

from tests.ledger.l1_wallet import L1Wallet
from tests.ledger.made_up_network import (
    AVAX,
    BEGIN_S,
    C_CHAIN,
    NAVAX,
    NETWORK_ID,
    TOKEN,
    UPGRADES,
    X_CHAIN,
    bls_key,
    paid,
    random_owner,
)
from tests.ledger.model_parts import DAY_S
from warpseal.chains.components import (
    BaseFields,
    BaseTx,
    ExportTx,
    ImportTx,
    Input,
    LockOut,
    Output,
    TransferableInput,
    TransferableOutput,
    TransferInput,
)
from warpseal.chains.ids import AssetID, TxID
from warpseal.chains.p_txs import (
    AddDelegatorTx,
    AddPermissionlessDelegatorTx,
    AddPermissionlessValidatorTx,
    AddSubnetValidatorTx,
    AddValidatorTx,
    CreateChainTx,
    CreateSubnetTx,
    NoSigner,
    PSignedTx,
    RemoveSubnetValidatorTx,
    StakingTerms,
    SubnetValidator,
    TransferSubnetOwnershipTx,
    TransformSubnetTx,
)
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, NodeID, SubnetID

_LATEST_START_S = DAY_S // 4


class Wallet(L1Wallet):
    """Makes transactions out of what the model says there is.

    Each call may spend what the block's others made.
    """

    def any(self, *makers: Any) -> PSignedTx:
        """Return what the first of the makers, in random order, can make."""
        order = list(makers)
        self.random.shuffle(order)
        for maker in (*order, self._import):
            tx: PSignedTx | None = maker()
            if tx is not None:
                return tx
        raise AssertionError("nothing can be made")

    def joining(self) -> PSignedTx | None:
        """Return a transaction that was proposed before Banff; None if no staker can join now."""
        makers = (
            self._add_validator,
            self._add_delegator,
            self._add_delegator,
            self._add_subnet_validator,
        )
        return self.random.choice(makers)()

    def crossing(self) -> PSignedTx:
        """Return a transaction from or to another chain."""
        return self.any(self._import, self._export)

    def deciding(self) -> list[PSignedTx]:
        """Return what stood in standard blocks before Banff."""
        return [
            self.any(self._create_subnet, self._create_chain)
            for _ in range(self.random.randrange(1, 3))
        ]

    def decisions(self) -> list[PSignedTx]:
        """Return one to three transactions of a Banff block."""
        time = self._now
        makers = [
            self._import,
            self._export,
            self._create_subnet,
            self._create_chain,
            self._add_subnet_validator,
        ]
        makers += [
            self._add_validator,
            self._add_delegator,
            self._permissionless,
            self._permissionless_delegator,
        ]
        makers += [
            self._permissionless_delegator,
            self._permissionless,
            self._remove,
            self._transform,
            self._elastic,
        ]
        makers += [self._elastic_delegator, self._elastic_delegator]
        if time >= UPGRADES.durango_s:
            makers += [self._base, self._transfer]
            makers.remove(self._add_validator)
            makers.remove(self._add_delegator)
        if time >= UPGRADES.etna_s:
            makers.remove(self._transform)
            makers += self.l1_makers() * 2
        return [self.any(*makers) for _ in range(self.random.randrange(1, 4))]

    def _stake(self, asset: AssetID = AVAX) -> tuple[tuple[TransferableOutput, ...], int]:
        amounts = (2000 * NAVAX, 25 * NAVAX, 1, 3_000_000 * NAVAX, 123_456_789_012)
        amount = self.random.choice(amounts) if asset == AVAX else self.random.randrange(1, 10**13)
        outputs: list[Output] = [paid(self.random, amount)]
        if amount > 10 and self.random.random() < 0.3:
            outputs = [
                paid(self.random, amount - 7),
                LockOut(BEGIN_S + 300 * DAY_S, paid(self.random, 7)),
            ]
        return tuple(TransferableOutput(asset, output) for output in outputs), amount

    def _window(self, host: Any = None, longest_s: int = 3 * DAY_S) -> tuple[int, int]:
        """Return start and end of a staking.

        host: the node's Primary Network validator, which it may not outlive.
        """
        start = self._now + self.random.randrange(1, _LATEST_START_S)
        end = start + self.random.randrange(3600, longest_s)
        return (start, end) if host is None else (max(start, host.start), min(end, host.end))

    def _primary_hosts(self) -> dict[bytes, Any]:
        """Return the Primary Network's validators that a subnet's validators may join, by node."""
        places = (
            self.model.current
            if self._now >= UPGRADES.durango_s
            else (*self.model.current, *self.model.waiting)
        )
        return {
            place.node: place
            for place in places
            if place.subnet == PRIMARY_NETWORK
            and not place.is_delegator
            and place.end > self._now + _LATEST_START_S
        }

    def _is_full(self) -> bool:
        return len(self.model.current) + len(self.model.waiting) > 24

    def _free_node(self, subnet: SubnetID) -> NodeID | None:
        if self._is_full():
            return None
        in_use = {
            place.node
            for place in (*self.model.current, *self.model.waiting)
            if place.subnet == subnet and not place.is_delegator
        }
        nodes = self.nodes if subnet == PRIMARY_NETWORK else sorted(self._primary_hosts())
        free = [
            NodeID(node)
            for node in nodes
            if node not in in_use and (subnet, node) not in self._used
        ]
        if not free:
            return None
        node = self.random.choice(free)
        self._used.add((subnet, node))
        return node

    def _hosts(self, subnet: SubnetID) -> Any:
        """Return a validator that accepts delegations, and the period for them; None if there is
        none.
        """
        candidates = [
            place
            for place in (*self.model.current, *self.model.waiting)
            if place.subnet == subnet
            and place.earns
            and not place.is_delegator
            and place.end > self._now + 3600
        ]
        if not candidates or self._is_full():
            return None
        host = self.random.choice(candidates)
        start = max(self._now + 1, host.start)
        if self._now >= UPGRADES.durango_s and host in self.model.waiting:
            return None
        if start + 60 >= host.end:
            return None
        end = self.random.choice((host.end, self.random.randrange(start + 30, host.end)))
        return host.node, start, end

    def _staking(self, make: Any, asset: AssetID = AVAX) -> PSignedTx | None:
        stake, amount = self._stake(asset)
        base = self._base_fields({asset: amount})
        if base is None:
            return None
        return self._sign(make(base, stake, amount))

    def _add_validator(self) -> PSignedTx | None:
        node = self._free_node(PRIMARY_NETWORK)
        if node is None:
            return None
        start, end = self._window()
        shares = self.random.choice((20_000, 100_000, 0, 1_000_000))
        owner = random_owner(self.random)
        return self._staking(
            lambda base, stake, amount: AddValidatorTx(
                base, StakingTerms(node, start, end, amount), stake, owner, shares
            )
        )

    def _add_delegator(self) -> PSignedTx | None:
        host = self._hosts(PRIMARY_NETWORK)
        if host is None:
            return None
        node, start, end = host
        owner = random_owner(self.random)
        return self._staking(
            lambda base, stake, amount: AddDelegatorTx(
                base, StakingTerms(node, start, end, amount), stake, owner
            )
        )

    def _permissionless(self) -> PSignedTx | None:
        return self._validator_of(PRIMARY_NETWORK, AVAX)

    def _permissionless_delegator(self) -> PSignedTx | None:
        return self._delegator_of(PRIMARY_NETWORK, AVAX)

    def _elastic(self) -> PSignedTx | None:
        subnet = self._one_of(self.model.elastic)
        return None if subnet is None else self._validator_of(subnet, TOKEN)

    def _elastic_delegator(self) -> PSignedTx | None:
        subnet = self._one_of(self.model.elastic)
        return None if subnet is None else self._delegator_of(subnet, TOKEN)

    def _validator_of(self, subnet: SubnetID, asset: AssetID) -> PSignedTx | None:
        node = self._free_node(subnet)
        if node is None:
            return None
        start, end = self._window(
            None if subnet == PRIMARY_NETWORK else self._primary_hosts()[node]
        )
        owners = (random_owner(self.random), random_owner(self.random))
        shares = self.random.choice((20_000, 333_333, 0))
        signer = bls_key(self.random) if subnet == PRIMARY_NETWORK else NoSigner()
        return self._staking(
            lambda base, stake, amount: AddPermissionlessValidatorTx(
                base,
                SubnetValidator(StakingTerms(node, start, end, amount), subnet),
                signer,
                stake,
                *owners,
                shares,
            ),
            asset,
        )

    def _delegator_of(self, subnet: SubnetID, asset: AssetID) -> PSignedTx | None:
        host = self._hosts(subnet)
        if host is None:
            return None
        node, start, end = host
        owner = random_owner(self.random)
        return self._staking(
            lambda base, stake, amount: AddPermissionlessDelegatorTx(
                base, SubnetValidator(StakingTerms(node, start, end, amount), subnet), stake, owner
            ),
            asset,
        )

    def _add_subnet_validator(self) -> PSignedTx | None:
        subnet = self._one_of(self._permissioned())
        node = self._free_node(subnet) if subnet is not None else None
        if subnet is None or node is None:
            return None
        start, end = self._window(self._primary_hosts()[node], DAY_S)
        validator = SubnetValidator(
            StakingTerms(node, start, end, self.random.randrange(1, 100)), subnet
        )
        base = self._base_fields({})
        if base is None:
            return None
        return self._sign(AddSubnetValidatorTx(base, validator, Input((0,))))

    def _remove(self) -> PSignedTx | None:
        now = self._now
        candidates = sorted(
            (place.subnet, place.node)
            for place in (*self.model.current, *self.model.waiting)
            if place.rank == 7
            and place.end > now
            and ("gone", place.subnet, place.node) not in self._used
        )
        base = self._base_fields({}) if candidates else None
        if base is None:
            return None
        subnet, node = self.random.choice(candidates)
        self._used |= {("gone", subnet, node), (subnet, node)}
        return self._sign(
            RemoveSubnetValidatorTx(base, NodeID(node), SubnetID(subnet), Input((0,)))
        )

    def _base(self) -> PSignedTx | None:
        return self._simple(BaseTx)

    def _create_subnet(self) -> PSignedTx | None:
        if len(self._permissioned()) > 3:
            return None
        tx = self._simple(lambda base: CreateSubnetTx(base, random_owner(self.random)))
        if tx is not None:
            self._used.add(("changes", SubnetID(tx.id)))
            self.subnets.append(SubnetID(tx.id))
        return tx

    def _create_chain(self) -> PSignedTx | None:
        subnet = self._one_of(self._permissioned())
        if subnet is None:
            return None
        vm_id = self.random.randbytes(32)
        return self._simple(
            lambda base: CreateChainTx(base, subnet, "chain", vm_id, (), b"{}", Input((0,)))
        )

    def _transfer(self) -> PSignedTx | None:
        subnet = self._one_of(self._permissioned())
        if subnet is None:
            return None
        return self._simple(
            lambda base: TransferSubnetOwnershipTx(
                base, subnet, Input((0,)), random_owner(self.random)
            )
        )

    def _transform(self) -> PSignedTx | None:
        subnet = self._one_of(self._permissioned())
        if subnet is None or self._has_validators(subnet) or len(self.model.elastic) > 2:
            return None
        self._used.add(("changes", subnet))
        first, more = self.random.randrange(10**6, 10**14), self.random.randrange(1, 10**12)
        terms = (first, first + more, 10_000, 150_000, 1, 10**15, 1, 400 * DAY_S, 0, 1, 5, 0)
        return self._simple(
            lambda base: TransformSubnetTx(base, subnet, TOKEN, *terms, Input((0,))), {TOKEN: more}
        )

    def _has_validators(self, subnet: SubnetID) -> bool:
        return any(
            place.subnet == subnet for place in (*self.model.current, *self.model.waiting)
        ) or any(isinstance(key, tuple) and key[0] == subnet for key in self._used)

    def _export(self) -> PSignedTx | None:
        amount = self.random.randrange(1, 10 * NAVAX)
        chain = self.random.choice((X_CHAIN, C_CHAIN))
        out = TransferableOutput(AVAX, paid(self.random, amount))
        return self._simple(lambda base: ExportTx(base, chain, (out,)), {AVAX: amount})

    def _import(self) -> PSignedTx | None:
        amount = self.random.randrange(10, 10**15)
        asset = self.random.choice((AVAX, TOKEN))
        source = TransferableInput(
            TxID(self.random.randbytes(32)), 1, asset, TransferInput(amount, (0,))
        )
        remaining = amount - (3 if asset == AVAX else 0)
        out = TransferableOutput(asset, paid(self.random, remaining))
        base = BaseFields(NETWORK_ID, P_CHAIN, (out,), (), b"")
        return self._sign(ImportTx(base, self.random.choice((X_CHAIN, C_CHAIN)), (source,)))
