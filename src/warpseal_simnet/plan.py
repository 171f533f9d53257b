"""The plan of a simulated network: validators, weights, L1s and misbehaviour."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from warpseal_simnet.behaviours import Behaviour, InvalidBehaviour, parse_behaviour
from warpseal_simnet.fees import FeeConfig
from warpseal_simnet.node_behaviours import NodeRule
from warpseal_simnet.settings import NodeSettings
from warpseal_simnet.warp_config import DEFAULT_RULE, WarpRule

DEFAULT_NETWORK_ID: Final = 88888
# 2,000 AVAX in nAVAX, the least stake of a primary validator.
DEFAULT_STAKE: Final = 2_000_000_000_000
DEFAULT_L1_WEIGHT: Final = 1_000
PRIMARY: Final = "primary"
# Bounds of nodes for the quorum of a chain, percent.
MIN_QUORUM: Final = 33
MAX_QUORUM: Final = 100
_L1_WORDS: Final = (
    *(
        "validators",
        "weights",
        "shared",
        "permissioned",
        "chains",
        "unconverted",
        "manager",
        "spare",
    ),
    *("idle", "quorum", "primary-signers", "no-warp", "simplex"),
)


class InvalidPlan(ValueError):
    """The plan cannot be built; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The behaviour of some validators.

    scope: None for all validators, else `primary` or `l1-K`.

    Either share (0..1 of the scope, chosen by the seed) or places (indices in the scope, from 0) is
    given.
    """

    behaviour: Behaviour
    scope: str | None = None
    share: float | None = None
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class L1Plan:
    """An L1.

    validators: the number of validators; None for as many as the Primary Network has.
    shared: the first validators of the primary network also validate this L1, instead of nodes of
        its own.
    permissioned: the subnet is not converted to an L1. Its validators sign with their primary
        network keys, so it is shared.
    unconverted: the subnet has no validators, and its nodes track it, so that it can be converted
        while the network runs.
    manager: the chain of the validator manager: `own` (the L1's first chain), `C`, or `l1-K` (the
        first chain of that L1).
    spare: the number of additional nodes that track it without validating it.
    idle: the L1's chains build no blocks with the P-Chain's.
    simplex: the L1's chains have no proposervm.
    warp: the Warp rule of the genesis; None if the L1 takes no Warp messages.
    warp_upgrades: later Warp rules.
    """

    validators: int | None = None
    weights: str = f"equal:{DEFAULT_L1_WEIGHT}"
    shared: bool = False
    permissioned: bool = False
    chains: int = 1
    unconverted: bool = False
    manager: str = "own"
    spare: int = 0
    idle: bool = False
    simplex: bool = False
    warp: WarpRule | None = DEFAULT_RULE
    warp_upgrades: tuple[WarpRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a simulated network.

    Equal plans give equal networks, except for RSA keys and ports.

    messages: the number that the validators of each chain sign.
    height: the P-Chain's height at start; the proposed height lags proposed_lag behind it.
    epoch_blocks: P-Chain blocks from a block of a busy chain to the next; 0: there are no epochs,
        as before Granite.
    epoch_s: the duration of an epoch; with 0 every block of a chain ends an epoch.
    churn_every: the number of blocks after which a weight of each subnet changes.
    fees: the fee of L1 validators, None for the network's. The plan's L1s have paid it since their
        conversion.
    etna_height: the first block at or after Etna, which converts the plan's L1s; 0: all blocks are
        after Etna, and the first converts.
    info_peers: the number of validators that info.peers lists; None for all.
    nodes: the number of RPC nodes. They validate nothing unless `node_is_validator` is set, which
        makes them the first validators.
    """

    validators: int = 20
    weights: str = f"equal:{DEFAULT_STAKE}"
    l1s: tuple[L1Plan, ...] = (L1Plan(shared=True),)
    network_id: int = DEFAULT_NETWORK_ID
    seed: int = 0
    messages: int = 10
    rsa: int = 0
    height: int = 20
    proposed_lag: int = 0
    epoch_blocks: int = 5
    epoch_s: int = 0
    block_interval_s: float | None = None
    churn_every: int | None = None
    fees: FeeConfig | None = None
    etna_height: int = 0
    info_peers: int | None = None
    nodes: int = 1
    node_is_validator: bool = False
    rules: tuple[Rule, ...] = ()
    node_rules: tuple[NodeRule, ...] = ()
    settings: NodeSettings = field(default_factory=NodeSettings)


def parse_l1(text: str) -> L1Plan:
    """Return the L1 of `validators=5,weights=1/2/3,shared,chains=2,manager=C,spare=1,quorum=80`.

    Raises InvalidPlan.
    """
    values: dict[str, str] = {}
    for word in filter(None, text.split(",")):
        name, _, value = word.partition("=")
        if name not in _L1_WORDS or name in values:
            raise InvalidPlan(f"{word!r} is not an option of an L1, or is given twice")
        values[name] = value
    try:
        validators = int(values["validators"]) if "validators" in values else None
        warp = None if "no-warp" in values else _warp_rule(values)
        plan = L1Plan(
            validators=validators,
            weights=values.get("weights", L1Plan().weights),
            shared="shared" in values or "permissioned" in values,
            permissioned="permissioned" in values,
            chains=int(values.get("chains", 1)),
            unconverted="unconverted" in values,
            manager=values.get("manager", "own"),
            spare=int(values.get("spare", 0)),
            idle="idle" in values,
            simplex="simplex" in values,
            warp=warp,
        )
    except ValueError as error:
        raise InvalidPlan(f"{text!r}: {error}") from None
    if (plan.validators is not None and plan.validators < 1) or plan.chains < 1 or plan.spare < 0:
        raise InvalidPlan(f"{text!r}: an L1 has at least one validator and one chain")
    if not re.fullmatch(r"own|C|l1-\d+", plan.manager):
        raise InvalidPlan(f"{text!r}: the manager is own, C or l1-K")
    return plan


def parse_rule(text: str) -> Rule:
    """Return the rule of `[SCOPE/]SELECTION:BEHAVIOUR`.

    SELECTION is `all`, a share such as `10%`, or indices such as `0,3-5`. Raises InvalidPlan.
    """
    target, colon, words = text.partition(":")
    if not colon:
        raise InvalidPlan(f"{text!r} is not SELECTION:BEHAVIOUR, such as 10%:slow=2s")
    scope, slash, selection = target.rpartition("/")
    if slash and not re.fullmatch(r"primary|l1-\d+", scope):
        raise InvalidPlan(f"{scope!r} is neither primary nor l1-K")
    try:
        share, places = _selection(selection)
        return Rule(parse_behaviour(words), scope or None, share, places)
    except InvalidBehaviour as error:
        raise InvalidPlan(str(error)) from None
    except ValueError:
        raise InvalidPlan(f"{selection!r} selects no validator; write all, 10% or 0,3-5") from None


def select_members(rule: Rule, members: Sequence[int], rng: Random) -> list[int]:
    """Return the selected ones of a scope's `members` (validator indices), ascending."""
    if rule.share is None:
        wrong = [place for place in rule.places if place >= len(members)]
        if wrong:
            raise InvalidPlan(f"there is no validator {wrong[0]}; the scope has {len(members)}")
        return [members[place] for place in rule.places]
    return sorted(rng.sample(members, round(rule.share * len(members))))


def parse_weights(text: str, count: int, rng: Random) -> list[int]:
    """Return the first `count` weights that a text describes.

    text: `equal:W`, `zipf:W` (W, W/2, W/3 …), `uniform:LOW-HIGH` or `5/3/1` (repeated).
    Raises InvalidPlan.
    """
    kind, _, value = text.partition(":")
    try:
        match kind:
            case "equal":
                return _positive([int(value)] * count)
            case "zipf":
                return _positive([int(value) // place for place in range(1, count + 1)])
            case "uniform":
                low, high = (int(bound) for bound in value.split("-"))
                return _positive([rng.randint(low, high) for _ in range(count)])
        weights = [int(word) for word in text.split("/")]
        return _positive([weights[place % len(weights)] for place in range(count)])
    except ValueError:
        raise InvalidPlan(
            f"{text!r}: weights are equal:W, zipf:W, uniform:LOW-HIGH or 5/3/1, above 0"
        ) from None


def _warp_rule(values: dict[str, str]) -> WarpRule:
    quorum = int(values.get("quorum", 0))
    if quorum and not MIN_QUORUM <= quorum <= MAX_QUORUM:
        raise ValueError(f"a quorum is at least {MIN_QUORUM} and at most {MAX_QUORUM} percent")
    return WarpRule(quorum=quorum, needs_primary_signers="primary-signers" in values)


def _selection(text: str) -> tuple[float | None, tuple[int, ...]]:
    if text == "all":
        return 1.0, ()
    if text.endswith("%"):
        share = float(text[:-1]) / 100
        if not 0 <= share <= 1:
            raise ValueError(text)
        return share, ()
    places: list[int] = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        places += range(int(first), int(last or first) + 1)
    return None, tuple(places)


def _positive(weights: list[int]) -> list[int]:
    if not all(0 < weight < 2**63 for weight in weights):
        raise ValueError("weights are above 0")
    return weights
