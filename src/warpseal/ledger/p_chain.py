"""What a block of the P-Chain does to the state, and what of it is to be written.

Source of truth: avalanchego `vms/platformvm/block/executor/{verifier,options}.go`; the order within a block is that of
docs/ledger.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from warpseal.chains.p_blocks import PBlock
from warpseal.chains.p_txs import (
    AddAutoRenewedValidatorTx,
    AddDelegatorTx,
    AddPermissionlessDelegatorTx,
    AddPermissionlessValidatorTx,
    AddSubnetValidatorTx,
    AddValidatorTx,
    AdvanceTimeTx,
    BaseTx,
    ConvertSubnetToL1Tx,
    CreateChainTx,
    CreateSubnetTx,
    DisableL1ValidatorTx,
    ExportTx,
    ImportTx,
    IncreaseL1ValidatorBalanceTx,
    PSignedTx,
    RegisterL1ValidatorTx,
    RemoveSubnetValidatorTx,
    RewardAutoRenewedValidatorTx,
    RewardValidatorTx,
    SetAutoRenewedValidatorConfigTx,
    SetL1ValidatorWeightTx,
    TransferSubnetOwnershipTx,
    TransformSubnetTx,
)
from warpseal.ledger import auto_renewal, rewards, staking, subnets
from warpseal.ledger.chain_time import advance_time, deactivate_unfunded
from warpseal.ledger.effects import BlockEffects, SupplyChange, TxEffects, TxOutcome
from warpseal.ledger.effects_builder import BlockEffectsBuilder, TxEffectsBuilder, build_proposed_effects
from warpseal.ledger.outputs import LedgerFault, UtxoSource
from warpseal.ledger.p_state import PChainState, Proposal
from warpseal.warp.ids import P_CHAIN

_COMMITS: Final = frozenset({"ApricotCommitBlock", "BanffCommitBlock"})
_ABORTS: Final = frozenset({"ApricotAbortBlock", "BanffAbortBlock"})
_PROPOSALS: Final = frozenset({"ApricotProposalBlock", "BanffProposalBlock"})

_Rule = Callable[[BlockEffectsBuilder, TxEffectsBuilder, Any], None]


def apply_p_block(state: PChainState, block: PBlock, source: UtxoSource | None) -> BlockEffects:
    """Move `state` on by the next block, and return what it does.

    source: the outputs from before; None where the block was applied before, from an older checkpoint, so that its
    inputs need no check. Parent and height are the caller's to check. Raises LedgerFault, after which the state is
    spoiled and only a checkpoint helps.
    """
    if state.is_invalid:
        raise LedgerFault(block.height, None, "the state was left in between by an earlier fault")
    state.is_invalid = True
    draft = BlockEffectsBuilder(state, block.height, source)
    settled: TxEffects | None = None
    txs: tuple[TxEffects, ...] = ()
    if block.kind in _COMMITS or block.kind in _ABORTS:
        settled = _settle(draft, block)
    else:
        txs = _execute(draft, block)
    state.height, state.block_id = block.height, block.id
    state.is_invalid = False
    return build_block_effects(draft, block, txs, settled)


def build_block_effects(
    draft: BlockEffectsBuilder, block: PBlock, txs: tuple[TxEffects, ...], settled: TxEffects | None
) -> BlockEffects:
    """Return the effects of a block whose transactions and time did theirs."""
    state = draft.state
    supplies = state.supplies
    return BlockEffects(
        chain_id=P_CHAIN,
        block=block,
        size_bytes=len(block.raw),
        tx_count=len(block.txs),
        time_s=state.time_s,
        supply=state.supply,
        l1_accrued_fees=state.l1_accrued_fees,
        l1_active=state.l1.active,
        l1_excess=state.l1_excess,
        txs=txs,
        settled=settled,
        emitted=(),
        started=tuple(draft.started),
        ended=tuple(draft.ended),
        l1_deactivated=tuple(draft.deactivated),
        supplies=tuple(SupplyChange(subnet_id, supplies[subnet_id]) for subnet_id in sorted(draft.supplies)),
    )


def _execute(draft: BlockEffectsBuilder, block: PBlock) -> tuple[TxEffects, ...]:
    state = draft.state
    if state.proposal is not None:
        raise draft.fault("the proposal before it is neither committed nor aborted")
    if block.time is not None:
        advance_time(draft, block.time)
    is_proposal = block.kind in _PROPOSALS
    decided = block.txs[:-1] if is_proposal else block.txs
    effects = [_accept(draft, tx, position) for position, tx in enumerate(decided)]
    if state.l1.active:
        deactivate_unfunded(draft)
    if is_proposal:
        effects.append(_propose(draft, block))
    return tuple(effects)


def _accept(draft: BlockEffectsBuilder, tx: PSignedTx, position: int) -> TxEffects:
    done = TxEffectsBuilder(tx)
    _run(draft, done)
    return draft.finish(done, draft.moving.height, position, TxOutcome.ACCEPTED)


def _run(block: BlockEffectsBuilder, draft: TxEffectsBuilder) -> None:
    unsigned = draft.unsigned
    kind = type(unsigned)
    if kind in _TIMELESS:
        raise block.fault("only a proposal may hold it", draft.tx)
    rule = _RULES.get(kind)
    if rule is None:
        raise block.fault(f"no rule for {kind.__name__}", draft.tx)
    block.move_base(draft, unsigned.base)
    rule(block, draft, unsigned)


def _propose(draft: BlockEffectsBuilder, block: PBlock) -> TxEffects:
    position = len(block.txs) - 1
    tx = block.txs[position]
    if type(tx.unsigned) not in _PROPOSABLE:
        raise draft.fault("it cannot be proposed", tx)
    draft.state.proposal = Proposal(tx, block.height, position)
    return build_proposed_effects(tx, block.height, position)


def _settle(block: BlockEffectsBuilder, decision: PBlock) -> TxEffects:
    state = block.state
    proposal = state.proposal
    if proposal is None:
        raise block.fault("nothing was proposed")
    if decision.time is not None and decision.time != state.time_s:
        raise block.fault(f"its time is {decision.time}, that of the proposal {state.time_s}")
    is_committed = decision.kind in _COMMITS
    draft = TxEffectsBuilder(proposal.tx)
    _decide(block, draft, is_committed)
    state.proposal = None
    outcome = TxOutcome.COMMITTED if is_committed else TxOutcome.ABORTED
    return block.finish(draft, proposal.height, proposal.position, outcome)


def _decide(block: BlockEffectsBuilder, draft: TxEffectsBuilder, is_committed: bool) -> None:
    match draft.unsigned:
        case AdvanceTimeTx(time_s=time_s):
            if is_committed:
                advance_time(block, time_s)
        case RewardValidatorTx() as tx:
            rewards.reward_validator(block, draft, tx, is_committed=is_committed)
        case RewardAutoRenewedValidatorTx() as tx:
            auto_renewal.reward_auto_renewed(block, draft, tx, is_committed=is_committed)
        case _ if is_committed:
            _run(block, draft)
        case AddSubnetValidatorTx() as tx:
            block.move_base(draft, tx.base)
        case AddValidatorTx() | AddDelegatorTx() as tx:
            # What was to be staked comes back at once; the fee is burned all the same.
            block.move_base(draft, tx.base)
            block.make(draft, tx.stake)


def _nothing_more(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: BaseTx) -> None:
    """Funds move within the chain."""


def _import(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: ImportTx) -> None:
    draft.source_chain_id = tx.source_chain_id
    block.spend(draft, tx.imported_inputs, tx.source_chain_id)


def _export(block: BlockEffectsBuilder, draft: TxEffectsBuilder, tx: ExportTx) -> None:
    draft.destination_chain_id = tx.destination_chain_id
    block.make(draft, tx.exported_outputs, tx.destination_chain_id)


_RULES: Final[Mapping[type, _Rule]] = {
    BaseTx: _nothing_more,
    ImportTx: _import,
    ExportTx: _export,
    AddValidatorTx: staking.add_validator,
    AddDelegatorTx: staking.add_delegator,
    AddSubnetValidatorTx: staking.add_subnet_validator,
    AddPermissionlessValidatorTx: staking.add_permissionless_validator,
    AddPermissionlessDelegatorTx: staking.add_permissionless_delegator,
    RemoveSubnetValidatorTx: staking.remove_subnet_validator,
    CreateSubnetTx: subnets.create_subnet,
    CreateChainTx: subnets.create_chain,
    TransferSubnetOwnershipTx: subnets.transfer_subnet,
    TransformSubnetTx: subnets.transform_subnet,
    ConvertSubnetToL1Tx: subnets.convert_subnet,
    RegisterL1ValidatorTx: subnets.register_validator,
    SetL1ValidatorWeightTx: subnets.set_weight,
    IncreaseL1ValidatorBalanceTx: subnets.increase_balance,
    DisableL1ValidatorTx: subnets.disable_validator,
    AddAutoRenewedValidatorTx: auto_renewal.add_auto_renewed,
    SetAutoRenewedValidatorConfigTx: auto_renewal.configure_auto_renewed,
}
_TIMELESS: Final = frozenset({AdvanceTimeTx, RewardValidatorTx, RewardAutoRenewedValidatorTx})
_PROPOSABLE: Final = _TIMELESS | {AddValidatorTx, AddDelegatorTx, AddSubnetValidatorTx}
