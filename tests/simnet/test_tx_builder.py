"""What the simulation writes are the bytes of real networks; decoders that know nothing of it read
them back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
import zstandard

from tests.simnet.sessions import VECTORS, small_network
from tests.warp import l1_txs
from warpseal import bls
from warpseal.chains.p_blocks import parse_p_block
from warpseal.chains.p_txs import ConvertSubnetToL1Tx, PSignedTx, parse_p_tx
from warpseal.chains.x_txs import parse_x_tx
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, ChainID, ValidationID, cb58_encode
from warpseal.warp.l1_messages import ConversionData, ConversionValidator
from warpseal_simnet import tx_builder
from warpseal_simnet.destination import ReceivedMessage, verify_for_set
from warpseal_simnet.network import SimulatedNetwork
from warpseal_simnet.plan import L1Plan, parse_rule
from warpseal_simnet.tx_builder import Funding, TxDraft, Utxo, Wallet

VALIDATION = ValidationID(
    bytes.fromhex("38e6e9fe31c6d070a8c792dbacf6d0aefb8eac2aded49cc0aa9f422d1fdd9ecd")
)
CREDENTIAL_BYTES = 4 + 4 + 65


def vectors() -> dict[str, bytes]:
    """Return the signed transactions of tx L1's story on network 12345, by kind."""
    listed = json.loads((VECTORS.parent / "p_chain.json").read_text())["transactions"]
    return {
        item["kind"]: bytes.fromhex(item["hex"]) for item in listed if item["network_id"] == 12345
    }


def story_drafts() -> Iterator[TxDraft]:
    conversion = parse_p_tx(vectors()["ConvertSubnetToL1Tx"]).unsigned
    assert isinstance(conversion, ConvertSubnetToL1Tx)
    node = ConversionValidator(conversion.validators[0].node_id, l1_txs.CONVERSION_KEY, 49463)
    data = ConversionData(l1_txs.SUBNET, conversion.manager_chain_id, b"", (node,))
    yield tx_builder.create_subnet()
    yield tx_builder.convert(data, [Funding(l1_txs.CONVERSION_POSSESSION, 1_000_000_000)])
    yield tx_builder.register(1_000_000_000, l1_txs.REGISTERED_POSSESSION, l1_txs.SIGNED_REGISTER)
    yield tx_builder.set_weight(l1_txs.SIGNED_WEIGHT)
    yield tx_builder.increase_balance(VALIDATION, 2)
    yield tx_builder.disable(VALIDATION)


@pytest.mark.parametrize("draft", tuple(story_drafts()), ids=lambda draft: draft.kind)
def test_each_l1_transaction_is_written_as_avalanchego_writes_it(draft: TxDraft) -> None:
    expected = vectors()[draft.kind]
    fields = parse_p_tx(expected).unsigned.base  # type: ignore[union-attr]
    spent, back = fields.inputs[0], fields.outputs[0]
    utxo = Utxo(spent.tx_id, spent.output_index, spent.input.amount)
    burned = utxo.amount_navax - back.output.amount - draft.funded_navax
    encoding = tx_builder.transaction(
        Wallet(12345, P_CHAIN, back.asset_id), utxo, replace(draft, fee_navax=burned)
    )
    assert len(encoding) == len(expected)
    credentials = 1 if draft.authorisation_signatures is None else 2
    end = (
        len(expected)
        - 4
        - CREDENTIAL_BYTES * credentials
        + 65 * (draft.authorisation_signatures == 0)
    )
    assert encoding[:end] == expected[:end]


def recorded_blocks() -> Iterator[bytes]:
    packed = (VECTORS / "p-chain.jsonl.zst").read_bytes()
    for line in zstandard.ZstdDecompressor().decompress(packed, max_output_size=2**24).splitlines():
        entry: dict[str, Any] = json.loads(line)
        if entry["method"] == "platform.getBlock":
            yield bytes.fromhex(entry["result"]["block"][2:])[:-4]


def test_recorded_blocks_are_written_again_from_their_parts() -> None:
    checked = 0
    for raw in recorded_blocks():
        block = parse_p_block(raw)
        if block.kind == "BanffStandardBlock":
            assert block.time is not None
            held = [transaction.raw for transaction in block.txs]
            assert tx_builder.standard_block(block.time, block.parent_id, block.height, held) == raw
            checked += 1
    assert checked == 19


def network_with_every_transaction() -> SimulatedNetwork:
    """Return a network on which every kind of transaction was accepted."""
    l1s = (
        L1Plan(shared=True, spare=1),
        L1Plan(2, manager="C"),
        L1Plan(2, manager="l1-0"),
        L1Plan(2, unconverted=True),
    )
    network = small_network(messages=0, l1s=l1s, epoch_blocks=2)
    chain = network.p_chain
    subnets = [subnet.subnet_id for subnet in network.subnets]
    validation_id = chain.register(subnets[1]).validation_id
    assert validation_id is not None
    chain.set_weight(validation_id, 5)
    chain.increase_balance(validation_id, 7)
    chain.disable(validation_id)
    chain.remove(validation_id)
    chain.convert(subnets[4], weights=(5, 6))
    chain.delegate(network.validators[0].node_id, 25_000_000_000)
    chain.base()
    network.advance(3)
    return network


def test_every_block_is_read_back_and_follows_its_parent() -> None:
    network = network_with_every_transaction()
    chain = network.p_chain
    parent = parse_p_block(chain.block(0))
    assert (parent.kind, parent.height) == ("ApricotCommitBlock", 0)
    for height in range(1, chain.height + 1):
        raw = chain.block(height)
        block = parse_p_block(raw)
        assert (block.kind, block.height, block.parent_id) == (
            "BanffStandardBlock",
            height,
            parent.id,
        )
        assert block.id == sha256(raw).digest()
        assert block.encode() == raw
        assert block.txs
        assert parent.time is None or (block.time or 0) >= parent.time
        parent = block


def transactions_of(network: SimulatedNetwork) -> Iterator[PSignedTx]:
    for height in range(1, network.p_chain.height + 1):
        yield from parse_p_block(network.p_chain.block(height)).txs


def test_every_transaction_spends_what_an_earlier_one_gave_back() -> None:
    network = network_with_every_transaction()
    spendable = {(bytes(32), index) for index in range(64)}
    for tx in transactions_of(network):
        (spent,) = tx.unsigned.base.inputs  # type: ignore[union-attr]
        spendable.remove((spent.tx_id, spent.output_index))
        spendable.add((tx.id, 0))


def test_blocks_contain_the_accepted_transactions() -> None:
    network = network_with_every_transaction()
    read = {tx.id: tx for tx in transactions_of(network)}
    kinds = [tx.kind for tx in network.p_chain.transactions]
    assert {*kinds} <= {*vectors(), "AddPermissionlessDelegatorTx"}
    assert kinds[-8:] == [
        "RegisterL1ValidatorTx",
        "SetL1ValidatorWeightTx",
        "IncreaseL1ValidatorBalanceTx",
        "DisableL1ValidatorTx",
        "SetL1ValidatorWeightTx",
        "ConvertSubnetToL1Tx",
        "AddPermissionlessDelegatorTx",
        "BaseTx",
    ]
    for tx in network.p_chain.transactions:
        assert read[tx.tx_id].kind == tx.kind  # type: ignore[index]
        assert read[tx.tx_id].raw == tx.raw  # type: ignore[index]
        assert tx.text == cb58_encode(tx.tx_id)


def test_subnets_and_chains_are_named_by_the_transactions_that_made_them() -> None:
    network = network_with_every_transaction()
    created = [tx for tx in network.p_chain.transactions if tx.kind == "CreateSubnetTx"]
    assert [tx.tx_id for tx in created] == [subnet.subnet_id for subnet in network.subnets[1:]]
    chains = [tx.tx_id for tx in network.p_chain.transactions if tx.kind == "CreateChainTx"]
    assert chains == [
        chain.chain_id
        for chain in network.state.chains.values()
        if chain.subnet_id != PRIMARY_NETWORK
    ]


def test_conversions_hold_the_conversion_id_and_keys_that_possess() -> None:
    network = network_with_every_transaction()
    for subnet in network.subnets[1:]:
        conversion = parse_p_tx(network.p_chain.conversion_of(subnet.subnet_id).raw).unsigned
        assert isinstance(conversion, ConvertSubnetToL1Tx)
        assert conversion.conversion_id == subnet.conversion_id
        assert conversion.manager_chain_id == subnet.manager_chain_id
        for validator in conversion.validators:
            key = bls.parse_public_key(validator.signer.public_key)
            assert bls.verify_possession(key, validator.signer.public_key, validator.signer.proof)


def test_messages_inside_are_signed_by_the_manager_chains_subnet_at_the_epochs_height() -> None:
    network = network_with_every_transaction()
    state, proposer = network.state, network.state.proposervm[P_CHAIN]
    checked = 0
    for tx in network.p_chain.transactions:
        if tx.kind in ("RegisterL1ValidatorTx", "SetL1ValidatorWeightTx"):
            message: bytes = parse_p_tx(tx.raw).unsigned.message  # type: ignore[union-attr]
            assert tx.height is not None
            source = state.chains[ChainID(message[6:38])].subnet_id
            # The plan's own transactions are signed at its first height.
            height = proposer.epoch_at(max(tx.height - 1, state.heights.first)).p_chain_height
            height = height if state.set_at(source, height) else tx.height - 1
            assert verify_for_set(state, ReceivedMessage.parse(message), source, height).accepted
            checked += 1
    assert checked == 3 + 4


def test_a_plan_with_etna_later_puts_its_conversions_there() -> None:
    network = small_network(messages=0, etna_height=7, height=20)
    subnet_id = network.subnets[1].subnet_id
    assert network.p_chain.conversion_of(subnet_id).height == 7
    assert network.state.set_at(subnet_id, 6) == ()
    assert network.state.set_at(subnet_id, 7) != ()


def test_x_transactions_are_read_back_under_their_ids() -> None:
    network = small_network(messages=0)
    assert len(network.x_transactions) == 4
    for tx_id, raw in network.x_transactions.items():
        tx = parse_x_tx(raw)
        assert (tx.id, tx.kind) == (tx_id, "BaseTx")


def test_equal_plans_make_equal_blocks() -> None:
    tx, same = small_network(messages=0), small_network(messages=0)
    assert tx.p_chain.block(20) == same.p_chain.block(20)


def test_no_block_of_a_plan_is_larger_than_a_networks_blocks() -> None:
    l1s = tuple(L1Plan(count, shared=True) for count in (500, 600, 700, 1201))
    network = small_network(validators=1201, messages=0, l1s=l1s)
    chain = network.p_chain
    heights = [chain.conversion_of(subnet.subnet_id).height for subnet in network.subnets[1:4]]
    assert heights == [1, 1, 2]
    assert max(len(chain.block(height)) for height in range(21)) < 256 * 1024
    with pytest.raises(LookupError):
        chain.conversion_of(network.subnets[4].subnet_id)
    assert network.subnets[4].conversion_id is not None


def test_an_l1_without_validators_keeps_its_history() -> None:
    network = small_network(messages=0, l1s=(L1Plan(3),), rules=(parse_rule("l1-0/all:joins=25"),))
    assert network.state.current_set(network.subnets[1].subnet_id) == ()
    kinds = {
        tx.kind for height in range(21) for tx in parse_p_block(network.p_chain.block(height)).txs
    }
    assert {"ConvertSubnetToL1Tx", "SetL1ValidatorWeightTx"} <= kinds
