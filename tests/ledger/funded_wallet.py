"""Inputs, change and signatures of made-up transactions, from the unspent outputs of the model."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from tests.ledger.made_up_network import AVAX, BEGIN_S, NAVAX, NETWORK_ID, paid
from tests.ledger.model import Model
from tests.ledger.model_parts import DAY_S, Coin, coin
from warpseal.chains.components import (
    BaseFields,
    LockIn,
    LockOut,
    Output,
    TransferableInput,
    TransferableOutput,
    TransferInput,
)
from warpseal.chains.ids import AssetID, TxID
from warpseal.chains.p_txs import P_TX, PSignedTx
from warpseal.warp.ids import P_CHAIN, NodeID, SubnetID


class FundedWallet:
    """What can be spent in the block that is open; what its transactions make joins it at once."""

    def __init__(self, random: Random, model: Model) -> None:
        self.random = random
        self.model = model
        self.spendable: dict[tuple[TxID, int], Coin] = {}
        self.subnets: list[SubnetID] = []
        self.nodes = [NodeID(random.randbytes(20)) for _ in range(12)]
        self._used: set[Any] = set()
        self._now = BEGIN_S

    def open(self, time: int) -> None:
        """Begin a block that stands at `time`."""
        self._now = time
        self._used = set()
        self.spendable = {place: self.model.coins[key] for key, place in self.model.places.items()}

    def _base_fields(
        self, needs: dict[AssetID, int], makes: tuple[TransferableOutput, ...] = ()
    ) -> BaseFields | None:
        """Return inputs for what is needed and a fee, and the change; None if too little is
        spendable.
        """
        inputs: list[TransferableInput] = []
        outputs = list(makes)
        for asset, need in ({AVAX: 0} | needs).items():
            fee = self.random.randrange(1, NAVAX) if asset == AVAX else 0
            have = 0
            places = [place for place, entry in self.spendable.items() if entry[0] == asset]
            self.random.shuffle(places)
            for tx_id, index in places[: self.random.randrange(1, 4)]:
                _, amount, _, stakeable, *_ = self.spendable[tx_id, index]
                spend = TransferInput(amount, (0,))
                inputs.append(
                    TransferableInput(
                        tx_id, index, asset, LockIn(stakeable, spend) if stakeable else spend
                    )
                )
                have += amount
            if have < need + fee:
                return None
            outputs += self._change(asset, have - need - fee)
        for spent in inputs:
            del self.spendable[spent.tx_id, spent.output_index]
        inputs.sort(key=lambda tx_input: (tx_input.tx_id, tx_input.output_index))
        return BaseFields(NETWORK_ID, P_CHAIN, tuple(outputs), tuple(inputs), b"")

    def _change(self, asset: AssetID, amount: int) -> list[TransferableOutput]:
        if amount < 2:
            return [TransferableOutput(asset, paid(self.random, amount))] if amount else []
        part = self.random.randrange(1, amount)
        parts: list[Output] = [paid(self.random, part), paid(self.random, amount - part)]
        if self.random.random() < 0.1:
            parts[0] = LockOut(BEGIN_S + 200 * DAY_S, paid(self.random, part))
        return [TransferableOutput(asset, output) for output in parts]

    def _sign(self, unsigned: Any) -> PSignedTx:
        tx = P_TX.build(unsigned)
        for index, output in enumerate(unsigned.base.outputs):
            self.spendable[tx.id, index] = coin(output.asset_id, output.output)
        return tx

    def _simple(self, make: Any, needs: dict[AssetID, int] | None = None) -> PSignedTx | None:
        base = self._base_fields(needs or {})
        return None if base is None else self._sign(make(base))

    def _one_of(self, choices: Iterable[Any]) -> Any:
        combinations = sorted(choices)
        return self.random.choice(combinations) if combinations else None

    def _permissioned(self) -> list[SubnetID]:
        gone = {*self.model.elastic, *self.model.managers}
        return [
            subnet
            for subnet in self.subnets
            if subnet not in gone and ("changes", subnet) not in self._used
        ]
