"""A second, plain P-Chain: written from the rules alone, slow, with nothing of ledger/ in it.

It keeps everything in lists and dictionaries, looks through all of them, walks through every second
of L1 fees one by one and takes them off each balance, and computes rewards with exact fractions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from typing import Any

from tests.ledger.model_parts import (
    PRIMARY,
    Coin,
    PayingValidator,
    Rules,
    Staker,
    TxSums,
    add,
    coin,
    coin_id,
)
from warpseal.chains.p_blocks import PBlock


@dataclass
class Model:
    """The whole state."""

    rules: Rules
    time: int
    supply: dict[bytes, int]
    coins: dict[bytes, Coin] = field(default_factory=dict)
    # The transaction and index of every coin.
    places: dict[bytes, tuple[Any, int]] = field(default_factory=dict)
    waiting: list[Staker] = field(default_factory=list)
    current: list[Staker] = field(default_factory=list)
    elastic: dict[bytes, Any] = field(default_factory=dict)
    owners: dict[bytes, Any] = field(default_factory=dict)
    l1: dict[bytes, PayingValidator] = field(default_factory=dict)
    managers: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    accrued: int = 0
    excess: int = 0
    proposed: Any = None
    # The last block: sums of its transactions, and what ran out, ended or was paid.
    sums: list[TxSums] = field(default_factory=list)
    ran_out: list[bytes] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)
    paid: list[tuple[bytes, str, int]] = field(default_factory=list)

    def begin(self, genesis: Any) -> None:
        """Take in a genesis."""
        for index, entry in enumerate(genesis.utxos):
            self.put(bytes(32), index, coin(entry.utxo.asset_id, entry.utxo.output))
        for tx in genesis.validators:
            place = self.place(tx, tx.unsigned)
            place.reward = self.reward(PRIMARY, place.start, place.end, place.weight)
            self.supply[PRIMARY] += place.reward
            self.current.append(place)

    def block(self, block: PBlock) -> None:
        """Take in the next block."""
        self.sums, self.ran_out, self.ended, self.paid = [], [], [], []
        if block.kind.endswith(("CommitBlock", "AbortBlock")):
            tx, self.proposed = self.proposed, None
            self.decide(tx, block.kind.endswith("CommitBlock"))
            return
        if block.time is not None:
            self.pass_time(block.time)
        is_proposal = "Proposal" in block.kind
        for tx in block.txs[:-1] if is_proposal else block.txs:
            self.execute(tx)
        if self.active():
            price = self.price(self.next_excess(self.excess))
            for key, validator in self.l1.items():
                if 0 < validator.balance < price:
                    validator.balance = 0
                    self.ran_out.append(key)
        if is_proposal:
            self.proposed = block.txs[-1]

    def active(self) -> int:
        """Return how many L1 validators pay."""
        return sum(1 for validator in self.l1.values() if validator.balance > 0)

    def sets(self) -> dict[bytes, dict[bytes, tuple[bytes | None, int]]]:
        """Return key and weight of every member of every set, by subnet and node."""
        sets: dict[bytes, dict[bytes, tuple[bytes | None, int]]] = {}
        keys = {
            place.node: place.key
            for place in self.current
            if place.subnet == PRIMARY and not place.is_delegator
        }
        members = [
            (place.subnet, place.node, keys[place.node], place.weight) for place in self.current
        ]
        for validator in self.l1.values():
            member = (validator.node, validator.key) if validator.balance > 0 else (bytes(20), None)
            members.append((validator.subnet, *member, validator.weight))
        for subnet, node, key, weight in members:
            in_set = sets.setdefault(subnet, {})
            in_set[node] = (key, in_set.get(node, (key, 0))[1] + weight)
        return sets

    def next_due(self) -> Staker | None:
        """Return who has to be rewarded now, if anybody."""
        due = [place for place in self.current if place.end == self.time and place.rank > 7]
        return min(due, key=lambda place: (place.end, place.rank, place.tx_id)) if due else None

    # The passing of time

    def pass_time(self, to: int) -> None:
        """Let stakers start, permissioned ones end, and every second be paid."""
        starting = [place for place in self.waiting if place.start <= to]
        for place in sorted(starting, key=lambda item: (item.start, item.rank_waiting, item.tx_id)):
            if place.earns:
                place.reward = self.reward(place.subnet, place.start, place.end, place.weight)
                self.supply[place.subnet] += place.reward
            self.waiting.remove(place)
            self.current.append(place)
        for place in list(self.current):
            if place.end <= to and place.rank == 7:
                self.current.remove(place)
                self.ended.append(place.tx_id)
        if to >= self.rules.etna_s:
            payers = [key for key, validator in self.l1.items() if validator.balance > 0]
            for _ in range(to - self.time):
                self.excess = self.next_excess(self.excess, len(payers))
                second = self.price(self.excess)
                self.accrued += second
                for key in payers:
                    self.l1[key].balance -= second
            for key in payers:
                if self.l1[key].balance <= 0:
                    self.l1[key].balance = 0
                    self.ran_out.append(key)
        self.time = to

    def next_excess(self, excess: int, active: int | None = None) -> int:
        """Return the excess a second later."""
        count = self.active() if active is None else active
        return max(0, excess + count - self.rules.target)

    def price(self, excess: int) -> int:
        """Return the price of a second: min_price * e^(excess / conversion), as EIP-4844
        approximates it.
        """
        i, out, a = 1, 0, self.rules.min_price * self.rules.conversion
        while a > 0:
            out += a
            a = a * excess // (self.rules.conversion * i)
            i += 1
        return out // self.rules.conversion

    def reward(self, subnet: bytes, start: int, end: int, weight: int) -> int:
        """Return what a staking may earn: remaining supply x share of the supply x share of a year
        x rate.
        """
        if subnet == PRIMARY:
            cap, low, high = self.rules.cap, self.rules.min_rate, self.rules.max_rate
        else:
            terms = self.elastic[subnet]
            cap, low, high = (
                terms.maximum_supply,
                terms.min_consumption_rate,
                terms.max_consumption_rate,
            )
        remaining = cap - self.supply[subnet]
        of_year = Fraction(end - start, self.rules.period_s)
        rate = (low + (high - low) * of_year) / 1_000_000
        return min(
            remaining, int(remaining * Fraction(weight, self.supply[subnet]) * rate * of_year)
        )

    # Transactions

    def execute(self, tx: Any) -> None:
        """Carry out a transaction of a standard block, or one that was proposed and committed."""
        body, kind = tx.unsigned, tx.kind
        sums = TxSums(tx.id, {}, {}, {}, 0)
        self.sums.append(sums)
        self.take(sums, body.base.inputs)
        self.give(sums, tx.id, 0, body.base.outputs)
        base = len(body.base.outputs)
        if kind == "ImportTx":
            for tx_input in body.imported_inputs:
                add(sums.burned, tx_input.asset_id, tx_input.input.amount)
        elif kind == "ExportTx":
            for output in body.exported_outputs:
                add(sums.value, output.asset_id, output.output.amount)
                add(sums.burned, output.asset_id, -output.output.amount)
        elif kind.startswith("Add"):
            self.join(tx, sums)
        elif kind == "RemoveSubnetValidatorTx":
            for places in (self.current, self.waiting):
                places[:] = [
                    p for p in places if (p.subnet, p.node) != (body.subnet_id, body.node_id)
                ]
        elif kind == "CreateSubnetTx":
            self.owners[tx.id] = body.owner
        elif kind == "TransferSubnetOwnershipTx":
            self.owners[body.subnet_id] = body.new_owner
        elif kind == "TransformSubnetTx":
            self.elastic[body.subnet_id] = body
            self.supply[body.subnet_id] = body.initial_supply
        elif kind == "ConvertSubnetToL1Tx":
            self.managers[body.subnet_id] = (body.manager_chain_id, body.manager_address)
            for index, item in enumerate(body.validators):
                key = sha256(body.subnet_id + index.to_bytes(4, "big")).digest()
                owner = item.remaining_balance_owner
                self.l1[key] = PayingValidator(
                    body.subnet_id,
                    item.node_id,
                    item.signer.public_key,
                    item.weight,
                    0,
                    self.time,
                    item.balance,
                    owner,
                )
                self.fund(sums, item.balance)
        elif kind == "RegisterL1ValidatorTx":
            registration = body.registration()
            owner = registration.remaining_balance_owner
            member = (
                registration.subnet_id,
                registration.node_id,
                registration.public_key,
                registration.weight,
            )
            self.l1[registration.validation_id] = PayingValidator(
                *member, 0, self.time, body.balance, owner
            )
            self.fund(sums, body.balance)
        elif kind == "IncreaseL1ValidatorBalanceTx":
            self.l1[body.validation_id].balance += body.balance
            self.fund(sums, body.balance)
        elif kind == "SetL1ValidatorWeightTx":
            change = body.change()
            validator = self.l1[change.validation_id]
            validator.weight, validator.nonce = change.weight, change.nonce + 1
            if change.weight == 0:
                self.refund(sums, tx.id, base, validator)
                del self.l1[change.validation_id]
        elif kind == "DisableL1ValidatorTx":
            self.refund(sums, tx.id, base, self.l1[body.validation_id])

    def join(self, tx: Any, sums: TxSums) -> None:
        """Let a staker in: at once from Durango on, else when its time comes."""
        place = self.place(tx, tx.unsigned)
        for asset, amount, *_ in place.coins:
            add(sums.value, asset, amount)
            add(sums.staked, asset, amount)
            add(sums.burned, asset, -amount)
        if self.time < self.rules.durango_s:
            self.waiting.append(place)
            return
        place.start = self.time
        if place.earns:
            place.reward = self.reward(place.subnet, place.start, place.end, place.weight)
            self.supply[place.subnet] += place.reward
        self.current.append(place)

    def decide(self, tx: Any, is_committed: bool) -> None:
        """Carry out what was proposed, or its refusal."""
        body = tx.unsigned
        if tx.kind == "AdvanceTimeTx":
            if is_committed:
                self.pass_time(body.time_s)
        elif tx.kind == "RewardValidatorTx":
            self.leave(tx, is_committed)
        elif is_committed:
            self.execute(tx)
        else:
            sums = TxSums(tx.id, {}, {}, {}, 0)
            self.sums.append(sums)
            self.take(sums, body.base.inputs)
            self.give(sums, tx.id, 0, (*body.base.outputs, *getattr(body, "stake", ())))

    def leave(self, tx: Any, is_committed: bool) -> None:
        """Give a staker its stake back, and what it earned."""
        place = next(staker for staker in self.current if staker.tx_id == tx.unsigned.staking_tx_id)
        assert place is self.next_due()
        sums = TxSums(tx.id, {}, {}, {}, 0)
        self.sums.append(sums)
        self.current.remove(place)
        first = place.behind - len(place.coins)
        for index, item in enumerate(place.coins):
            self.put(place.tx_id, first + index, item)
            add(sums.value, item[0], item[1])
        payments: list[tuple[str, int, Any]] = []
        if not is_committed:
            self.supply[place.subnet] -= place.reward
        if place.is_delegator:
            if is_committed:
                payments = self.split_reward(place)
        else:
            if is_committed:
                payments.append(("VALIDATOR", place.reward, place.owner))
            payments.append(("VALIDATOR_FEE", place.earned_from_delegators, place.fee_owner))
        index = place.behind
        for kind, amount, owner in payments:
            if amount > 0:
                asset = place.coins[0][0]
                paid = (asset, amount, owner.locktime, 0, owner.threshold, owner.addresses)
                self.put(place.tx_id, index, paid)
                self.paid.append((place.tx_id, kind, amount))
                add(sums.value, asset, amount)
                index += 1

    def split_reward(self, place: Staker) -> list[tuple[str, int, Any]]:
        """Split a delegation's reward with its validator."""
        validator = next(
            staker
            for staker in self.current
            if (staker.subnet, staker.node, staker.is_delegator)
            == (place.subnet, place.node, False)
        )
        rest = 1_000_000 - validator.shares
        own = rest * place.reward // 1_000_000
        if rest * place.reward >= 2**64:
            own = place.reward // 1_000_000 * rest
        fee = place.reward - own
        if validator.start >= self.rules.cortina_s:
            validator.earned_from_delegators += fee
            return [("DELEGATOR", own, place.owner)]
        return [("DELEGATOR", own, place.owner), ("VALIDATOR_FEE", fee, validator.fee_owner)]

    def place(self, tx: Any, body: Any) -> Staker:
        """Return the staker that a staking transaction makes."""
        subnet, validator = PRIMARY, body.validator
        if hasattr(validator, "subnet_id"):
            subnet, validator = validator.subnet_id, validator.validator
        stake = getattr(body, "stake", ())
        is_delegator = "Delegator" in tx.kind
        is_primary = subnet == PRIMARY
        waiting, rank = {
            "AddValidatorTx": (2, 11),
            "AddDelegatorTx": (1, 10),
            "AddSubnetValidatorTx": (6, 7),
            "AddPermissionlessValidatorTx": (2, 11) if is_primary else (4, 9),
            "AddPermissionlessDelegatorTx": (3, 10) if is_primary else (5, 8),
        }[tx.kind]
        owner = getattr(body, "rewards_owner", getattr(body, "validator_rewards_owner", None))
        return Staker(
            tx.id,
            subnet,
            validator.node_id,
            validator.start_s,
            validator.end_s,
            validator.weight,
            is_delegator,
            bool(stake),
            waiting,
            rank,
            [coin(output.asset_id, output.output) for output in stake],
            len(body.base.outputs) + len(stake),
            getattr(body, "delegation_shares", 0),
            owner,
            getattr(body, "delegator_rewards_owner", owner),
            getattr(getattr(body, "signer", None), "public_key", None),
        )

    # Coins

    def put(self, tx_id: bytes, index: int, new_coin: Coin) -> None:
        """Make a coin."""
        key = coin_id(tx_id, index)
        assert key not in self.coins
        self.coins[key], self.places[key] = new_coin, (tx_id, index)

    def take(self, sums: TxSums, inputs: Any) -> None:
        """Spend; what is not there is a mistake of the history."""
        for tx_input in inputs:
            key = coin_id(tx_input.tx_id, tx_input.output_index)
            spent = self.coins.pop(key)
            del self.places[key]
            assert spent[:2] == (tx_input.asset_id, tx_input.input.amount)
            add(sums.burned, spent[0], spent[1])

    def give(self, sums: TxSums, tx_id: bytes, first: int, outputs: Any) -> None:
        """Make outputs."""
        for index, output in enumerate(outputs, first):
            new_coin = coin(output.asset_id, output.output)
            self.put(tx_id, index, new_coin)
            add(sums.value, new_coin[0], new_coin[1])
            add(sums.burned, new_coin[0], -new_coin[1])

    def fund(self, sums: TxSums, balance: int) -> None:
        """Count what is put into a balance."""
        sums.l1_balance += balance
        add(sums.burned, self.rules.avax, -balance)

    def refund(self, sums: TxSums, tx_id: bytes, index: int, validator: PayingValidator) -> None:
        """Pay a balance back."""
        if validator.balance:
            owner = validator.owner
            back = (
                self.rules.avax,
                validator.balance,
                0,
                0,
                owner.threshold,
                tuple(owner.addresses),
            )
            self.put(tx_id, index, back)
            add(sums.value, self.rules.avax, validator.balance)
            validator.balance = 0
