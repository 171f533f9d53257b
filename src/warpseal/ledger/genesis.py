"""The first state of the P-Chain: after its genesis, or before a later block without it.

Source of truth: avalanchego `vms/platformvm/state/state.go` (syncGenesis).
"""

from __future__ import annotations

from dataclasses import replace

from warpseal.chains.components import TransferableOutput
from warpseal.chains.p_blocks import PBlock, PGenesis
from warpseal.chains.p_txs import (
    AddPermissionlessValidatorTx,
    AddValidatorTx,
    CreateChainTx,
    PSignedTx,
)
from warpseal.ledger.effects import BlockEffects, ChainCreated, TxEffects, TxOutcome
from warpseal.ledger.effects_builder import BlockEffectsBuilder
from warpseal.ledger.p_chain import build_block_effects
from warpseal.ledger.p_state import PChainState, Priority, Staker
from warpseal.ledger.params import Parameters
from warpseal.ledger.staking import add_staker, describe_staking, mint_potential_reward
from warpseal.ledger.utxo_flow import build_transfer_output
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID


def state_from_genesis(genesis: PGenesis, params: Parameters) -> tuple[PChainState, BlockEffects]:
    """Return the state after block 0, and the genesis as that block's effects.

    `emitted` has its outputs, `txs` its transactions (validators, then chains), though block 0 has none. Raises
    LedgerFault for a genesis that no node would accept.
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
            utxo.tx_id, utxo.output_index, TransferableOutput(utxo.asset_id, utxo.output), P_CHAIN, P_CHAIN
        )
        for utxo in utxos
    )
    return state, replace(effects, emitted=outputs)


def state_without_genesis(params: Parameters, first: PBlock) -> PChainState:
    """Return a state before block `first` in which only chain time is known.

    Earlier stakers, subnets, L1s and outputs are unknown; effects that depend on them are left out and marked.
    """
    return PChainState(params, first.time or 0, first.height - 1, first.parent_id, {}, is_complete=False)


def _validator(builder: BlockEffectsBuilder, tx: PSignedTx, position: int) -> TxEffects:
    effects = TxEffects(tx, 0, position, TxOutcome.ACCEPTED)
    unsigned = tx.unsigned
    if not isinstance(unsigned, AddValidatorTx | AddPermissionlessValidatorTx) or not unsigned.stake:
        raise builder.fault(f"a {tx.kind} among the first validators", tx)
    builder.emit(effects, unsigned.base.outputs)
    stake = builder.emit_staked(effects, unsigned.stake)
    period = describe_staking(tx.id, unsigned)
    period = replace(period, potential_reward=mint_potential_reward(builder, period))
    staker = Staker(period, Priority.PRIMARY_VALIDATOR, period.end_s, stake, len(effects.emitted))
    add_staker(builder, effects, builder.state.current, staker)
    return effects


def _chain(builder: BlockEffectsBuilder, tx: PSignedTx, position: int) -> TxEffects:
    unsigned = tx.unsigned
    if not isinstance(unsigned, CreateChainTx):
        raise builder.fault(f"a {tx.kind} among the first chains", tx)
    chain_id = ChainID(tx.id)
    builder.state.chains[chain_id] = unsigned.subnet_id
    created = ChainCreated(chain_id, unsigned.subnet_id, unsigned.chain_name, unsigned.vm_id)
    return TxEffects(tx, 0, position, TxOutcome.ACCEPTED, chain=created)
