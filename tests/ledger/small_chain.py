"""A P-Chain of a few blocks with every upgrade active, to show one rule at a time."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.ledger.made_up_network import AVAX, BEGIN_S, NAVAX, NETWORK_ID, PARAMS, genesis
from tests.ledger.memory_utxos import MemoryUtxos
from tests.ledger.recorded import moves
from warpseal.chains.components import (
    BaseFields,
    OutputOwners,
    SignedTx,
    TransferableInput,
    TransferableOutput,
    TransferInput,
    TransferOutput,
)
from warpseal.chains.ids import Address, AssetID, TxID
from warpseal.chains.p_blocks import PBlock
from warpseal.chains.p_txs import P_TX, RewardValidatorTx
from warpseal.ledger.effects import BlockEffects, TxEffects
from warpseal.ledger.p_chain import apply_p_block, state_from_genesis
from warpseal.ledger.params import Parameters, UpgradeTimes
from warpseal.warp.ids import P_CHAIN

COIN = 20_000_000 * NAVAX
OWNER = OutputOwners(0, 1, (Address(b"\x01" * 20),))
OTHER_OWNER = OutputOwners(0, 1, (Address(b"\x02" * 20),))
ALL_ACTIVE: Parameters = replace(PARAMS, upgrades=UpgradeTimes(0, 0, 0, 0, 0))


def output(amount: int, asset: AssetID = AVAX) -> TransferableOutput:
    """Return an output of OWNER."""
    return TransferableOutput(asset, TransferOutput(amount, 0, 1, OWNER.addresses))


def spending(coin: int, *outputs: TransferableOutput, tx_id: TxID | None = None) -> BaseFields:
    """Return a transaction's beginning that spends coin number `coin` of the genesis (20 million
    AVAX).
    """
    source = TransferableInput(tx_id or TxID(bytes(32)), coin, AVAX, TransferInput(COIN, (0,)))
    return BaseFields(NETWORK_ID, P_CHAIN, outputs, (source,), b"")


class Chain:
    """The chain and what can be spent on it."""

    def __init__(self, params: Parameters = ALL_ACTIVE) -> None:
        self.genesis = genesis(1)
        self.state, effects = state_from_genesis(self.genesis, params)
        self.outputs = MemoryUtxos()
        self.outputs.add(effects.emitted)
        self.outputs.apply(effects.txs)

    def block(self, kind: str, *unsigned: Any, at_s: int | None = None) -> BlockEffects:
        """Apply a block, `at_s` seconds after the genesis (default: now)."""
        time = self.state.time_s if at_s is None else BEGIN_S + at_s
        txs = tuple(item if isinstance(item, SignedTx) else P_TX.build(item) for item in unsigned)
        has_time = kind.startswith("Banff")
        block = PBlock.build(
            kind, self.state.block_id, self.state.height + 1, time if has_time else None, txs
        )
        effects = apply_p_block(self.state, block, self.outputs)
        self.outputs.apply(moves(effects))
        return effects

    def accept(self, *unsigned: Any, at_s: int | None = None) -> tuple[TxEffects, ...]:
        """Apply a standard block; return what its transactions do."""
        return self.block("BanffStandardBlock", *unsigned, at_s=at_s).txs

    def decide(self, proposed: Any, *, commit: bool, at_s: int | None = None) -> TxEffects:
        """Propose a transaction and decide over it; return what it does."""
        self.block("BanffProposalBlock", proposed, at_s=at_s)
        settled = self.block("BanffCommitBlock" if commit else "BanffAbortBlock").settled
        assert settled is not None
        return settled

    def reward(self, staking: TxID, *, commit: bool, at_s: int | None = None) -> TxEffects:
        """End a staking."""
        return self.decide(RewardValidatorTx(staking), commit=commit, at_s=at_s)
