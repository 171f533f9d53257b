"""Where the P-Chain's state begins: with its genesis, or at some block without it.

Source of truth: avalanchego `vms/platformvm/state/state.go` (syncGenesis).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from warpseal.chains.components import Output, TransferableOutput, Utxo
from warpseal.chains.ids import BlockID
from warpseal.chains.p_blocks import PGenesis
from warpseal.chains.p_components import ProofOfPossession
from warpseal.chains.p_txs import AddPermissionlessValidatorTx, AddValidatorTx, CreateChainTx, PSignedTx
from warpseal.ledger.effects import BlockEffects, ChainCreated, StakingPeriod, TxEffects, TxOutcome
from warpseal.ledger.effects_builder import BlockEffectsBuilder, TxEffectsBuilder
from warpseal.ledger.outputs import LedgerOutput
from warpseal.ledger.p_chain import build_block_effects
from warpseal.ledger.p_state import PChainState, Priority, Staker
from warpseal.ledger.params import Parameters
from warpseal.ledger.staking import add_staker, mint_potential_reward
from warpseal.ledger.utxo_flow import build_transfer_output
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID

_NO_BLOCK: Final = BlockID(bytes(32))


def state_from_genesis(genesis: PGenesis, params: Parameters) -> tuple[PChainState, BlockEffects]:
    """Return the state after block 0, and what the genesis made as that block's effects.

    Its outputs are in `emitted`; its transactions (validators, then chains) in `txs`, though block 0 holds none.
    Raises LedgerFault for a genesis that no node would start with.
    """
    block = genesis.block
    supplies = {PRIMARY_NETWORK: genesis.initial_supply}
    state = PChainState(params, genesis.timestamp, 0, block.id, supplies)
    draft = BlockEffectsBuilder(state, 0, None)
    draft.supplies.add(PRIMARY_NETWORK)
    txs = [_validator(draft, tx, position) for position, tx in enumerate(genesis.validators)]
    txs += [_chain(draft, tx, position) for position, tx in enumerate(genesis.chains, len(txs))]
    effects = build_block_effects(draft, block, tuple(txs), None)
    made = tuple(_output(each.utxo) for each in genesis.utxos)
    return state, replace(effects, emitted=made)


def state_without_genesis(params: Parameters, time_s: int, first_height: int) -> PChainState:
    """Return a state in front of block `first_height` of which nothing is known but chain time.

    Stakers, subnets, L1s and outputs from before may then be unknown: what depends on them is left out and marked.
    """
    return PChainState(params, time_s, first_height - 1, _NO_BLOCK, {}, is_complete=False)


def _validator(block: BlockEffectsBuilder, tx: PSignedTx, position: int) -> TxEffects:
    draft = TxEffectsBuilder(tx)
    unsigned = tx.unsigned
    if not isinstance(unsigned, AddValidatorTx | AddPermissionlessValidatorTx) or not unsigned.stake:
        raise block.fault(f"a {tx.kind} among the first validators", tx)
    block.make(draft, unsigned.base.outputs)
    stake = block.stake(draft, unsigned.stake)
    period = _period(block, tx, unsigned)
    staker = Staker(period, Priority.PRIMARY_VALIDATOR, period.end_s, stake, len(draft.emitted))
    add_staker(block, draft, block.state.current, staker)
    return _finish(block, draft, position)


def _period(
    block: BlockEffectsBuilder, tx: PSignedTx, unsigned: AddValidatorTx | AddPermissionlessValidatorTx
) -> StakingPeriod:
    if isinstance(unsigned, AddValidatorTx):
        validator, signer = unsigned.validator, None
        owners = (unsigned.rewards_owner, unsigned.rewards_owner)
    else:
        validator = unsigned.validator.validator
        signer = unsigned.signer if isinstance(unsigned.signer, ProofOfPossession) else None
        owners = (unsigned.validator_rewards_owner, unsigned.delegator_rewards_owner)
    return StakingPeriod(
        tx_id=tx.id,
        subnet_id=PRIMARY_NETWORK,
        node_id=validator.node_id,
        start_s=validator.start_s,
        end_s=validator.end_s,
        weight=validator.weight,
        is_delegation=False,
        shares=unsigned.delegation_shares,
        potential_reward=mint_potential_reward(
            block, PRIMARY_NETWORK, validator.start_s, validator.end_s, validator.weight
        ),
        stake_asset_id=unsigned.stake[0].asset_id,
        validation_owner=owners[0],
        delegation_owner=owners[1],
        signer=signer,
    )


def _chain(block: BlockEffectsBuilder, tx: PSignedTx, position: int) -> TxEffects:
    draft = TxEffectsBuilder(tx)
    unsigned = tx.unsigned
    if not isinstance(unsigned, CreateChainTx):
        raise block.fault(f"a {tx.kind} among the first chains", tx)
    chain_id = ChainID(tx.id)
    block.state.chains[chain_id] = unsigned.subnet_id
    draft.chain = ChainCreated(chain_id, unsigned.subnet_id, unsigned.chain_name, unsigned.vm_id)
    return _finish(block, draft, position)


def _finish(block: BlockEffectsBuilder, draft: TxEffectsBuilder, position: int) -> TxEffects:
    # What the genesis makes was never paid for.
    draft.kept.clear()
    return block.finish(draft, 0, position, TxOutcome.ACCEPTED)


def _output(utxo: Utxo[Output]) -> LedgerOutput:
    return build_transfer_output(
        utxo.tx_id, utxo.output_index, TransferableOutput(utxo.asset_id, utxo.output), P_CHAIN, P_CHAIN
    )
