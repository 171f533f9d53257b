"""The rows of transactions of all three chains, from the ledger's effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from warpseal.chains import p_txs
from warpseal.chains.c_atomic import AtomicEvmInput, AtomicEvmOutput
from warpseal.chains.components import SignedTx
from warpseal.chains.p_txs import RewardType
from warpseal.index import schema
from warpseal.index.batch import IndexBatch, TxInProgress
from warpseal.index.bulk import IdTable
from warpseal.index.columns import ABORTED, ACCEPTED, COMMITTED, TxDetail
from warpseal.index.keys import ACCOUNT, to_column
from warpseal.index.stakings import REMOVED, Staking, Stakings, ids_of
from warpseal.ledger import effects
from warpseal.ledger.c_chain import CTxEffects
from warpseal.ledger.effects import TxEffects
from warpseal.ledger.outputs import Consumed, LedgerOutput
from warpseal.ledger.utxo_flow import hash_unsigned_tx, recover_public_key
from warpseal.ledger.x_chain import AssetCreation, Cap, XTxEffects
from warpseal.runtime.zstd import Compressor

AnyTx = TxEffects | XTxEffects | CTxEffects

_OUTCOMES: Final = {
    effects.TxOutcome.ACCEPTED: ACCEPTED,
    effects.TxOutcome.COMMITTED: COMMITTED,
    effects.TxOutcome.ABORTED: ABORTED,
}


def ids_in(tx: AnyTx) -> Iterator[bytes]:
    """Yield the ids whose keys the rows of a transaction need."""
    return _ids_in_p(tx) if isinstance(tx, TxEffects) else _ids_in_xc(tx)


def _ids_in_p(tx: TxEffects) -> Iterator[bytes]:
    # Released stakes were made long ago, so no other output of the batch may name their owners.
    for output in (*tx.emitted, *tx.released):
        yield from ids_of_output(output)
    for consumed in tx.consumed:
        if consumed.reconstructed is not None:
            yield from ids_of_output(consumed.reconstructed)
    for asset_id, _ in tx.burned:
        yield asset_id
    if tx.opened is not None:
        yield from ids_of(tx.opened)
    for change in tx.l1:
        validator = change.validator
        yield from (validator.validation_id, validator.node_id, validator.subnet_id)
    if tx.subnet is not None:
        yield tx.subnet.subnet_id
        if isinstance(tx.subnet, effects.SubnetCreated | effects.SubnetOwnerChanged):
            yield from tx.subnet.owner.addresses
    if tx.chain is not None:
        yield from (tx.chain.chain_id, tx.chain.subnet_id)
    unsigned = tx.tx.unsigned
    if isinstance(unsigned, p_txs.RemoveSubnetValidatorTx):
        yield from (unsigned.node_id, unsigned.subnet_id)
    elif isinstance(unsigned, p_txs.AddSubnetValidatorTx):
        yield from (unsigned.validator.subnet_id, unsigned.validator.validator.node_id)


def _ids_in_xc(tx: XTxEffects | CTxEffects) -> Iterator[bytes]:
    for output in tx.emitted:
        yield from ids_of_output(output)
    for consumed in tx.consumed:
        yield consumed.asset_id
        if consumed.reconstructed is not None:
            yield from consumed.reconstructed.addresses
    if isinstance(tx, CTxEffects):
        for account in _accounts(tx):
            yield from (ACCOUNT + account.address, account.asset_id)
    elif tx.asset is not None:
        yield tx.asset.asset_id


def ids_of_output(output: LedgerOutput) -> tuple[bytes, ...]:
    """Return the ids whose keys the row of an output needs."""
    return (output.asset_id, *output.addresses)


def write_p(batch: IndexBatch, stakings: Stakings, tx: TxEffects, row: TxInProgress) -> None:
    """Write a transaction that took effect."""
    inputs = batch.consume(row, tx.consumed)
    closed = tx.closed or tx.renewed
    staking = stakings.find(closed.tx_id) if closed is not None else None
    new_outputs = batch.emit(row, tx.emitted, None if staking is None else staking.tx)
    detail = TxDetail(
        inputs, () if staking is None else batch.release(row, tx.released, staking.first_out)
    )
    if closed is not None:
        detail.closes = closed.tx_id if staking is None else staking.tx
    _add_fields(batch, detail, tx)
    batch.put_tx(row, tx.height, _OUTCOMES[tx.outcome], new_outputs, detail)
    if staking is not None:
        _write_rewards(batch, tx, staking, row, new_outputs)
    _move_stakings(batch, stakings, tx, row, new_outputs.start)
    keys = batch.ids.keys
    for change in tx.l1:
        validator = change.validator
        validation = keys[validator.validation_id]
        batch.add(schema.VALIDATION_TXS, (validation, row.key, row.kind))
        if change.is_new:
            bls = validator.public_key + _proof(tx.tx.unsigned, validator.public_key)
            batch.add(
                schema.VALIDATIONS,
                (validation, keys[validator.node_id], keys[validator.subnet_id], bls),
            )
    if tx.chain is not None:
        unsigned = tx.tx.unsigned
        assert isinstance(unsigned, p_txs.CreateChainTx)
        ids = keys[tx.chain.chain_id], keys[tx.chain.subnet_id]
        genesis = Compressor().compress(unsigned.genesis)
        batch.add(schema.BLOCKCHAINS, (*ids, tx.chain.vm_id, tx.chain.name, row.key, genesis))


def _add_fields(batch: IndexBatch, detail: TxDetail, tx: TxEffects) -> None:
    """Set the fields that do not follow from the outputs."""
    unsigned: Any = tx.tx.unsigned
    keys = batch.ids.keys
    base = getattr(unsigned, "base", None)
    if base is not None:
        detail.memo = base.memo
    if tx.burned:
        detail.burned = tuple([(keys[asset_id], amount) for asset_id, amount in tx.burned])
    if tx.l1_balance:
        detail.l1_funded = (batch.avax, tx.l1_balance)
    detail.source, detail.destination = map(
        batch.chain_ref, (tx.source_chain_id, tx.destination_chain_id)
    )
    if tx.opened is not None:
        detail.node, detail.subnet = keys[tx.opened.node_id], keys[tx.opened.subnet_id]
    if isinstance(unsigned, p_txs.RemoveSubnetValidatorTx):
        detail.node, detail.subnet = keys[unsigned.node_id], keys[unsigned.subnet_id]
    elif isinstance(unsigned, p_txs.AddSubnetValidatorTx):
        detail.node, detail.subnet = (
            keys[unsigned.validator.validator.node_id],
            keys[unsigned.validator.subnet_id],
        )
    if tx.subnet is not None:
        detail.subnet = keys[tx.subnet.subnet_id]
    if isinstance(tx.subnet, effects.SubnetCreated | effects.SubnetOwnerChanged):
        owner = tx.subnet.owner
        detail.owner = (
            owner.locktime,
            owner.threshold,
            tuple([keys[address] for address in owner.addresses]),
        )
    elif isinstance(tx.subnet, effects.SubnetConverted):
        detail.manager = (tx.subnet.manager_chain_id, tx.subnet.manager_address)
    detail.l1 = tuple(
        [
            (
                keys[change.validator.validation_id],
                change.validator.weight,
                change.balance,
                change.balance_change,
            )
            for change in tx.l1
        ]
    )
    if tx.chain is not None:
        detail.blockchain, detail.subnet = keys[tx.chain.chain_id], keys[tx.chain.subnet_id]
    if isinstance(unsigned, p_txs.AddPermissionlessValidatorTx):
        signer = unsigned.signer
        if isinstance(signer, p_txs.ProofOfPossession):
            detail.bls = signer.public_key + signer.proof


def _proof(unsigned: object, public_key: bytes) -> bytes:
    """Return the proof of possession of the public key of a new L1 validator."""
    if isinstance(unsigned, p_txs.RegisterL1ValidatorTx):
        return unsigned.proof_of_possession
    validators = unsigned.validators if isinstance(unsigned, p_txs.ConvertSubnetToL1Tx) else ()
    return next(
        (new.signer.proof for new in validators if new.signer.public_key == public_key), b""
    )


def _write_rewards(
    batch: IndexBatch, tx: TxEffects, staking: Staking, row: TxInProgress, new_outputs: range
) -> None:
    for output_key, output in zip(new_outputs, tx.emitted, strict=True):
        if output.reward is None:
            continue
        reward = batch.next_keys.reward
        batch.next_keys.reward += 1
        batch.add(schema.REWARDS, (reward, output_key, staking.tx, row.key, row.settled_s))
        batch.add(schema.REWARD_NODES, (staking.node, reward))
        for address in dict.fromkeys(output.addresses):
            batch.add(schema.REWARD_ADDRESSES, (batch.ids.keys[address], reward))


def _move_stakings(
    batch: IndexBatch, stakings: Stakings, tx: TxEffects, row: TxInProgress, first_out: int
) -> None:
    if tx.opened is not None:
        stakings.begin(batch.ids, tx.opened, row.key, first_out, row.settled_s)
    if tx.closed is not None:
        stakings.close(tx.closed, row.key)
    if tx.renewed is not None:
        paid = dict.fromkeys(RewardType, 0)
        for output in tx.emitted:
            if output.reward is not None:
                paid[output.reward] += output.amount
        stakings.renew(tx.renewed, paid[RewardType.VALIDATOR], paid[RewardType.VALIDATOR_FEE])
    if tx.removed is not None:
        stakings.end(tx.removed, REMOVED, row.key, row.settled_s)
    if isinstance(tx.subnet, effects.SubnetTransformed):
        unsigned = tx.tx.unsigned
        assert isinstance(unsigned, p_txs.TransformSubnetTx)
        factor = unsigned.max_validator_weight_factor
        stakings.set_limits(
            batch.ids.keys[tx.subnet.subnet_id], to_column(unsigned.max_validator_stake), factor
        )


def write_x(batch: IndexBatch, tx: XTxEffects, row: TxInProgress, *, is_approximate: bool) -> None:
    """Write a transaction of the X-Chain.

    is_approximate: the time is that of a container from before the first block.
    """
    detail, new_outputs = _move(batch, tx, row, tx.consumed)
    detail.memo = tx.tx.unsigned.base.memo
    detail.is_approximate = is_approximate
    if tx.asset is not None:
        detail.asset = batch.ids.keys[tx.asset.asset_id]
        batch.change(schema.ASSETS, asset_row(batch.ids, tx.asset, row.time_s))
    batch.put_tx(row, tx.height, ACCEPTED, new_outputs, detail)


def write_c(batch: IndexBatch, tx: CTxEffects, row: TxInProgress) -> None:
    """Write an atomic transaction of the C-Chain."""
    detail, new_outputs = _move(batch, tx, row, tx.consumed or tx.evm_inputs)
    keys, accounts = batch.ids.keys, _accounts(tx)
    signed = detail.signed if tx.evm_inputs else ((),) * len(accounts)
    detail.accounts = tuple(
        (keys[ACCOUNT + account.address], keys[account.asset_id], account.amount, signatures)
        for account, signatures in zip(accounts, signed, strict=True)
    )
    row.touched.update(account for account, *_ in detail.accounts)
    batch.put_tx(row, tx.height, ACCEPTED, new_outputs, detail)


def asset_row(ids: IdTable, asset: AssetCreation, made_at: int) -> tuple[Any, ...]:
    """Return the row of an asset, without the zero bytes that a text column cannot store."""
    texts = (asset.name.replace("\x00", ""), asset.symbol.replace("\x00", ""))
    is_fixed = asset.cap is Cap.FIXED
    return (
        ids.keys[asset.asset_id],
        *texts,
        asset.denomination,
        int(asset.is_nft),
        int(is_fixed),
        made_at,
    )


def _accounts(tx: CTxEffects) -> tuple[AtomicEvmInput | AtomicEvmOutput, ...]:
    return (*tx.evm_inputs, *tx.evm_outputs)


def _move(
    batch: IndexBatch,
    tx: XTxEffects | CTxEffects,
    row: TxInProgress,
    spent: Sequence[Consumed | Any],
) -> tuple[TxDetail, range]:
    """Write the outputs of a transaction; return its detail with signatures, and the keys."""
    detail = TxDetail(batch.consume(row, tx.consumed))
    new_outputs = batch.emit(row, tx.emitted)
    detail.source, detail.destination = map(
        batch.chain_ref, (tx.source_chain_id, tx.destination_chain_id)
    )
    _add_signatures(detail, tx.tx, spent)
    return detail, new_outputs


def _add_signatures(
    detail: TxDetail, tx: SignedTx[Any, Any], spent: Sequence[Consumed | Any]
) -> None:
    """Set all signatures, each once, their public keys, and the signatures of each input."""
    places: dict[bytes, int] = {}
    used: list[tuple[int, ...]] = []
    credentials = tx.credentials
    for number, consumed in enumerate(spent):
        credential = consumed.credential if isinstance(consumed, Consumed) else number
        signatures = credentials[credential].signatures if credential < len(credentials) else ()
        used.append(tuple([places.setdefault(signature, len(places)) for signature in signatures]))
    digest = hash_unsigned_tx(tx.encode_unsigned()) if places else b""
    detail.signatures, detail.signed = tuple(places), tuple(used)
    detail.signers = tuple([recover_public_key(digest, signature) or b"" for signature in places])
