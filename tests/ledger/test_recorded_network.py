"""The recorded network, replayed from its genesis, ends where its node says it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.chains.exchanges import LOCALNET, WALLET, results
from tests.chains.p_vectors import recorded, unchecked
from tests.ledger.recorded import (
    GENESIS,
    beginning,
    moves,
    p_blocks,
    params,
    replayed,
    result_of,
    results_of,
)
from warpseal.chains.components import LockOut, Output, TransferOutput, Utxo
from warpseal.chains.ids import address_text, parse_address
from warpseal.chains.p_txs import P_TYPES
from warpseal.chains.x_txs import X_TYPES, NftMintOutput, NftTransferOutput, XOutput
from warpseal.ledger.chain_time import advance_excess, l1_fee_price
from warpseal.ledger.checkpoint import decode_checkpoint, encode_checkpoint
from warpseal.ledger.effects import TxOutcome
from warpseal.ledger.outputs import LedgerOutput, OutputKind
from warpseal.ledger.p_chain import apply_p_block
from warpseal.ledger.utxo_flow import spent_ids
from warpseal.ledger.x_chain import Cap
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, id_text, node_id_text, parse_id

STATE = replayed().state
CHAINS = {"P": P_CHAIN, "X": params().x_chain_id, "C": params().c_chain_id}
AVAX = params().staking_asset_id


def platform(method: str) -> list[tuple[dict[str, Any], Any]]:
    """Return (request, result) of a recording that other tests also use."""
    calls = (json.loads(line) for line in (LOCALNET / "platform.jsonl").read_text().splitlines())
    return [
        (call["params"], call["result"])
        for call in calls
        if call["method"] == method and "result" in call
    ]


def held(chain: ChainID, call: dict[str, Any]) -> list[LedgerOutput]:
    """Return what the ledger has where the node was asked for unspent outputs, by id."""
    source = CHAINS[call["sourceChain"]] if "sourceChain" in call else chain
    addresses = {parse_address(text)[1] for text in call["addresses"]}
    outputs = [out for address in addresses for out in replayed().outputs.held_by(address, chain)]
    return sorted(
        {out.id: out for out in outputs if out.created_on == source}.values(),
        key=lambda out: out.id,
    )


def looks(output: LedgerOutput) -> tuple[Any, ...]:
    """Return the fields that a node reports of an output."""
    return (
        output.id,
        output.asset_id,
        output.amount,
        output.stakeable_locktime,
        output.locktime,
        output.threshold,
        output.addresses,
        output.group_id,
        output.payload,
    )


def describe_utxo(utxo: Utxo[Any]) -> tuple[Any, ...]:
    """Return the same of what the node answered."""
    output, stakeable = utxo.output, 0
    if isinstance(output, LockOut):
        output, stakeable = output.output, output.locktime
    owners = output.owners
    amount = (
        output.amount
        if isinstance(output, TransferOutput)
        else int(isinstance(output, NftTransferOutput))
    )
    group_id = output.group_id if isinstance(output, NftMintOutput | NftTransferOutput) else None
    payload = output.payload if isinstance(output, NftTransferOutput) else None
    owned = (owners.locktime, owners.threshold, owners.addresses)
    return (utxo.id, utxo.asset_id, amount, stakeable, *owned, group_id, payload)


@pytest.mark.parametrize(
    "call", recorded("getUTXOs", "hex"), ids=lambda call: str(call[0].get("sourceChain"))
)
def test_unspent_outputs_of_the_p_chain_equal_the_nodes(call: tuple[dict[str, Any], Any]) -> None:
    request, result = call
    utxos = sorted(
        (P_TYPES.struct(Utxo[Output]).parse(unchecked(text)) for text in result["utxos"]),
        key=lambda utxo: utxo.id,
    )
    assert [looks(output) for output in held(P_CHAIN, request)] == [
        describe_utxo(utxo) for utxo in utxos
    ]


@pytest.mark.parametrize(
    "call", results_of("avm.getUTXOs"), ids=lambda call: str(call[0].get("sourceChain"))
)
def test_unspent_outputs_of_the_x_chain_equal_the_nodes(call: tuple[dict[str, Any], Any]) -> None:
    request, result = call
    utxos = sorted(
        (X_TYPES.struct(Utxo[XOutput]).parse(unchecked(text)) for text in result["utxos"]),
        key=lambda utxo: utxo.id,
    )
    assert [looks(output) for output in held(CHAINS["X"], request)] == [
        describe_utxo(utxo) for utxo in utxos
    ]


def test_no_exported_output_to_the_c_chain_is_left() -> None:
    assert [held(CHAINS["C"], request) for request, _ in results_of("avax.getUTXOs")] == [[]] * 6
    assert all(not result["utxos"] for _, result in results_of("avax.getUTXOs"))


@pytest.mark.parametrize(
    "call", results_of("platform.getBalance"), ids=lambda call: call[0]["addresses"][0]
)
def test_balances_of_the_p_chain_equal_the_nodes(call: tuple[dict[str, Any], Any]) -> None:
    request, result = call
    outputs = held(P_CHAIN, request)
    locked = sum(out.amount for out in outputs if out.stakeable_locktime > STATE.time_s)
    assert (sum(out.amount for out in outputs), locked) == (
        int(result["balance"]),
        int(result["lockedStakeable"]),
    )


@pytest.mark.parametrize(
    "call", results_of("avm.getAllBalances"), ids=lambda call: call[0]["address"]
)
def test_balances_of_the_x_chain_equal_the_nodes(call: tuple[dict[str, Any], Any]) -> None:
    request, result = call
    balances: dict[bytes, int] = {}
    for out in replayed().outputs.held_by(parse_address(request["address"])[1], CHAINS["X"]):
        if out.kind is OutputKind.TRANSFER and out.created_on == CHAINS["X"]:
            balances[out.asset_id] = balances.get(out.asset_id, 0) + out.amount
    amounts = {
        "AVAX" if asset == AVAX else id_text(asset): str(amount)
        for asset, amount in balances.items()
    }
    assert amounts == {balance["asset"]: balance["balance"] for balance in result["balances"]}


def test_current_stakers_have_the_nodes_times_weights_owners_and_potential_rewards() -> None:
    reported = {
        validator["txID"]: validator
        for _, result in platform("platform.getCurrentValidators")
        for validator in result["validators"]
        if "txID" in validator
    }
    assert {id_text(staker.tx_id) for staker in STATE.current} == set(reported)
    assert len(reported) == 4
    for staker in STATE.current:
        period, node = staker.period, reported[id_text(staker.tx_id)]
        assert node_id_text(period.node_id) == node["nodeID"]
        times = (period.start_s, period.end_s, period.weight)
        assert times == (int(node["startTime"]), int(node["endTime"]), int(node["weight"]))
        assert str(period.potential_reward) == node.get("potentialReward", "0")
        if period.validation_owner is not None and period.shares is not None:
            owner = node["validationRewardOwner"]
            texts = [address_text(88888, address) for address in period.validation_owner.addresses]
            assert (texts, period.validation_owner.threshold) == (
                owner["addresses"],
                int(owner["threshold"]),
            )
            assert f"{period.shares / 10_000:.4f}" == node["delegationFee"]
            assert period.signer is not None
            assert "0x" + period.signer.public_key.hex() == node["signer"]["publicKey"]
    assert not len(STATE.waiting)


def test_the_supply_is_the_initial_supply_plus_all_potential_rewards() -> None:
    rewards = sum(staker.potential_reward for staker in STATE.current)
    assert STATE.supply == replayed().p[0].supply == GENESIS.initial_supply + rewards


def test_the_stake_of_the_primary_network_equals_the_nodes() -> None:
    weights = [
        staker.period.weight
        for staker in STATE.current
        if staker.period.subnet_id == PRIMARY_NETWORK
    ]
    assert str(sum(weights)) == result_of("platform.getTotalStake")["stake"]


def test_l1_validators_have_the_nodes_weights_nonces_and_balances() -> None:
    reported = {result["validationID"]: result for _, result in platform("platform.getL1Validator")}
    assert {id_text(validator.validation_id) for validator in STATE.l1} == set(reported)
    for validator in STATE.l1:
        node = reported[id_text(validator.validation_id)]
        assert int(node["height"]) == STATE.height
        assert (validator.weight, validator.min_nonce) == (
            int(node["weight"]),
            int(node["minNonce"]),
        )
        assert validator.balance(STATE.l1_accrued_fees) == int(node["balance"])
        assert (validator.start_s, id_text(validator.subnet_id)) == (
            int(node["startTime"]),
            node["subnetID"],
        )
        assert "0x" + validator.public_key.hex() == node["publicKey"]
        assert node_id_text(validator.node_id) == node["nodeID"]
        owner = validator.remaining_balance_owner
        assert owner.threshold == int(node["remainingBalanceOwner"]["threshold"])


def test_chain_time_and_l1_fee_equal_the_nodes() -> None:
    reported = result_of("platform.getValidatorFeeState")
    assert (STATE.l1_excess, l1_fee_price(params().l1_fee, STATE.l1_excess)) == (
        reported["excess"],
        reported["price"],
    )
    assert advance_excess(params().l1_fee, STATE.l1.active, STATE.l1_excess, 1) == 0
    assert STATE.time_s == 1795226807
    assert (
        reported["timestamp"]
        == result_of("platform.getTimestamp")["timestamp"]
        == "2026-11-21T02:06:47Z"
    )


def test_subnets_owners_conversion_and_chains_equal_the_nodes() -> None:
    reported = {
        subnet["id"]: subnet["controlKeys"]
        for subnet in result_of("platform.getSubnets")["subnets"]
    }
    owned = {
        id_text(subnet.subnet_id): [
            address_text(88888, address) for address in subnet.owner.addresses
        ]
        for subnet in STATE.subnets.values()
    }
    assert owned | {id_text(PRIMARY_NETWORK): []} == reported
    for request, result in platform("platform.getSubnet"):
        subnet = next(
            subnet for key, subnet in STATE.subnets.items() if id_text(key) == request["subnetID"]
        )
        is_converted = any(parse_id(result["conversionID"]))
        assert (subnet.conversion is not None) == is_converted
        if subnet.conversion is not None:
            assert id_text(subnet.conversion.conversion_id) == result["conversionID"]
            assert id_text(subnet.conversion.manager_chain_id) == result["managerChainID"]
            assert "0x" + subnet.conversion.manager_address.hex() == result["managerAddress"]
    ((_, chains),) = platform("platform.getBlockchains")
    assert {id_text(key): id_text(subnet) for key, subnet in STATE.chains.items()} == {
        blockchain["id"]: blockchain["subnetID"] for blockchain in chains["blockchains"]
    }


def test_assets_equal_the_nodes_descriptions() -> None:
    assets = {id_text(tx.asset.asset_id): tx.asset for tx in replayed().x if tx.asset is not None}
    described = [result for _, result in results("avm.jsonl", "avm.getAssetDescription")]
    assert {asset["assetID"] for asset in described} == set(assets)
    for asset in described:
        asset_creation = assets[asset["assetID"]]
        reported = (asset["name"], asset["symbol"], int(asset["denomination"]))
        assert (asset_creation.name, asset_creation.symbol, asset_creation.denomination) == reported
    assert {asset.name: asset.cap for asset in assets.values()} == {
        "Avalanche": Cap.FIXED,
        "Seal Fixed": Cap.FIXED,
        "Seal Variable": Cap.VARIABLE,
        "Seal Deed": Cap.FIXED,
        "Seal Right": Cap.FIXED,
    }
    assert [asset.name for asset in assets.values() if asset.is_nft] == ["Seal Deed"]


def test_exports_and_imports_of_the_wallet_refer_to_each_other() -> None:
    p, story = replayed().p_txs, {name: parse_id(text).hex() for name, text in WALLET.items()}
    x = {tx.tx.id.hex(): tx for tx in replayed().x}
    c = {tx.tx.id.hex(): tx for tx in replayed().c}
    # The wallet's ids of X and C; those of P by what they do.
    exported_to_x = next(tx for tx in p.values() if tx.destination_chain_id == CHAINS["X"])
    exported_to_c = next(tx for tx in p.values() if tx.destination_chain_id == CHAINS["C"])
    ties: list[tuple[Any, Any, str, str]] = [
        (exported_to_x, x[story["x_import_p"]], "P", "X"),
        (exported_to_c, c[story["c_import_p"]], "P", "C"),
        (
            x[story["x_export_p"]],
            next(tx for tx in p.values() if tx.source_chain_id == CHAINS["X"]),
            "X",
            "P",
        ),
        (
            c[story["c_export_p"]],
            next(tx for tx in p.values() if tx.source_chain_id == CHAINS["C"]),
            "C",
            "P",
        ),
        (x[story["x_export_c"]], c[story["c_import_x"]], "X", "C"),
        (c[story["c_export_x"]], x[story["x_import_c"]], "C", "X"),
    ]
    for exported, imported, source, destination in ties:
        (output,) = [out for out in exported.emitted if out.held_on != CHAINS[source]]
        assert (output.created_on, output.held_on) == (CHAINS[source], CHAINS[destination])
        (spent,) = [spend for spend in imported.consumed if spend.id == output.id]
        assert (spent.created_on, spent.amount, spent.reconstructed) == (
            CHAINS[source],
            output.amount,
            None,
        )
        assert imported.source_chain_id == CHAINS[source]


def test_the_burned_amount_of_a_transaction_is_its_fee() -> None:
    burned = {tx.tx.kind: tx.burned for tx in replayed().p_txs.values() if tx.height}
    assert burned["CreateSubnetTx"] == ((AVAX, 10278),)
    assert all(len(sums) == 1 for sums in burned.values())
    x_burned = [tx.burned for tx in replayed().x[1:]]
    assert x_burned == [((AVAX, 1_000_000),)] * len(x_burned)
    convert = next(tx for tx in replayed().p_txs.values() if tx.tx.kind == "ConvertSubnetToL1Tx")
    assert (
        convert.l1_balance
        == sum(change.balance_change for change in convert.l1)
        == 3 * 10**11 + 2_047
    )


def test_the_balances_of_l1_validators_follow_their_transactions() -> None:
    changes = [(tx.tx.kind, change) for tx in replayed().p_txs.values() for change in tx.l1]
    kinds = [kind for kind, _ in changes]
    assert kinds[:4] == ["ConvertSubnetToL1Tx"] * 4
    assert kinds[4:] == [
        "IncreaseL1ValidatorBalanceTx",
        "SetL1ValidatorWeightTx",
        "RegisterL1ValidatorTx",
        "DisableL1ValidatorTx",
    ]
    removed, disabled = changes[5][1], changes[7][1]
    assert (removed.validator.weight, removed.balance) == (0, 0)
    assert (disabled.validator.weight > 0, disabled.balance) == (True, 0)
    for change, kind in ((removed, "SetL1ValidatorWeightTx"), (disabled, "DisableL1ValidatorTx")):
        paid = next(tx for tx in replayed().p_txs.values() if tx.tx.kind == kind).emitted[-1]
        assert paid.amount == -change.balance_change > 0


def test_every_transaction_has_its_height_and_position() -> None:
    for effects in replayed().p[1:]:
        assert [tx.tx.id for tx in effects.txs] == [tx.id for tx in effects.block.txs]
        assert all(
            (tx.height, tx.outcome) == (effects.block.height, TxOutcome.ACCEPTED)
            for tx in effects.txs
        )
        assert effects.time_s == effects.block.time


def test_chains_indexed_one_after_the_other_end_alike_and_mark_unknown_outputs() -> None:
    apart = replayed(one_chain_after_the_other=True)
    assert apart.outputs.unspent == replayed().outputs.unspent
    assert encode_checkpoint(apart.state) == encode_checkpoint(STATE)
    reconstructed = [
        spend.reconstructed
        for tx in apart.p_txs.values()
        for spend in tx.consumed
        if spend.reconstructed is not None
    ]
    outputs = {out.id: out for tx in apart.x for out in tx.emitted} | {
        out.id: out for tx in apart.c for out in tx.emitted
    }
    assert len(reconstructed) == 2
    for output in reconstructed:
        emitted_output = outputs[output.id]
        assert not output.is_complete
        assert (output.addresses, output.amount, output.asset_id) == (
            emitted_output.addresses,
            emitted_output.amount,
            emitted_output.asset_id,
        )
        assert (output.threshold, output.created_on, output.held_on) == (
            1,
            emitted_output.created_on,
            P_CHAIN,
        )


@pytest.mark.parametrize("stop", range(len(p_blocks()) + 1))
def test_a_checkpoint_at_any_block_leads_to_the_same_state(stop: int) -> None:
    state = beginning().state
    for block in p_blocks()[:stop]:
        apply_p_block(state, block, None)
    state = decode_checkpoint(encode_checkpoint(state), params())
    effects = [apply_p_block(state, block, None) for block in p_blocks()[stop:]]
    assert encode_checkpoint(state) == encode_checkpoint(STATE)
    assert [effect.l1_accrued_fees for effect in effects] == [
        item.l1_accrued_fees for item in replayed().p[stop + 1 :]
    ]


def test_rights_to_mint_and_properties_are_outputs_without_an_amount() -> None:
    amounts: dict[OutputKind, set[int]] = {}
    for tx in replayed().x:
        for out in tx.emitted:
            amounts.setdefault(out.kind, set()).add(out.amount)
    assert amounts.pop(OutputKind.NFT) == {1}
    assert 0 not in amounts.pop(OutputKind.TRANSFER)
    rights = {OutputKind.MINT, OutputKind.NFT_MINT, OutputKind.PROPERTY_MINT, OutputKind.PROPERTY}
    assert amounts == {kind: {0} for kind in rights}


def test_the_outputs_that_a_transaction_spends_are_those_that_it_consumes() -> None:
    replay = replayed()
    on_p: list[Any] = [tx for block in replay.p for tx in moves(block)]
    assert any(not tx.consumed for tx in on_p)
    consuming: list[Any] = [tx for tx in (*on_p, *replay.x, *replay.c) if tx.consumed]
    assert {type(tx.tx.unsigned).__name__ for tx in consuming} >= {"ImportTx", "OperationTx"}
    for tx in consuming:
        assert list(spent_ids(tx.tx.unsigned)) == [spend.id for spend in tx.consumed]
