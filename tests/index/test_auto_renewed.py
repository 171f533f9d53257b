"""The rewards of an auto-renewed validator in the index: those of ended cycles that it gets when it
leaves count.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.ledger.made_up_network import NAVAX
from tests.ledger.test_auto_renewal import CYCLE_S, JOINING, NODE, Renewing
from warpseal.chains.p_txs import RewardType
from warpseal.index.stakings import Staking, Stakings, ids_of
from warpseal.ledger.effects import TxEffects
from warpseal.warp.ids import PRIMARY_NETWORK


class NoRows:
    """A database without open stakings."""

    def fetch(self, text: str) -> list[Any]:
        return []


def staking_of(joined: TxEffects) -> tuple[Stakings, Staking]:
    """Return the staking of a validator that has joined."""
    assert joined.opened is not None
    stakings = Stakings(cast(Any, NoRows()))
    names = [*ids_of(joined.opened), NODE, PRIMARY_NETWORK]
    ids = SimpleNamespace(keys={name: key for key, name in enumerate(dict.fromkeys(names), 1)})
    stakings.begin(cast(Any, ids), joined.opened, 1, 0, joined.opened.start_s)
    staking = stakings.find(JOINING.id)
    assert staking is not None
    return stakings, staking


def renew(stakings: Stakings, effects: TxEffects) -> int:
    """Apply a cycle's end and return what it paid to the validator."""
    assert effects.renewed is not None
    paid = sum(out.amount for out in effects.emitted if out.reward is RewardType.VALIDATOR)
    stakings.renew(effects.renewed, paid, 0)
    return paid


def test_rewards_that_became_weight_stay_among_those_that_the_validator_may_get() -> None:
    chain = Renewing()
    stakings, staking = staking_of(chain.joined)
    kept = paid = 0
    for cycle in (1, 2):
        first = staking.potential
        assert first is not None
        now_paid = renew(stakings, chain.end(cycle, commit=True))
        paid, kept = paid + now_paid, kept + first - now_paid
    assert (staking.earned, staking.kept, staking.kept_fees, staking.fees_due) == (paid, kept, 0, 0)
    # When it leaves, all that it earned was paid, in each cycle or now.
    potential = staking.potential
    assert potential is not None
    closed = chain.end(3, commit=False).closed
    assert closed is not None
    assert closed.validation_reward == kept
    stakings.close(closed, 9)
    assert staking.earned == paid + kept


def test_fees_of_delegations_that_became_weight_stay_among_those_that_the_validator_may_get() -> (
    None
):
    chain = Renewing()
    stakings, staking = staking_of(chain.joined)
    delegation = chain.delegate(40_000 * NAVAX, CYCLE_S)
    chain.reward(delegation.tx.id, commit=True, at_s=CYCLE_S)
    effects = chain.end(1, commit=True)
    assert effects.renewed is not None
    assert effects.renewed.kept_delegation > 0
    renew(stakings, effects)
    assert staking.kept_fees == effects.renewed.kept_delegation
