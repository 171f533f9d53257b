"""Signed transactions of every type and mainnet blocks: names, ids, fields, and the same bytes
again.
"""

from __future__ import annotations

import pytest

from tests.chains.p_vectors import BLOCKS, TRANSACTIONS, Vector, transaction
from warpseal.chains.components import LockIn, LockOut
from warpseal.chains.p_blocks import parse_p_block
from warpseal.chains.p_txs import (
    P_TX,
    AddAutoRenewedValidatorTx,
    AddDelegatorTx,
    AddPermissionlessValidatorTx,
    AddValidatorTx,
    AdvanceTimeTx,
    ConvertSubnetToL1Tx,
    CreateChainTx,
    NoSigner,
    ProofOfPossession,
    RegisterL1ValidatorTx,
    RewardAutoRenewedValidatorTx,
    SetL1ValidatorWeightTx,
    TransformSubnetTx,
    api_type,
    parse_p_tx,
)
from warpseal.warp.ids import SubnetID, id_text, node_id_text
from warpseal.warp.l1_messages import (
    SubnetToL1Conversion,
    bootstrap_validation_id,
    build_p_chain_message,
)


@pytest.mark.parametrize("vector", TRANSACTIONS, ids=repr)
def test_a_transaction_round_trips_with_its_type_and_id(vector: Vector) -> None:
    tx = parse_p_tx(vector.raw)
    assert (tx.kind, id_text(tx.id)) == (vector.fields["kind"], vector.fields["id"])
    assert tx.encode() == tx.raw == vector.raw
    assert P_TX.build(tx.unsigned, tx.credentials) == tx


@pytest.mark.parametrize("vector", TRANSACTIONS, ids=repr)
def test_signatures_are_over_the_bytes_before_the_credentials(vector: Vector) -> None:
    tx = parse_p_tx(vector.raw)
    signed = tx.encode_unsigned()
    assert vector.raw.startswith(signed)
    assert vector.raw[len(signed) : len(signed) + 4] == len(tx.credentials).to_bytes(4, "big")


@pytest.mark.parametrize("vector", TRANSACTIONS, ids=repr)
def test_a_transaction_names_its_network(vector: Vector) -> None:
    base = getattr(parse_p_tx(vector.raw).unsigned, "base", None)
    assert (base.network_id if base else None) == vector.fields["network_id"]


def test_there_is_a_vector_for_every_type() -> None:
    assert {parse_p_tx(vector.raw).type_id for vector in TRANSACTIONS} == set(P_TX.unsigned.members)


@pytest.mark.parametrize("vector", TRANSACTIONS, ids=repr)
def test_the_data_api_names_all_transaction_types_except_helicon_ones(vector: Vector) -> None:
    tx = parse_p_tx(vector.raw)
    assert api_type(tx) == ("UNKNOWN" if "AutoRenewed" in tx.kind else tx.kind)


@pytest.mark.parametrize("vector", BLOCKS, ids=repr)
def test_a_mainnet_block_round_trips(vector: Vector) -> None:
    block, expected = parse_p_block(vector.raw), vector.fields
    assert (block.kind, block.height, block.time) == (
        expected["kind"],
        expected["height"],
        expected["time"],
    )
    assert (id_text(block.id), id_text(block.parent_id)) == (expected["id"], expected["parent_id"])
    assert [{"kind": tx.kind, "id": id_text(tx.id)} for tx in block.txs] == expected["txs"]
    assert block.encode() == vector.raw


def test_locked_funds_are_staked_as_locked_outputs() -> None:
    tx = parse_p_tx(transaction("AddValidatorTx")).unsigned
    assert isinstance(tx, AddValidatorTx)
    spent, staked = tx.base.inputs[0].input, tx.stake[0].output
    assert isinstance(spent, LockIn)
    assert isinstance(staked, LockOut)
    assert spent.locktime == staked.locktime == 0x61340880
    assert spent.amount == staked.amount == tx.validator.weight == 2_000_000_000_000
    assert tx.delegation_shares == 40_000
    assert staked.owners == tx.rewards_owner


def test_a_primary_network_validator_has_a_key_and_a_subnets_has_none() -> None:
    signers = []
    for vector in TRANSACTIONS:
        tx = parse_p_tx(vector.raw).unsigned
        if isinstance(tx, AddPermissionlessValidatorTx):
            signers.append((any(tx.validator.subnet_id), type(tx.signer)))
    assert signers == [(False, ProofOfPossession), (True, NoSigner)]


def test_the_fields_of_rare_types_are_parsed() -> None:
    time = parse_p_tx(transaction("AdvanceTimeTx")).unsigned
    chain = parse_p_tx(transaction("CreateChainTx")).unsigned
    transform = parse_p_tx(transaction("TransformSubnetTx")).unsigned
    renewed = parse_p_tx(transaction("AddAutoRenewedValidatorTx")).unsigned
    reward = parse_p_tx(transaction("RewardAutoRenewedValidatorTx")).unsigned
    assert time == AdvanceTimeTx(0x66A56FE7)
    assert isinstance(chain, CreateChainTx)
    assert (chain.chain_name, chain.vm_id, chain.fx_ids) == (
        "let there",
        b"xsvm".ljust(32, b"\x00"),
        (),
    )
    assert chain.genesis.endswith(b"\xff" * 8)
    assert isinstance(transform, TransformSubnetTx)
    assert (transform.initial_supply, transform.maximum_supply) == (24_731, 49_463)
    assert (transform.min_stake_duration_s, transform.max_stake_duration_s) == (
        1_209_600,
        2_073_600,
    )
    assert (transform.max_validator_weight_factor, transform.uptime_requirement) == (100, 1)
    assert isinstance(renewed, AddAutoRenewedValidatorTx)
    assert (renewed.delegation_shares, renewed.auto_compound_reward_shares, renewed.period_s) == (
        10_000,
        500_000,
        604_800,
    )
    assert isinstance(reward, RewardAutoRenewedValidatorTx)
    assert reward.end_s == 0x6683FE80


def test_the_transactions_of_one_l1_refer_to_each_other() -> None:
    convert = parse_p_tx(transaction("ConvertSubnetToL1Tx")).unsigned
    register = parse_p_tx(transaction("RegisterL1ValidatorTx")).unsigned
    change = parse_p_tx(transaction("SetL1ValidatorWeightTx")).unsigned
    assert isinstance(convert, ConvertSubnetToL1Tx)
    assert isinstance(register, RegisterL1ValidatorTx)
    assert isinstance(change, SetL1ValidatorWeightTx)
    assert id_text(convert.subnet_id) == "2DeHa7Qb6sufPkmQcFWG2uCd4pBPv9WB6dkzroiMQhd1NSRtof"
    assert id_text(convert.conversion_id) == "2rqYPcwauUCTf9kh5K8md3oLxcBMN1J6PiW8RcnnbZguk2pFHz"
    assert [id_text(validation) for validation in convert.validation_ids] == [
        "9FAftNgNBrzHUMMApsSyV6RcFiL9UmCbvsCu28xdLV2mQ7CMo"
    ]
    attested = build_p_chain_message(12345, SubnetToL1Conversion(convert.conversion_id).encode())
    assert attested.id.hex() == "610ea576429060e17e4e8d1d365a50ce3bbbfca43ea794172d358307a44abeb5"
    assert (convert.validators[0].weight, convert.validators[0].balance) == (49_463, 1_000_000_000)
    registration = register.registration()
    assert (
        id_text(registration.validation_id) == "S4V9xkctnx3zmGdB8tXy6scsgmxr51w8NTar9WdAw26PWwXiQ"
    )
    assert register.signed_message().unsigned.id.hex().startswith("56bb90ae3574dbca")
    assert (registration.expiry, registration.weight, register.balance) == (
        1_728_425_768,
        1,
        1_000_000_000,
    )
    weight_change = change.change()
    assert (weight_change.validation_id, weight_change.nonce, weight_change.weight) == (
        registration.validation_id,
        1,
        5,
    )
    assert change.signed_message().unsigned.id.hex().startswith("2f8dcb9234fabd6a")


@pytest.mark.parametrize(
    ("index", "validation_id"),
    [
        (0, "2AutJAAwyD6Xs9eXhGQRmatvSkzaSRG5G4uk23vMVQ8M7rmmq7"),
        (1, "Nm8aMLJYHTxriMTDjcoyYmzBnfZgcjSABRmLNW7hVEFAcEVjF"),
        (5, "iko6bbk8Qk7SiPFuzC87dqCVb7W5eiUP7r9aS7UaUPqGXRBT9"),
    ],
)
def test_an_initial_validation_id_follows_from_subnet_and_index(
    index: int, validation_id: str
) -> None:
    subnet = SubnetID(
        bytes.fromhex("9fc4f2405328995ed8bf8879cf83459efe1402691368e9ff7e310a5bd1918874")
    )
    assert id_text(bootstrap_validation_id(subnet, index)) == validation_id


def test_the_delegator_of_a_mainnet_block_delegates_what_it_stakes() -> None:
    tx = parse_p_block(BLOCKS[0].raw).txs[0].unsigned
    assert isinstance(tx, AddDelegatorTx)
    assert node_id_text(tx.validator.node_id) == "NodeID-9bU9jwHLH6KxcTu8pBbqJQqkHYR4woY7L"
    assert tx.validator.weight == tx.stake[0].output.amount == 390_539_510_360
    assert (tx.validator.start_s, tx.validator.end_s) == (1_679_479_734, 1_680_689_334)
