"""A block that contradicts the state is an error with place and reason, and ends the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.chains.p_vectors import TRANSACTIONS
from tests.ledger.made_up_network import (
    AVAX,
    BEGIN_S,
    C_CHAIN,
    CHAIN_TXS,
    NAVAX,
    PARAMS,
    TOKEN,
    X_CHAIN,
    bls_key,
    genesis,
    l1_owner,
    warp,
)
from tests.ledger.model_parts import DAY_S
from tests.ledger.small_chain import COIN, OTHER_OWNER, OWNER, Chain, output, spending
from warpseal.chains.components import BaseTx, ImportTx, Input, TransferableInput, TransferInput
from warpseal.chains.ids import TxID
from warpseal.chains.p_txs import (
    P_TX,
    AddAutoRenewedValidatorTx,
    AddPermissionlessDelegatorTx,
    AddPermissionlessValidatorTx,
    AdvanceTimeTx,
    ConvertSubnetToL1Tx,
    CreateChainTx,
    CreateSubnetTx,
    DisableL1ValidatorTx,
    IncreaseL1ValidatorBalanceTx,
    InitialValidator,
    NoSigner,
    PSignedTx,
    RegisterL1ValidatorTx,
    RemoveSubnetValidatorTx,
    RewardValidatorTx,
    SetL1ValidatorWeightTx,
    StakingTerms,
    SubnetValidator,
    TransferSubnetOwnershipTx,
    parse_p_tx,
)
from warpseal.ledger.checkpoint import UnusableCheckpoint, encode_checkpoint
from warpseal.ledger.outputs import LedgerError
from warpseal.ledger.p_chain import apply_p_block, state_from_genesis
from warpseal.warp.ids import PRIMARY_NETWORK, NodeID, SubnetID, ValidationID
from warpseal.warp.l1_messages import L1ValidatorWeight

NODE = NodeID(b"\x33" * 20)
UNKNOWN_ID = b"\x44" * 32
AUTH = Input((0,))


def validator(
    node: NodeID, subnet: SubnetID = PRIMARY_NETWORK, coin: int = 0, shares: int = 20_000
) -> AddPermissionlessValidatorTx:
    """Return the staking of a coin."""
    placed = SubnetValidator(StakingTerms(node, 0, BEGIN_S + DAY_S, 5), subnet)
    return AddPermissionlessValidatorTx(
        spending(coin), placed, NoSigner(), (output(5),), OWNER, OWNER, shares
    )


def weight_message(validation: bytes, nonce: int, weight: int) -> bytes:
    """Return what a manager would send."""
    return warp(C_CHAIN, b"", L1ValidatorWeight(ValidationID(validation), nonce, weight).encode())


FIRST = Chain().genesis.validators
WITHOUT_STAKE = P_TX.build(replace(FIRST[0].unsigned, stake=()))
KNOWN_NODE: NodeID = FIRST[0].unsigned.validator.node_id  # type: ignore[union-attr]
IMPORTED = TransferableInput(TxID(UNKNOWN_ID), 0, AVAX, TransferInput(7, (0,)))
EMPTY = spending(0).__class__(88, spending(0).blockchain_id, (), (), b"")

CASES: dict[str, tuple[Any, str]] = {
    "input not there": (BaseTx(spending(0, tx_id=TxID(UNKNOWN_ID))), "is not there"),
    "input of another asset": (BaseTx(spending(6)), "differs from the output"),
    "more out than in": (
        BaseTx(spending(0, output(COIN + 1))),
        "the outputs are more than the inputs",
    ),
    "another asset out": (
        BaseTx(spending(0, output(1, TOKEN))),
        "the outputs are more than the inputs",
    ),
    "imported twice": (ImportTx(EMPTY, X_CHAIN, (IMPORTED, IMPORTED)), "is spent already"),
    "time within a standard block": (AdvanceTimeTx(BEGIN_S + 1), "only a proposal"),
    "reward within a standard block": (RewardValidatorTx(FIRST[0].id), "only a proposal"),
    "chain of no subnet": (
        CreateChainTx(spending(0), SubnetID(UNKNOWN_ID), "", UNKNOWN_ID, (), b"", AUTH),
        "no subnet",
    ),
    "owner of no subnet": (
        TransferSubnetOwnershipTx(spending(0), SubnetID(UNKNOWN_ID), AUTH, OTHER_OWNER),
        "no subnet",
    ),
    "a validator twice": (validator(KNOWN_NODE), "validates already"),
    "a subnet without rewards": (validator(NODE, SubnetID(UNKNOWN_ID)), "has no rewards"),
    "more than all shares": (validator(NODE, shares=1_000_001), "delegation shares of 1000001"),
    "nothing staked": (
        AddPermissionlessDelegatorTx(spending(0), validator(KNOWN_NODE).validator, (), OWNER),
        "nothing is staked",
    ),
    "nothing staked for cycles": (
        AddAutoRenewedValidatorTx(
            spending(0), NODE, NoSigner(), (), OWNER, OWNER, OWNER, 0, 0, DAY_S
        ),
        "nothing is staked",
    ),
    "a staking that ends when it begins": (
        AddPermissionlessDelegatorTx(
            spending(0),
            SubnetValidator(StakingTerms(KNOWN_NODE, 0, BEGIN_S, 5), PRIMARY_NETWORK),
            (output(5),),
            OWNER,
        ),
        f"from {BEGIN_S} to {BEGIN_S}",
    ),
    "removing an unknown validator": (
        RemoveSubnetValidatorTx(spending(0), NODE, SubnetID(UNKNOWN_ID), AUTH),
        "no validator",
    ),
    "removing a permissionless validator": (
        RemoveSubnetValidatorTx(spending(0), KNOWN_NODE, PRIMARY_NETWORK, AUTH),
        "was not added by the owner",
    ),
    "an L1 of no subnet": (
        ConvertSubnetToL1Tx(spending(0), SubnetID(UNKNOWN_ID), C_CHAIN, b"", (), AUTH),
        "no subnet",
    ),
    "funding an unknown validation": (
        IncreaseL1ValidatorBalanceTx(spending(0), ValidationID(UNKNOWN_ID), 5),
        "no validation",
    ),
    "disabling an unknown validation": (
        DisableL1ValidatorTx(spending(0), ValidationID(UNKNOWN_ID), AUTH),
        "no validation",
    ),
    "weighing an unknown validation": (
        SetL1ValidatorWeightTx(spending(0), weight_message(UNKNOWN_ID, 0, 1)),
        "no validation",
    ),
    "a malformed message": (
        RegisterL1ValidatorTx(spending(0), 5, bytes(96), b"\x00\x01"),
        "the manager's message",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_invalid_transaction_is_an_error_that_names_it(case: str) -> None:
    unsigned, reason = CASES[case]
    chain = Chain()
    with pytest.raises(LedgerError, match=reason) as error:
        chain.accept(unsigned)
    assert (error.value.height, error.value.tx_id) in {(1, P_TX.build(unsigned).id), (1, None)}


@pytest.mark.parametrize(
    ("validators", "chains", "reason"),
    [
        (CHAIN_TXS[:1], (), "a CreateChainTx among the first validators"),
        ((WITHOUT_STAKE,), (), "a AddValidatorTx among the first validators"),
        (FIRST[:1] * 2, (), "the same staking twice"),
        ((), FIRST[:1], "a AddValidatorTx among the first chains"),
    ],
)
def test_a_genesis_that_no_node_accepts_is_an_error(
    validators: tuple[PSignedTx, ...], chains: tuple[PSignedTx, ...], reason: str
) -> None:
    changed = dataclasses.replace(genesis(1), validators=validators, chains=chains)
    with pytest.raises(LedgerError, match=reason) as error:
        state_from_genesis(changed, PARAMS)
    assert error.value.height == 0


def test_each_type_of_transaction_has_a_rule() -> None:
    for vector in TRANSACTIONS:
        # Most of them spend outputs that are not there.
        with suppress(LedgerError):
            Chain().accept(parse_p_tx(vector.raw))


def test_an_output_cannot_be_spent_twice_in_a_block_nor_in_the_next() -> None:
    first, second = BaseTx(spending(0, output(1))), BaseTx(spending(0, output(2)))
    with pytest.raises(LedgerError, match="is spent already"):
        Chain().accept(first, second)
    chain = Chain()
    chain.accept(first)
    with pytest.raises(LedgerError, match="is not there"):
        chain.accept(second)


def test_later_transactions_of_a_block_spend_outputs_of_earlier_ones() -> None:
    first = P_TX.build(BaseTx(spending(0, output(COIN))))
    chain = Chain()
    _, spent = chain.accept(first, BaseTx(spending(0, output(COIN - 5), tx_id=first.id)))
    assert spent.burned == ((AVAX, 5),)
    assert [
        out.amount for out in chain.outputs.held_by(OWNER.addresses[0], spent.emitted[0].held_on)
    ][-1] > 0


def test_staked_outputs_cannot_be_spent() -> None:
    staking = P_TX.build(validator(NODE))
    chain = Chain()
    chain.accept(staking)
    with pytest.raises(LedgerError, match="is not there"):
        chain.accept(BaseTx(spending(0, tx_id=staking.id)))


def option(kind: str) -> Callable[[Chain], object]:
    """Return what puts an option block on a chain."""
    return lambda chain: chain.block(kind)


@pytest.mark.parametrize(
    "kind", ["BanffCommitBlock", "BanffAbortBlock", "ApricotCommitBlock", "ApricotAbortBlock"]
)
def test_a_decision_without_a_proposal_is_an_error(kind: str) -> None:
    with pytest.raises(LedgerError, match="nothing was proposed"):
        Chain().block(kind)


def test_a_block_before_the_decision_is_an_error() -> None:
    chain = Chain()
    chain.block("BanffProposalBlock", RewardValidatorTx(FIRST[0].id), at_s=2 * DAY_S)
    with pytest.raises(LedgerError, match="neither committed nor aborted"):
        chain.accept()


def test_a_decision_at_another_time_is_an_error() -> None:
    chain = Chain()
    chain.block("BanffProposalBlock", RewardValidatorTx(FIRST[0].id), at_s=2 * DAY_S)
    with pytest.raises(LedgerError, match="that of the proposal"):
        chain.block("BanffCommitBlock", at_s=3 * DAY_S)


def test_a_block_before_chain_time_is_an_error() -> None:
    chain = Chain()
    chain.accept(at_s=10)
    with pytest.raises(LedgerError, match="time goes back"):
        chain.accept(at_s=9)


def test_a_proposal_of_an_undecidable_type_is_an_error() -> None:
    with pytest.raises(LedgerError, match="cannot be proposed"):
        Chain().block("BanffProposalBlock", CreateSubnetTx(spending(0), OWNER))


@pytest.mark.parametrize(
    ("staking", "at_s", "reason"),
    [
        (FIRST[1].id, 2 * DAY_S, "not the next to end"),
        (TxID(UNKNOWN_ID), 2 * DAY_S, "not the next to end"),
        (FIRST[0].id, DAY_S, "not at"),
    ],
)
def test_a_reward_out_of_turn_is_an_error(staking: TxID, at_s: int, reason: str) -> None:
    with pytest.raises(LedgerError, match=reason):
        Chain().reward(staking, commit=True, at_s=at_s)


def test_a_reused_nonce_is_an_error() -> None:
    chain = Chain()
    subnet = P_TX.build(CreateSubnetTx(spending(0), OWNER))
    chain.accept(subnet)
    random = Random(1)
    first = InitialValidator(NODE, 5, NAVAX, bls_key(random), l1_owner(random), l1_owner(random))
    convert = ConvertSubnetToL1Tx(spending(1), SubnetID(subnet.id), C_CHAIN, b"", (first,), AUTH)
    chain.accept(convert)
    (validation,) = convert.validation_ids
    chain.accept(SetL1ValidatorWeightTx(spending(2), weight_message(validation, 7, 9)))
    with pytest.raises(LedgerError, match="nonce 7 is below 8"):
        chain.accept(SetL1ValidatorWeightTx(spending(3), weight_message(validation, 7, 9)))
    again = ConvertSubnetToL1Tx(spending(4), SubnetID(subnet.id), C_CHAIN, b"", (first,), AUTH)
    with pytest.raises(LedgerError, match="left the state invalid"):
        chain.accept(again)


def test_an_invalid_state_accepts_no_block_and_gives_no_checkpoint() -> None:
    chain = Chain()
    with pytest.raises(LedgerError):
        chain.accept(BaseTx(spending(0, output(COIN + 1))))
    with pytest.raises(LedgerError, match="left the state invalid"):
        apply_p_block(chain.state, chain.genesis.block, chain.outputs)
    with pytest.raises(UnusableCheckpoint):
        encode_checkpoint(chain.state)
