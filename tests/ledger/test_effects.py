"""What the effects of a block say of subnets, supplies, validators and other chains."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.ledger.made_up_network import (
    AVAX,
    BEGIN_S,
    C_CHAIN,
    NAVAX,
    NETWORK_ID,
    TOKEN,
    X_CHAIN,
    bls_key,
    l1_owner,
    warp,
)
from tests.ledger.model_parts import DAY_S
from tests.ledger.small_chain import ALL_ACTIVE, OTHER_OWNER, OWNER, Chain, output, spending
from tests.ledger.test_l1_balances import L1, PRICE
from warpseal.chains.components import (
    BaseFields,
    BaseTx,
    ExportTx,
    ImportTx,
    Input,
    TransferableInput,
    TransferInput,
)
from warpseal.chains.ids import TxID
from warpseal.chains.p_txs import (
    P_TX,
    AddPermissionlessDelegatorTx,
    AddPermissionlessValidatorTx,
    ConvertSubnetToL1Tx,
    CreateSubnetTx,
    DisableL1ValidatorTx,
    InitialValidator,
    NoSigner,
    RegisterL1ValidatorTx,
    RewardType,
    SetL1ValidatorWeightTx,
    StakingTerms,
    SubnetValidator,
    TransferSubnetOwnershipTx,
    TransformSubnetTx,
)
from warpseal.ledger.effects import (
    L1ValidatorChange,
    SubnetConverted,
    SubnetCreated,
    SubnetOwnerChanged,
    SubnetTransformed,
    SupplyChange,
    TxEffects,
)
from warpseal.ledger.outputs import LedgerError
from warpseal.ledger.p_chain import state_without_genesis
from warpseal.ledger.params import UpgradeTimes
from warpseal.warp.ids import P_CHAIN, PRIMARY_NETWORK, NodeID, SubnetID
from warpseal.warp.l1_messages import L1ValidatorWeight, RegisterL1Validator

AUTH = Input((0,))
ADDRESS = b"\x55" * 20
NODE = NodeID(b"\x77" * 20)
SUBNET_TX = P_TX.build(CreateSubnetTx(spending(0), OWNER))
SUBNET = SubnetID(SUBNET_TX.id)
SUPPLY = 10**12


def transform(coin: int) -> TransformSubnetTx:
    rates, stakes, durations = (10_000, 120_000), (1, 10**12), (1, DAY_S)
    terms = (20_000, 1, 5, 800_000)
    return TransformSubnetTx(
        spending(coin), SUBNET, TOKEN, SUPPLY, 2 * SUPPLY, *rates, *stakes, *durations, *terms, AUTH
    )


def convert(coin: int, balance: int = 0) -> ConvertSubnetToL1Tx:
    random = Random(1)
    owners = l1_owner(random), l1_owner(random)
    validator = InitialValidator(NODE, 5, balance, bls_key(random), *owners)
    return ConvertSubnetToL1Tx(spending(coin), SUBNET, C_CHAIN, ADDRESS, (validator,), AUTH)


def test_a_subnet_is_created_given_away_and_made_elastic() -> None:
    chain = Chain()
    (created,) = chain.accept(SUBNET_TX)
    assert created.subnet == SubnetCreated(SUBNET, OWNER)
    (transferred,) = chain.accept(TransferSubnetOwnershipTx(spending(1), SUBNET, AUTH, OTHER_OWNER))
    assert transferred.subnet == SubnetOwnerChanged(SUBNET, OTHER_OWNER)
    effects = chain.block("BanffStandardBlock", transform(2))
    assert effects.txs[0].subnet == SubnetTransformed(SUBNET, TOKEN)
    assert effects.supplies == (SupplyChange(SUBNET, SUPPLY),)


def test_a_conversion_has_the_manager_of_the_l1_and_its_first_validators() -> None:
    chain = Chain()
    chain.accept(SUBNET_TX)
    conversion = convert(1, 300)
    (effects,) = chain.accept(conversion)
    assert effects.subnet == SubnetConverted(SUBNET, conversion.conversion_id, C_CHAIN, ADDRESS)
    (change,) = effects.l1
    assert (change.balance, change.balance_change, change.is_new) == (300, 300, True)
    assert change.validator.validation_id == conversion.validation_ids[0]


@pytest.mark.parametrize("earlier", [transform, convert])
@pytest.mark.parametrize("later", [transform, convert])
def test_only_a_permissioned_subnet_can_be_made_elastic_or_converted(
    earlier: Any, later: Any
) -> None:
    chain = Chain()
    chain.accept(SUBNET_TX, earlier(1))
    with pytest.raises(LedgerError, match="the subnet is not permissioned any more"):
        chain.accept(later(2))


def test_a_subnet_that_may_be_older_than_the_index_can_be_converted() -> None:
    chain = Chain()
    first = chain.block("BanffStandardBlock").block
    chain.state = state_without_genesis(ALL_ACTIVE, first)
    (effects,) = chain.accept(convert(1))
    assert isinstance(effects.subnet, SubnetConverted)


def test_a_registration_begins_a_validation_and_a_weight_of_zero_ends_it() -> None:
    chain = L1(1000 * PRICE)
    subnet_id = chain.state.l1.by_id[chain.ids[0]].subnet_id
    owners = l1_owner(Random(1)), l1_owner(Random(2))
    request = RegisterL1Validator(subnet_id, NODE, bytes(48), BEGIN_S + 60, *owners, 7)
    message = warp(C_CHAIN, b"", request.encode())
    (began,) = chain.accept(RegisterL1ValidatorTx(spending(2), 0, bytes(96), message))
    validator = chain.state.l1.by_id[request.validation_id]
    assert began.l1 == (L1ValidatorChange(validator, 0, 0, True),)
    removal = L1ValidatorWeight(request.validation_id, 0, 0)
    (ended,) = chain.accept(
        SetL1ValidatorWeightTx(spending(3), warp(C_CHAIN, b"", removal.encode()))
    )
    removed = replace(validator, weight=0, min_nonce=1, end_accumulated_fee=0)
    assert ended.l1 == (L1ValidatorChange(removed, 0, 0),)


def test_a_registration_at_a_subnet_that_is_no_l1_is_an_error() -> None:
    chain = Chain()
    chain.accept(SUBNET_TX)
    owners = l1_owner(Random(1)), l1_owner(Random(2))
    request = RegisterL1Validator(SUBNET, NODE, bytes(48), BEGIN_S + 60, *owners, 7)
    message = warp(C_CHAIN, b"", request.encode())
    with pytest.raises(LedgerError, match=f"subnet {SUBNET.hex()} is no L1"):
        chain.accept(RegisterL1ValidatorTx(spending(1), 0, bytes(96), message))


def test_a_refund_can_be_spent_by_a_later_transaction_of_the_block() -> None:
    chain = L1(1000 * PRICE)
    disable = P_TX.build(DisableL1ValidatorTx(spending(2), chain.ids[0], AUTH))
    refund = TransferableInput(disable.id, 0, AVAX, TransferInput(1000 * PRICE, (0,)))
    base = BaseFields(NETWORK_ID, P_CHAIN, (output(990 * PRICE),), (refund,), b"")
    _, spent = chain.accept(disable, BaseTx(base))
    assert spent.burned == ((AVAX, 10 * PRICE),)


def test_an_import_has_its_source_and_an_export_its_destination() -> None:
    chain = Chain()
    imported = TransferableInput(TxID(b"\x44" * 32), 0, AVAX, TransferInput(7, (0,)))
    export, arrival = chain.accept(
        ExportTx(spending(0), X_CHAIN, (output(5),)), ImportTx(spending(1), C_CHAIN, (imported,))
    )
    assert (export.source_chain_id, export.destination_chain_id) == (None, X_CHAIN)
    assert [(item.amount, item.held_on) for item in export.emitted] == [(5, X_CHAIN)]
    assert (arrival.source_chain_id, arrival.destination_chain_id) == (C_CHAIN, None)


def test_a_decided_proposal_is_executed_before_the_transactions_of_its_block() -> None:
    chain = Chain()
    effects = chain.block("BanffStandardBlock", SUBNET_TX)
    assert effects.executed == effects.txs
    reward = chain.reward(chain.genesis.validators[0].id, commit=True, at_s=2 * DAY_S)
    assert reward.outcome.name == "COMMITTED"
    chain = Chain()
    chain.block("BanffProposalBlock", P_TX.build(reward.tx.unsigned), at_s=2 * DAY_S)
    effects = chain.block("BanffCommitBlock")
    assert effects.executed == (effects.settled,)


class Delegation(Chain):
    """A chain with a validator that takes `shares` of a delegation."""

    def __init__(self, shares: int, cortina_s: int = 0) -> None:
        upgrades = UpgradeTimes(0, cortina_s, 0, 0, 0)
        super().__init__(replace(ALL_ACTIVE, upgrades=upgrades))
        place = SubnetValidator(StakingTerms(NODE, 0, BEGIN_S + DAY_S, NAVAX), PRIMARY_NETWORK)
        stake = (output(NAVAX),)
        owners = OWNER, OTHER_OWNER
        validator = AddPermissionlessValidatorTx(
            spending(0), place, NoSigner(), stake, *owners, shares
        )
        delegator = AddPermissionlessDelegatorTx(spending(1), place, stake, OWNER)
        first = self.block("BanffStandardBlock", validator)
        assert first.supplies == (SupplyChange(PRIMARY_NETWORK, first.supply or 0),)
        self.validator, self.delegator = P_TX.build(validator), P_TX.build(delegator)
        (effects,) = self.accept(self.delegator)
        assert effects.opened is not None
        self.earned = effects.opened.potential_reward or 0

    def end(self, *, commit: bool) -> TxEffects:
        """End the delegation."""
        return self.reward(self.delegator.id, commit=commit, at_s=DAY_S)


def test_before_cortina_the_validators_share_of_a_delegation_is_paid_at_once() -> None:
    chain = Delegation(250_000, cortina_s=BEGIN_S + 9 * DAY_S)
    effects = chain.end(commit=True)
    share = chain.earned - chain.earned * 3 // 4
    assert [(item.amount, item.reward) for item in effects.emitted] == [
        (chain.earned - share, RewardType.DELEGATOR),
        (share, RewardType.VALIDATOR_FEE),
    ]
    closed = effects.closed
    assert closed is not None
    assert (closed.delegator_reward, closed.validator_share) == (chain.earned - share, share)
    assert not closed.is_deferred


@pytest.mark.parametrize("shares", [0, 250_000])
def test_since_cortina_a_share_is_deferred_if_there_is_one(shares: int) -> None:
    chain = Delegation(shares)
    closed = chain.end(commit=True).closed
    assert closed is not None
    assert closed.is_deferred == (shares > 0)
    assert chain.state.delegation_rewards == (
        {chain.validator.id: closed.validator_share} if shares else {}
    )


def test_a_delegation_that_is_not_rewarded_has_no_amounts() -> None:
    chain = Delegation(250_000)
    effects = chain.end(commit=False)
    assert effects.emitted == ()
    assert effects.closed is not None
    assert (effects.closed.delegator_reward, effects.closed.validator_share) == (0, 0)


def test_a_delegation_without_its_validator_is_an_error() -> None:
    chain = Delegation(250_000)
    chain.state.current.remove(chain.state.current.by_tx[chain.validator.id])
    with pytest.raises(LedgerError, match="the validator of a delegation, is no validator"):
        chain.end(commit=True)


def test_a_reward_above_the_supply_is_an_error() -> None:
    chain = Delegation(250_000)
    chain.state.supplies[PRIMARY_NETWORK] = chain.earned - 1
    with pytest.raises(LedgerError, match="a reward is more than the supply"):
        chain.end(commit=False)
