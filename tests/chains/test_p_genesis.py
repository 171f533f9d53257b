"""The genesis of mainnet, of Fuji and of the recorded network: what everybody asserts of them
follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.chains.p_vectors import genesis_bytes
from warpseal.chains.codec import MalformedChainBytes
from warpseal.chains.components import TransferableOutput, TransferOutput
from warpseal.chains.p_blocks import parse_p_genesis
from warpseal.chains.p_txs import (
    AddPermissionlessValidatorTx,
    AddValidatorTx,
    CreateChainTx,
    PSignedTx,
)
from warpseal.chains.x_blocks import parse_x_genesis
from warpseal.warp.ids import PRIMARY_NETWORK, id_text

VM_NAMES = [b"avm", b"evm"]


@dataclass(frozen=True, slots=True)
class GenesisFacts:
    """What is known of a genesis without having read it."""

    network: str
    id: str
    block_0: str
    x_chain: str
    c_chain: str
    initial_supply: int
    utxos: int


MAINNET = GenesisFacts(
    "mainnet",
    "UUvXi6j7QhVvgpbKM89MP5HdrxKm9CaJeHc187TsDNf8nZdLk",
    "2FUFPVPxbTpKNn39moGSzsmGroYES4NZRdw3mJgNvMkMiMHJ9e",
    "2oYMBNV4eNHyqk2fjjV5nVQLDbtmNJzq5s3qs3Lo6ftnC6FByM",
    "2q9e4r6Mu3U68nU1fYjgbR6JvwrRx36CohpAX5UQxse55x1Q5",
    359_999_999_999_990_210,
    15_344,
)
FUJI = GenesisFacts(
    "fuji",
    "MSj6o9TpezwsQx4Tv7SHqpVvCbJ8of1ikjsqPZ1bKRjc9zBy3",
    "99BWrAqUMvTp9nXKXyjPsCqjGwDqVFqssTRQbu58af57Cf9VG",
    "2JVSBoinj9C2J33VntvzYtVJNZdN2NKiwwKjcumHUWEb5DbBrm",
    "yH8D7ThNJkxmtkuv2jgBa4P1Rn3Qpr4pPr7QYNfcdoS6k6HWp",
    360_000_000_000_000_000,
    0,
)
LOCALNET = GenesisFacts(
    "localnet",
    "DDD1R44yxKNsTofGQrag1emS3E3mZw5NzV8s1Kazo5cYVvbEx",
    "ho828Ng8DnZVgCYnj5quUGFHhSihUpDSUiJ6vKohW39PEuH9J",
    "g7dijKMsQFeQu2cEHwQC3rRxBQHLeCnokt9CWko3RbcrV5252",
    "Z3JEMq6QeeFWrpb2AdkQCj92FrArAqN8Y9bTyWinz4VsD8AZ7",
    109_000_000_000_000_000,
    4,
)
ASSETS = {
    "mainnet": "FvwEAhmxKfeiG8SnEvq42hc6whRyY3EFYAvebMqDNDGCgxN5Z",
    "fuji": "U8iRqJoiJm8xZHAacmvYyZVwqQx6uDNtQeP3CQ6fcgQk3JqnK",
    "localnet": "2tTUKaXychsYLvFsctAW9ACx8U7oGL5R8qpGAhtgi9P9Ycgri8",
}
ALL = pytest.mark.parametrize("facts", [MAINNET, FUJI, LOCALNET], ids=lambda facts: facts.network)


@ALL
def test_a_genesis_round_trips(facts: GenesisFacts) -> None:
    raw = genesis_bytes(facts.network)
    genesis = parse_p_genesis(raw)
    assert id_text(genesis.id) == facts.id
    assert genesis.encode() == raw


@ALL
def test_block_0_follows_from_the_genesis(facts: GenesisFacts) -> None:
    genesis = parse_p_genesis(genesis_bytes(facts.network))
    assert id_text(genesis.block.id) == facts.block_0
    assert (genesis.block.kind, genesis.block.height, genesis.block.parent_id) == (
        "ApricotCommitBlock",
        0,
        genesis.id,
    )


@ALL
def test_chain_ids_are_the_ids_of_the_creating_transactions(facts: GenesisFacts) -> None:
    x_chain, c_chain = parse_p_genesis(genesis_bytes(facts.network)).chains
    assert [id_text(x_chain.id), id_text(c_chain.id)] == [facts.x_chain, facts.c_chain]
    created = [tx.unsigned for tx in (x_chain, c_chain)]
    assert all(isinstance(tx, CreateChainTx) and tx.subnet_id == PRIMARY_NETWORK for tx in created)
    assert [tx.vm_id.rstrip(b"\x00") for tx in created if isinstance(tx, CreateChainTx)] == VM_NAMES


@ALL
def test_the_initial_supply_and_outputs_are_parsed(facts: GenesisFacts) -> None:
    genesis = parse_p_genesis(genesis_bytes(facts.network))
    assert genesis.initial_supply == facts.initial_supply
    assert len(genesis.utxos) == facts.utxos
    assert [entry.utxo.output_index for entry in genesis.utxos] == list(range(facts.utxos))
    assert not any(any(entry.utxo.tx_id) for entry in genesis.utxos)


@ALL
def test_all_outputs_and_stakes_of_a_genesis_are_of_the_staking_asset(facts: GenesisFacts) -> None:
    genesis = parse_p_genesis(genesis_bytes(facts.network))
    outputs = {entry.utxo.asset_id for entry in genesis.utxos}
    staked = {output.asset_id for tx in genesis.validators for output in _stake(tx)}
    assert {id_text(asset) for asset in outputs | staked} == {ASSETS[facts.network]}


@ALL
def test_the_initial_supply_is_the_sum_of_p_chain_validators_and_x_chain_outputs(
    facts: GenesisFacts,
) -> None:
    genesis = parse_p_genesis(genesis_bytes(facts.network))
    outputs = sum(entry.utxo.output.amount for entry in genesis.utxos)
    staked = sum(output.output.amount for tx in genesis.validators for output in _stake(tx))
    x_chain = genesis.chains[0].unsigned
    assert isinstance(x_chain, CreateChainTx)
    asset = parse_x_genesis(x_chain.genesis).assets[0]
    on_x = sum(
        output.amount
        for output in asset.creation.states[0].outputs
        if isinstance(output, TransferOutput)
    )
    assert outputs + staked + on_x == genesis.initial_supply
    assert id_text(asset.asset_id) == ASSETS[facts.network]


def test_the_message_of_a_genesis_is_parsed() -> None:
    assert parse_p_genesis(genesis_bytes("fuji")).message == "hi mom"
    assert parse_p_genesis(genesis_bytes("mainnet")).timestamp == 1_599_696_000


def test_a_truncated_genesis_is_refused_at_its_end() -> None:
    raw = genesis_bytes("localnet")
    with pytest.raises(MalformedChainBytes, match="needs"):
        parse_p_genesis(raw[:-1])
    with pytest.raises(MalformedChainBytes, match="1 bytes left over") as refusal:
        parse_p_genesis(raw + b"\x00")
    assert refusal.value.offset == len(raw)


def _stake(tx: PSignedTx) -> tuple[TransferableOutput, ...]:
    assert isinstance(tx.unsigned, AddValidatorTx | AddPermissionlessValidatorTx)
    return tx.unsigned.stake
