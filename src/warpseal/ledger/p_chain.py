"""Applies P-Chain blocks to the state, from the genesis on or from a later block.

Source of truth: avalanchego `vms/platformvm/block/executor/{verifier,options}.go`; for the genesis
`vms/platformvm/state/state.go` (syncGenesis); the order within a block is that of
docs/ledger.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from warpseal.chains import p_txs
from warpseal.chains.components import BaseTx, ExportTx, ImportTx, TransferableOutput
from warpseal.chains.p_blocks import PBlock, PGenesis
from warpseal.chains.p_txs import (
    AddPermissionlessValidatorTx,
    AddValidatorTx,
    CreateChainTx,
    PSignedTx,
)
from warpseal.ledger import auto_renewal, rewards, staking, subnets
from warpseal.ledger.chain_time import advance_time, deactivate_unfunded
from warpseal.ledger.effects import BlockEffects, ChainCreated, SupplyChange, TxEffects, TxOutcome
from warpseal.ledger.outputs import LedgerError, UtxoSource
from warpseal.ledger.p_state import BlockEffectsBuilder, PChainState, Priority, Proposal, Staker
from warpseal.ledger.params import Parameters
from warpseal.ledger.staking import add_staker, describe_staking, mint_potential_reward
from warpseal.ledger.utxo_flow import build_transfer_output
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID

_COMMITS: Final = frozenset({"ApricotCommitBlock", "BanffCommitBlock"})
DECISIONS: Final = _COMMITS | {"ApricotAbortBlock", "BanffAbortBlock"}
_PROPOSALS: Final = frozenset({"ApricotProposalBlock", "BanffProposalBlock"})

_Rule = Callable[[BlockEffectsBuilder, TxEffects, Any], None]


def apply_p_block(state: PChainState, block: PBlock, source: UtxoSource | None) -> BlockEffects:
    """Apply the next block to `state`, and return its effects.

    source: the outputs of earlier blocks; None if the block was applied before and is repeated from
        an older checkpoint, so that its inputs need no check. The caller checks parent and height.
    Raises LedgerError, after which the state is invalid: go back to a checkpoint.
    """
    if state.is_invalid:
        raise LedgerError(block.height, None, "an earlier fault left the state invalid")
    state.is_invalid = True
    builder = BlockEffectsBuilder(state, block.height, source)
    settled: TxEffects | None = None
    txs: tuple[TxEffects, ...] = ()
    if block.kind in DECISIONS:
        settled = _settle(builder, block)
    else:
        txs = _execute(builder, block)
    state.height, state.block_id = block.height, block.id
    state.is_invalid = False
    return build_block_effects(builder, block, txs, settled)


def build_block_effects(
    builder: BlockEffectsBuilder,
    block: PBlock,
    txs: tuple[TxEffects, ...],
    settled: TxEffects | None,
) -> BlockEffects:
    """Return the effects of a block from the effects of its transactions and of time."""
    state = builder.state
    supplies, set_changes = state.supplies, state.sets.take_changes()
    return BlockEffects(
        block=block,
        time_s=state.time_s,
        supply=state.supply,
        l1_accrued_fees=state.l1_accrued_fees,
        l1_active=state.l1.active,
        l1_excess=state.l1_excess,
        txs=txs,
        settled=settled,
        emitted=(),
        started=tuple(builder.started),
        ended=tuple(builder.ended),
        l1_deactivated=tuple(builder.deactivated),
        supplies=tuple(
            SupplyChange(subnet_id, supplies[subnet_id]) for subnet_id in sorted(builder.supplies)
        ),
        set_changes=set_changes if state.is_complete else None,
    )


def _execute(builder: BlockEffectsBuilder, block: PBlock) -> tuple[TxEffects, ...]:
    state = builder.state
    if state.proposal is not None:
        raise builder.error("the proposal before it is neither committed nor aborted")
    if block.time is not None:
        advance_time(builder, block.time)
    is_proposal = block.kind in _PROPOSALS
    decided = block.txs[:-1] if is_proposal else block.txs
    executed = [_accept(builder, tx, position) for position, tx in enumerate(decided)]
    if state.l1.active:
        deactivate_unfunded(builder)
    if is_proposal:
        executed.append(_propose(builder, block))
    return tuple(executed)


def _accept(builder: BlockEffectsBuilder, tx: PSignedTx, position: int) -> TxEffects:
    effects = TxEffects(tx, builder.flow.height, position, TxOutcome.ACCEPTED)
    _run(builder, effects)
    return builder.finish(effects)


def _run(builder: BlockEffectsBuilder, effects: TxEffects) -> None:
    unsigned: Any = effects.tx.unsigned
    kind = type(unsigned)
    if kind in _TIMELESS:
        raise builder.error("only a proposal may hold it", effects.tx)
    rule = _RULES[kind]
    builder.move_base(effects, unsigned.base)
    rule(builder, effects, unsigned)


def _propose(builder: BlockEffectsBuilder, block: PBlock) -> TxEffects:
    position = len(block.txs) - 1
    tx = block.txs[position]
    if type(tx.unsigned) not in _PROPOSABLE:
        raise builder.error("it cannot be proposed", tx)
    builder.state.proposal = Proposal(tx, block.height, position)
    return TxEffects(tx, block.height, position, TxOutcome.PROPOSED)


def _settle(builder: BlockEffectsBuilder, decision: PBlock) -> TxEffects:
    state = builder.state
    proposal = state.proposal
    if proposal is None:
        raise builder.error("nothing was proposed")
    if decision.time is not None and decision.time != state.time_s:
        raise builder.error(f"its time is {decision.time}, that of the proposal {state.time_s}")
    is_committed = decision.kind in _COMMITS
    outcome = TxOutcome.COMMITTED if is_committed else TxOutcome.ABORTED
    effects = TxEffects(proposal.tx, proposal.height, proposal.position, outcome)
    _decide(builder, effects, is_committed)
    state.proposal = None
    return builder.finish(effects)


def _decide(builder: BlockEffectsBuilder, effects: TxEffects, is_committed: bool) -> None:
    match effects.tx.unsigned:
        case p_txs.AdvanceTimeTx(time_s=time_s):
            if is_committed:
                advance_time(builder, time_s)
        case p_txs.RewardValidatorTx() as tx:
            rewards.reward_validator(builder, effects, tx, is_committed=is_committed)
        case p_txs.RewardAutoRenewedValidatorTx() as tx:
            auto_renewal.reward_auto_renewed(builder, effects, tx, is_committed=is_committed)
        case _ if is_committed:
            _run(builder, effects)
        case p_txs.AddSubnetValidatorTx() as tx:
            builder.move_base(effects, tx.base)
        case p_txs.AddValidatorTx() | p_txs.AddDelegatorTx() as tx:
            # The stake is returned at once; the fee is burned.
            builder.move_base(effects, tx.base)
            builder.emit(effects, tx.stake)


def _move_nothing_more(builder: BlockEffectsBuilder, effects: TxEffects, tx: BaseTx) -> None:
    """Do nothing: a BaseTx only moves base inputs and outputs."""


def _import(builder: BlockEffectsBuilder, effects: TxEffects, tx: ImportTx) -> None:
    effects.source_chain_id = tx.source_chain_id
    builder.spend(effects, tx.imported_inputs, tx.source_chain_id)


def _export(builder: BlockEffectsBuilder, effects: TxEffects, tx: ExportTx) -> None:
    effects.destination_chain_id = tx.destination_chain_id
    builder.emit(effects, tx.exported_outputs, tx.destination_chain_id)


_RULES: Final[Mapping[type, _Rule]] = {
    BaseTx: _move_nothing_more,
    ImportTx: _import,
    ExportTx: _export,
    p_txs.AddValidatorTx: staking.begin_staking,
    p_txs.AddDelegatorTx: staking.begin_staking,
    p_txs.AddSubnetValidatorTx: staking.begin_staking,
    p_txs.AddPermissionlessValidatorTx: staking.begin_staking,
    p_txs.AddPermissionlessDelegatorTx: staking.begin_staking,
    p_txs.RemoveSubnetValidatorTx: staking.remove_subnet_validator,
    p_txs.CreateSubnetTx: subnets.create_subnet,
    p_txs.CreateChainTx: subnets.create_chain,
    p_txs.TransferSubnetOwnershipTx: subnets.transfer_subnet,
    p_txs.TransformSubnetTx: subnets.transform_subnet,
    p_txs.ConvertSubnetToL1Tx: subnets.convert_subnet,
    p_txs.RegisterL1ValidatorTx: subnets.register_validator,
    p_txs.SetL1ValidatorWeightTx: subnets.set_weight,
    p_txs.IncreaseL1ValidatorBalanceTx: subnets.increase_balance,
    p_txs.DisableL1ValidatorTx: subnets.disable_validator,
    p_txs.AddAutoRenewedValidatorTx: auto_renewal.add_auto_renewed,
    p_txs.SetAutoRenewedValidatorConfigTx: auto_renewal.configure_auto_renewed,
}
_TIMELESS: Final = frozenset(
    {p_txs.AdvanceTimeTx, p_txs.RewardValidatorTx, p_txs.RewardAutoRenewedValidatorTx}
)
_PROPOSABLE: Final = _TIMELESS | {
    p_txs.AddValidatorTx,
    p_txs.AddDelegatorTx,
    p_txs.AddSubnetValidatorTx,
}


def state_from_genesis(genesis: PGenesis, params: Parameters) -> tuple[PChainState, BlockEffects]:
    """Return the state after block 0, and the genesis as that block's effects.

    `emitted` has its outputs, `txs` its transactions (validators, then chains), though block 0 has
    none. Raises LedgerError for a genesis that no node would accept.
    """
    block = genesis.block
    supplies = {PRIMARY_NETWORK: genesis.initial_supply}
    state = PChainState(params, genesis.timestamp, 0, block.id, supplies)
    builder = BlockEffectsBuilder(state, 0, None)
    builder.supplies.add(PRIMARY_NETWORK)
    txs = [_validator(builder, tx, position) for position, tx in enumerate(genesis.validators)]
    txs += [_chain(builder, tx, position) for position, tx in enumerate(genesis.chains, len(txs))]
    effects = build_block_effects(builder, block, tuple(txs), None)
    utxos = (entry.utxo for entry in genesis.utxos)
    outputs = tuple(
        build_transfer_output(
            utxo.tx_id,
            utxo.output_index,
            TransferableOutput(utxo.asset_id, utxo.output),
            P_CHAIN,
            P_CHAIN,
        )
        for utxo in utxos
    )
    return state, replace(effects, emitted=outputs)


def state_without_genesis(params: Parameters, first: PBlock) -> PChainState:
    """Return a state before block `first` in which only chain time is known.

    Earlier stakers, subnets, L1s and outputs are unknown; effects that depend on them are left out
    and marked.
    """
    return PChainState(
        params, first.time or 0, first.height - 1, first.parent_id, {}, is_complete=False
    )


def _validator(builder: BlockEffectsBuilder, tx: PSignedTx, position: int) -> TxEffects:
    effects = TxEffects(tx, 0, position, TxOutcome.ACCEPTED)
    unsigned = tx.unsigned
    if (
        not isinstance(unsigned, AddValidatorTx | AddPermissionlessValidatorTx)
        or not unsigned.stake
    ):
        raise builder.error(f"a {tx.kind} among the first validators", tx)
    stake = builder.emit_staked(effects, unsigned.stake)
    period = describe_staking(tx.id, unsigned)
    period = replace(period, potential_reward=mint_potential_reward(builder, period))
    staker = Staker(period, Priority.PRIMARY_VALIDATOR, period.end_s, stake, len(effects.emitted))
    add_staker(builder, effects, builder.state.current, staker)
    return effects


def _chain(builder: BlockEffectsBuilder, tx: PSignedTx, position: int) -> TxEffects:
    unsigned = tx.unsigned
    if not isinstance(unsigned, CreateChainTx):
        raise builder.error(f"a {tx.kind} among the first chains", tx)
    chain_id = ChainID(tx.id)
    builder.state.chains[chain_id] = unsigned.subnet_id
    created = ChainCreated(chain_id, unsigned.subnet_id, unsigned.chain_name, unsigned.vm_id)
    return TxEffects(tx, 0, position, TxOutcome.ACCEPTED, chain=created)
