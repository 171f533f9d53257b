"""Seeded histories of a small P-Chain: legal blocks from Apricot to Etna, made up as they go along.

The plain model holds the UTXOs that can be spent, the stakers that are due, and the time.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.ledger.made_up_network import BANFF_S, BEGIN_S, UPGRADES, genesis, rules
from tests.ledger.model import Model
from tests.ledger.model_parts import DAY_S
from tests.ledger.wallets import Wallet
from warpseal.chains.ids import TxID
from warpseal.chains.p_blocks import PBlock
from warpseal.chains.p_txs import P_TX, AdvanceTimeTx, PSignedTx, RewardValidatorTx
from warpseal.warp.ids import PRIMARY_NETWORK


class History:
    """One history: every call of `next_block` makes a legal block and lets the model have it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.genesis = genesis(seed)
        self.model = Model(rules(), BEGIN_S, {PRIMARY_NETWORK: self.genesis.initial_supply})
        self.model.begin(self.genesis)
        self.wallet = Wallet(self.random, self.model)
        self.height = 0
        self.parent = self.genesis.block.id
        self._proposed: PSignedTx | None = None
        self._in_banff = False

    def next_block(self) -> PBlock:
        """Return the next block."""
        block = self._option() if self._proposed is not None else self._fresh()
        self.height, self.parent = block.height, block.id
        self.model.block(block)
        return block

    def _build(self, kind: str, time: int | None = None, txs: tuple[PSignedTx, ...] = ()) -> PBlock:
        return PBlock.build(kind, self.parent, self.height + 1, time, txs)

    def _option(self) -> PBlock:
        self._proposed = None
        name = "Commit" if self.random.random() < 0.75 else "Abort"
        if self._in_banff:
            return self._build(f"Banff{name}Block", self.model.time)
        return self._build(f"Apricot{name}Block")

    def _fresh(self) -> PBlock:
        if not self._in_banff:
            return self._apricot()
        return self._banff(self._later())

    def _apricot(self) -> PBlock:
        wallet, now = self.wallet, self.model.time
        wallet.open(now)
        due = self.model.next_due()
        if due is not None:
            return self._propose(P_TX.build(RewardValidatorTx(TxID(due.tx_id))))
        roll = self.random.random()
        if roll < 0.4:
            to = self._later()
            if to >= BANFF_S:
                self._in_banff = True
                return self._banff(to)
            return self._propose(P_TX.build(AdvanceTimeTx(to)))
        joining = wallet.joining() if roll < 0.75 else None
        if joining is not None:
            return self._propose(joining)
        if roll < 0.85 and now < UPGRADES.apricot_5_s:
            return self._build("ApricotAtomicBlock", None, (wallet.crossing(),))
        return self._build("ApricotStandardBlock", None, tuple(wallet.deciding()))

    def _propose(self, tx: PSignedTx) -> PBlock:
        self._proposed = tx
        return self._build("ApricotProposalBlock", None, (tx,))

    def _banff(self, time: int) -> PBlock:
        self.wallet.open(time)
        due = self._due_at(time)
        if due is None or self.random.random() < 0.2:
            return self._build("BanffStandardBlock", time, tuple(self.wallet.decisions()))
        decided = self.wallet.decisions() if self.random.random() < 0.3 else []
        self._proposed = P_TX.build(RewardValidatorTx(TxID(due.tx_id)))
        return self._build("BanffProposalBlock", time, (*decided, self._proposed))

    def _due_at(self, time: int) -> Any:
        ending = [place for place in self.model.current if place.end == time and place.rank > 7]
        return min(ending, key=lambda place: (place.rank, place.tx_id)) if ending else None

    def _later(self) -> int:
        """Return a time from now on, not beyond what changes the stakers next: who is due holds
        time up.
        """
        now = self.model.time
        if self.model.next_due() is not None:
            return now
        changes = [place.start for place in self.model.waiting] + [
            place.end for place in self.model.current
        ]
        stop = min(changes, default=2**62)
        steps = (0, 1, 2, 17, 600, 3600, DAY_S // 2, DAY_S)
        if self.model.active():
            # Prices that double fast, and a model that walks through every second.
            steps = (0, 1, 5, 60, 600, 3600, 7200, 20_000)
        return min(stop, now + self.random.choice(steps))
