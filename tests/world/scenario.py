"""What happens in a world: a network, and actions at times, all drawn from the seed.

An action is its name and plain arguments, so that a history can be printed, shortened and kept.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from warpseal_simnet.plan import parse_weights

# Height of the P-Chain at the start.
FIRST_HEIGHT: Final = 20
LENGTHS_S: Final = (1.0, 1.0, 2.0, 2.0, 4.0, 10.0, 30.0, 60.0)
_LIES: Final = (
    *("silent", "refuse=6/later", "refuse=1/no", "wrong", "stolen", "garbage", "notapoint"),
    *("short", "long", "empty", "truncated", "oversized", "drop", "after=3s", "slow=20s"),
    *("slow=50ms-3s", "lag=3", "duplicate", "twice", "twice=garbage", "lost-pongs", "behind=30"),
    *("bomb", "flood=40", "flood=400"),
)
# What a validator is from the start: of any network; of the Primary Network; of an L1.
_FIXED: Final = ("closed", "mute", "private")
_FIXED_OF_STAKES: Final = ("keyless", "joins", "leaves")
_FIXED_OF_L1: Final = ("inactive", "balance=15000")
_MAX_KEYLESS_SHARE: Final = 0.2
# Lies of nodes that no daemon believes: of one node; of one among others; of all beside an index;
# of fewer than must agree.
_LIES_OF_ONE: Final = (
    *("foreign-version", "foreign-upgrade", "foreign-upgrade=0001-01-01T00:00:00Z"),
)
_LIES_AMONG_OTHERS: Final = ("forged-proposal=1000000000", "forged-epoch=1000")
_SET_LIES: Final = ("old-sets=2", "foreign-sets")
_OTHER_LIES: Final = (
    *("forged-height=1000", "forged-height=8796093022208", "foreign-conversion", "forged-balance"),
)
_SET_SOURCES: Final = ("node", "both", "index", "default", "default")
_INDEXED: Final = ("index", "default")
# Seconds by which a node answers late, and what is drawn in addition, up to beyond the timeouts.
_LATE_S: Final = (
    (0.02, 0.0),
    (0.0, 0.05),
    (0.0, 0.5),
    (1.0, 0.5),
    (3.0, 3.0),
    (9.0, 3.0),
    (25.0, 15.0),
)
_SERVER_SHARE: Final = 0.15
# Worlds in which an upgrade is the only disturbance, so that all of it can be judged.
_UPGRADE_SHARE: Final = 0.03
# The height that a request names, and whether it has a destination.
_FORMS: Final = ("", "", "", "pinned", "destination", "destination", "first-height-destination")
_OUTAGES: Final = ("http-500", "garbage", "hang", "drop", "no-method", "too-many")


class Setup(NamedTuple):
    """The world before anything happens.

    l1: weights of an L1 of its own, divided by slashes; empty for none.
    has_disk: whether the store is on a disk that can fail and lose power.
    set_source: value of `validator-sets`, or `default` if it is not set, when a process indexes the
        P-Chain; else empty.
    epoch_blocks, epoch_s: as in `Plan`.
    messages: number of messages of each chain.
    delay_ms: shortest time of one way to a validator; jitter_ms: mean of what comes on top.
    thread_ms: mean time that a job waits for its thread.
    daemons: number of daemons, which share a store on a server if `has_server`.
    server_ms: mean time of one way to that server.
    has_usage: whether usage is recorded on that server, of which one daemon removes what is old.
    fixed: what some validators are from the start, as `PLACE:WORDS` divided by spaces.
    """

    validators: int
    weights: str
    l1: str
    nodes: int
    node_quorum: int
    messages: int
    delay_ms: float
    jitter_ms: float
    thread_ms: float
    has_store: bool
    has_webhook: bool = False
    has_disk: bool = False
    has_server: bool = False
    daemons: int = 1
    server_ms: float = 0.2
    has_usage: bool = False
    set_source: str = ""
    epoch_blocks: int = 5
    epoch_s: int = 0
    fixed: str = ""

    @property
    def l1_validators(self) -> int:
        """The number of validators of the L1 at the start."""
        return len(self.l1.split("/")) if self.l1 else 0

    @property
    def all_validators(self) -> int:
        """The number of validators of the Primary Network and of the L1 at the start."""
        return self.validators + self.l1_validators


class Action(NamedTuple):
    """Something that happens at a time, in seconds after the start.

    name: what follows `do_` in the name of the method that does it.
    arguments: plain values.
    daemon: place of the daemon that it concerns, if it concerns one.
    """

    at_s: float
    name: str
    arguments: tuple[int | float | str | None, ...] = ()
    daemon: int = 0

    def __str__(self) -> str:
        text = f"{self.at_s:9.3f} {self.name} {' '.join(map(str, self.arguments))}"
        return f"{text} (daemon {self.daemon})" if self.daemon else text


class Scenario(NamedTuple):
    """A setup and its actions in order of time."""

    seed: int
    setup: Setup
    actions: tuple[Action, ...]

    def without(self, dropped: frozenset[int]) -> Scenario:
        """Return it without the actions at these places."""
        actions = (action for place, action in enumerate(self.actions) if place not in dropped)
        return self._replace(actions=tuple(actions))


def read_scenario(values: Any) -> Scenario:
    """Return a scenario of the lists that JSON makes of it."""
    seed, setup, actions = values
    return Scenario(
        seed,
        Setup(*setup),
        tuple(
            Action(at_s, name, tuple(arguments), *daemon)
            for at_s, name, arguments, *daemon in actions
        ),
    )


def draw_scenario(seed: int, *, has_server: bool) -> Scenario:
    """Return the scenario of a seed.

    has_server: whether a database server runs, on which some worlds have their store.
    """
    rng, server_rng = Random(f"scenario {seed}"), Random(f"server {seed}")
    setup = _draw_setup(rng)
    upgrade_rng = Random(f"upgrade {seed}")
    is_upgrade = upgrade_rng.random() < _UPGRADE_SHARE
    if is_upgrade:
        setup = setup._replace(l1=setup.l1 or "100/100/100", fixed="")
    if has_server and server_rng.random() < _SERVER_SHARE:
        setup = _share_store(server_rng, setup)
    length_s = rng.choice(LENGTHS_S)
    asks, failures = _draw_asks(rng, setup, length_s), _draw_failures(rng, setup, length_s)
    times_s = [action.at_s for failure in failures for action in failure]
    if failures and rng.random() < 0.7:
        # Requests that begin around a fault meet it.
        asks = [_move(rng, ask, rng.choice(times_s)) for ask in asks]
    groups = [*([ask] for ask in asks), *failures]
    if is_upgrade:
        groups = [*([ask] for ask in asks), *_draw_upgrade(upgrade_rng, setup)]
    if setup.has_server:
        groups = _add_server_failures(server_rng, setup, groups)
    actions = [action for group in groups for action in group]
    return Scenario(seed, setup, tuple(sorted(actions, key=lambda action: action.at_s)))


def _share_store(rng: Random, setup: Setup) -> Setup:
    """Return the same world with its store on a server, mostly of two daemons."""
    return setup._replace(
        has_store=True,
        has_disk=False,
        has_webhook=setup.has_webhook or rng.random() < 0.5,
        has_server=True,
        daemons=rng.choice((1, 2, 2, 2, 2, 2)),
        server_ms=rng.choice((0.1, 0.1, 1.0, 20.0)),
        has_usage=rng.random() < 0.2,
    )


def _add_server_failures(
    rng: Random, setup: Setup, groups: list[list[Action]]
) -> list[list[Action]]:
    """Return actions with those of the server and its links, each group at one daemon."""
    if rng.random() < 0.3:
        # The clocks of the daemons differ from each other, and from that of the server.
        groups.append([Action(0.0, "set_clock", (rng.choice((-3600.0, -5.0, 5.0, 3600.0)),))])
    length_s = max((action.at_s for group in groups for action in group), default=1.0)
    if rng.random() < 0.5:
        # Long enough for a lease to end, and for the next one.
        length_s += 30.0
    for _ in range(rng.randint(0, 6)):
        groups.append([_ask_late(rng, setup, rng.uniform(0, length_s))])
    kinds = rng.sample((_kill_leader, _cut_leader, _cut_server, _server_away, _lose_message), 3)
    for _ in range(rng.choice((0, 1, 2, 4, 8))):
        groups.append(rng.choice(kinds)(rng, setup, rng.uniform(0, length_s)))
    # What begins at a daemon ends there.
    places = [rng.randrange(setup.daemons) for _ in groups]
    return [
        [action._replace(daemon=place) for action in group]
        for group, place in zip(groups, places, strict=True)
    ]


def _kill_leader(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    return [Action(at_s, "kill_leader", (rng.choice((0.0, 0.5, 5.0, 20.0)),))]


def _cut_leader(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Cut the link of the daemon that leads, and ask after that."""
    seconds = rng.choice((3.0, 7.0, 9.0, 12.0, 25.0))
    asks = [
        _ask_late(rng, setup, at_s + seconds + rng.uniform(0, 30)) for _ in range(rng.randint(0, 3))
    ]
    return [Action(at_s, "cut_leader", (seconds,)), *asks]


def _ask_late(rng: Random, setup: Setup, at_s: float) -> Action:
    """Ask for a message that was probably not signed before."""
    return _ask(at_s, _message(rng, setup, rng.randint(14, 27)))


def _ask(at_s: float, message: int, timeout_s: float = 10.0) -> Action:
    return Action(at_s, "ask", (message, 0, 0, timeout_s, None, ""))


def _message(rng: Random, setup: Setup, number: int) -> int:
    """Return the place of a message by its number, of the C-Chain or of the chain of the L1."""
    is_of_l1 = bool(setup.l1) and rng.random() < 0.5
    return _message_of_l1(setup, number) if is_of_l1 else number % setup.messages


def _message_of_l1(setup: Setup, number: int) -> int:
    return setup.messages + number % setup.messages


def _cut_server(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Cut the link of one daemon to the server, sometimes for longer than a lease is valid."""
    return [Action(at_s, "cut_server", (rng.choice((0.5, 3.0, 7.0, 12.0, 25.0)),))]


def _server_away(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    return [Action(at_s, "server_away", (rng.choice((0.1, 2.0, 9.0, 25.0)),))]


def _lose_message(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Lose a request to the server, or a reply of it, and the connection with it."""
    loss = rng.choice(("request", "reply", "commit", "commit"))
    return [Action(at_s, "lose_message", (loss, rng.choice((1, 1, 2, 5, 20))))]


def _move(rng: Random, action: Action, at_s: float) -> Action:
    return action._replace(at_s=max(0.0, at_s + rng.choice((-1, 1, 1)) * rng.expovariate(2.0)))


def _draw_setup(rng: Random) -> Setup:
    validators = rng.choice((1, 2, 3, 4, 4, 5, 5, 5, 7, 10, 10, 20))
    if rng.random() < 0.02:
        validators = rng.randint(50, 200)
    l1_weights = [str(rng.choice((1, 10, 100, 1000))) for _ in range(rng.randint(1, 6))]
    nodes = rng.choice((1, 1, 2, 3, 4))
    has_disk, has_index = rng.random() < 0.4, rng.random() < 0.4
    setup = Setup(
        validators,
        rng.choice(("equal:2000000000000", "equal:2000000000000", "zipf:8000000000000")),
        "/".join(l1_weights) if rng.random() < 0.6 else "",
        nodes,
        rng.randint(1, (nodes + 2) // 2),
        rng.choice((2, 30, 30)),
        rng.choice((0.1, 1.0, 15.0, 60.0)),
        rng.choice((0.0, 0.5, 5.0, 40.0)),
        rng.choice((0.01, 0.2, 2.0, 20.0)),
        rng.random() < 0.9,
        rng.random() < 0.4,
        has_disk,
        # A disk is used by one process only.
        set_source=rng.choice(_SET_SOURCES) if has_index and not has_disk else "",
        epoch_blocks=rng.choice((5, 5, 1, 2, 0)),
        epoch_s=rng.choice((0, 0, 10, 60)),
    )
    return setup._replace(fixed=_draw_fixed(rng, setup)) if rng.random() < 0.2 else setup


def _draw_fixed(rng: Random, setup: Setup) -> str:
    """Return what some validators are from the start, so that enough weight can always sign."""
    rules = {}
    share = rng.choice((0.1, 0.3, 0.5))
    for place in _sample_validators(rng, setup, share):
        kinds = _FIXED + (_FIXED_OF_STAKES if place < setup.validators else _FIXED_OF_L1)
        rules[place] = rng.choice(kinds)
    weights = parse_weights(setup.weights, setup.validators, rng)
    movers = [place for place, words in rules.items() if words in ("joins", "leaves")]
    for place in movers:
        # No transaction of a block says so, which an index would read.
        is_possible = not setup.set_source and len(movers) < setup.validators
        height = FIRST_HEIGHT + rng.randint(1, 4)
        rules[place] = f"{rules[place]}={height}" if is_possible else "closed"
    steady = sum(weight for place, weight in enumerate(weights) if place not in movers)
    keyless = sum(weights[place] for place, words in rules.items() if words == "keyless")
    if keyless > _MAX_KEYLESS_SHARE * steady:
        rules = {place: words for place, words in rules.items() if words != "keyless"}
    return " ".join(f"{place}:{words}" for place, words in rules.items())


def _draw_asks(rng: Random, setup: Setup, length_s: float) -> list[Action]:
    """Return the requests of callers: some messages many times, some callers who leave."""
    asks = []
    for number in range(rng.randint(1, 14)):
        # Most messages are new, so that their signatures have to be collected.
        message = _message(rng, setup, number if rng.random() < 0.7 else rng.randrange(number + 1))
        quorum = rng.choice((0, 0, 0, 1, 34, 67, 80, 100))
        quorum_buffer = rng.choice((0, 0, 0, 10)) if quorum <= 90 else 0
        timeout_s = rng.choice((0.3, 2.0, 10.0, 10.0, 30.0))
        leaves_after_s = rng.uniform(0, timeout_s) if rng.random() < 0.1 else None
        at_s = rng.uniform(0, length_s)
        for _ in range(1 if rng.random() < 0.8 else rng.randint(2, 5)):
            form = rng.choice(_FORMS)
            arguments = (message, quorum, quorum_buffer, timeout_s, leaves_after_s, form)
            asks.append(Action(at_s, "ask", arguments))
    return asks


def _draw_failures(rng: Random, setup: Setup, length_s: float) -> list[list[Action]]:
    """Return the faults of a world with their ends; a third of all worlds have few, or none."""
    draws: list[Callable[[Random, Setup, float], list[Action]]] = [
        _lie, _lie, _stop_validator, _disconnect, _cut, _half_open, _node_down, _node_lie,
        _node_outage, _node_late, _node_lag, _kill, _kill, _restart, _blocks, _blocks, _delegate,
        _clock, _threads, _upgrade,
    ]  # fmt: skip
    if setup.set_source in _INDEXED or setup.node_quorum > 1:
        draws += [_start_beside_liars]
    if setup.l1:
        draws += [_register, _register]
    if setup.l1_validators > 1:
        draws += [_weight, _balance]
    if setup.set_source:
        draws += [_kill_index]
    if setup.has_store:
        draws += [_signing_block, _block_in_flight]
    if setup.has_store and setup.has_webhook:
        draws += [_receiver]
    if setup.has_disk:
        draws += [_disk, _disk, _cut_power]
    kinds = rng.sample(draws, rng.randint(1, 5))
    failures = []
    for _ in range(rng.choice((0, 1, 2, 4, 8, 16))):
        failures.append(rng.choice(kinds)(rng, setup, rng.uniform(0, length_s)))
    return failures


def _duration_s(rng: Random) -> float:
    return rng.choice((0.05, 0.05, 1.0, 1.0, 5.0, 5.0, 20.0)) * rng.uniform(0.5, 2)


def _validator(rng: Random, setup: Setup) -> int:
    return rng.randrange(setup.all_validators)


def _sample_validators(rng: Random, setup: Setup, share: float) -> list[int]:
    """Return a share of all validators, one at least."""
    everyone = range(setup.all_validators)
    return rng.sample(everyone, max(1, round(len(everyone) * share)))


def _lie(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    words = rng.choice(_LIES)
    # Sometimes so many that the quorum is out of reach.
    share = rng.choice((0.1, 0.3, 0.6))
    actions = []
    for index in _sample_validators(rng, setup, share):
        actions.append(Action(at_s, "behave", (index, words)))
        if words.startswith("flood"):
            # A flood begins with a connection.
            actions.append(Action(at_s, "disconnect", (index,)))
        if rng.random() < 0.5:
            actions.append(Action(at_s + _duration_s(rng), "behave", (index, "")))
    return actions


def _stop_validator(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    actions, duration_s = [], _duration_s(rng)
    for _ in range(rng.choice((1, 1, 3, setup.validators))):
        index, moved = _validator(rng, setup), int(rng.random() < 0.3)
        actions.append(Action(at_s, "stop_validator", (index,)))
        actions.append(Action(at_s + duration_s, "start_validator", (index, moved)))
    return actions


def _disconnect(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    return [Action(at_s, "disconnect", (_validator(rng, setup),))]


def _cut(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Cut the links to some validators, or to a node."""
    if rng.random() < 0.3:
        return [Action(at_s, "cut_node", (rng.randrange(setup.nodes), _duration_s(rng)))]
    duration_s = _duration_s(rng)
    return [
        Action(at_s, "cut_validator", (index, duration_s))
        for index in _sample_validators(rng, setup, rng.random())
    ]


def _half_open(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    return [Action(at_s, "half_open", (_validator(rng, setup), _duration_s(rng)))]


def _node_down(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    place = rng.randrange(setup.nodes)
    return [
        Action(at_s, "node_down", (place,)),
        Action(at_s + _duration_s(rng), "node_up", (place,)),
    ]


def _node_lie(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    place = rng.randrange(setup.nodes)
    return [
        Action(at_s, "node_lie", (place, rng.choice(_node_lies(setup)))),
        Action(at_s + _duration_s(rng), "node_lie", (place, "")),
    ]


def _node_lies(setup: Setup) -> list[str]:
    """Return the lies that a daemon must not believe."""
    words = list(_LIES_OF_ONE)
    if setup.nodes > 1:
        words += _LIES_AMONG_OTHERS
    if setup.set_source in _INDEXED or setup.node_quorum > 1:
        words += _SET_LIES
    if setup.node_quorum > 1:
        words += _OTHER_LIES
    return words


def _node_outage(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    place = rng.randrange(setup.nodes)
    delay_s = rng.choice((0.0, 0.5, 5.0))
    return [
        Action(at_s, "node_outage", (place, rng.choice(_OUTAGES), delay_s)),
        Action(at_s + _duration_s(rng), "node_outage", (place, "", 0.0)),
    ]


def _node_late(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Let some nodes answer honestly, and late."""
    places, duration_s = (
        rng.sample(range(setup.nodes), rng.randint(1, setup.nodes)),
        _duration_s(rng),
    )
    delays = rng.choice(_LATE_S)
    return [
        action
        for place in places
        for action in (
            Action(at_s, "node_late", (place, *delays)),
            Action(at_s + duration_s, "node_late", (place, 0.0, 0.0)),
        )
    ]


def _node_lag(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    place = rng.randrange(setup.nodes)
    return [
        Action(at_s, "node_lag", (place, rng.randint(1, 5))),
        Action(at_s + _duration_s(rng), "node_lag", (place, 0)),
    ]


def _kill(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    return [
        Action(at_s, "kill"),
        Action(at_s + rng.choice((0.0, 0.5, 5.0)), "start"),
    ]


def _kill_index(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    return [Action(at_s, "kill_index")]


def _start_beside_liars(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Let nodes lie, and processes end, at any instant of a start, the first one too.

    With an index all nodes lie about sets; otherwise fewer than must agree.
    """
    has_index, is_first = setup.set_source in _INDEXED, rng.random() < 0.4
    # By then the index has all blocks, if no further one comes.
    stop_s = 0.0 if is_first else at_s + 12.0 * has_index
    start_s = 0.0 if is_first else stop_s + rng.uniform(0.1, 2)
    words = rng.choice(_SET_LIES if has_index else _node_lies(setup))
    count = setup.nodes if has_index else setup.node_quorum - 1
    actions = []
    for place in rng.sample(range(setup.nodes), count):
        begin_s = stop_s if rng.random() < 0.3 else start_s + _instant_s(rng)
        end_s = rng.uniform(begin_s, start_s + 5)
        actions.append(Action(begin_s, "node_lie", (place, words)))
        actions.append(Action(end_s, "node_lie", (place, "")))
    if not is_first:
        actions.append(Action(stop_s, rng.choice(("kill", "terminate"))))
        actions.append(Action(start_s, "start"))
    if rng.random() < 0.5:
        again_s = start_s + _instant_s(rng)
        actions.append(Action(again_s, rng.choice(("kill", "terminate"))))
        actions.append(Action(again_s + rng.uniform(0, 1), "start"))
    actions += [
        _ask(start_s + _instant_s(rng), _message(rng, setup, 20 + place))
        for place in range(rng.randint(1, 6))
    ]
    return sorted(actions, key=lambda action: action.at_s)


def _instant_s(rng: Random) -> float:
    """Return an instant of a start, most of which are in its first moments."""
    return rng.uniform(0, rng.choice((0.02, 0.2, 1.0, 5.0)))


def _restart(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    return [Action(at_s, "terminate"), Action(at_s + rng.uniform(0, 3), "start")]


def _blocks(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    interval_s = rng.choice((1.0, 2.0))
    return [
        Action(at_s + place * interval_s, "advance", (1,)) for place in range(rng.randint(1, 20))
    ]


def _weight(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Change weights of validators of the L1."""
    weights = (0, 1, 500, 5_000)
    return [
        *(
            Action(at_s + place, "change_weight", (rng.randrange(8), rng.choice(weights)))
            for place in range(rng.randint(1, 4))
        ),
        *_ask_of_l1(rng, setup, at_s),
    ]


def _balance(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    place = rng.randrange(8)
    return [
        Action(at_s, "set_balance", (place, 0)),
        Action(at_s + _duration_s(rng), "set_balance", (place, 10**9)),
        *_ask_of_l1(rng, setup, at_s),
    ]


def _ask_of_l1(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Ask for messages of the L1, whose set changes from a time on."""
    return [
        _ask(at_s + rng.uniform(0, 12), _message_of_l1(setup, rng.randrange(28)))
        for _ in range(rng.randint(0, 3))
    ]


def _delegate(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Stake with validators of the Primary Network, and ask for messages of the C-Chain."""
    weights = (25 * 10**9, 2 * 10**12, 3 * 10**13)
    return [
        *(
            Action(at_s + place, "delegate", (rng.randrange(setup.validators), rng.choice(weights)))
            for place in range(rng.randint(1, 4))
        ),
        *(_ask(at_s + rng.uniform(0, 12), rng.randrange(28)) for _ in range(rng.randint(0, 3))),
    ]


def _clock(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    step_s = rng.choice((-3600.0, -30.0, -1.0, 1.0, 45.0, 3600.0, 864_000.0))
    return [
        Action(at_s, "set_clock", (step_s,)),
        Action(at_s + _duration_s(rng), "set_clock", (0.0,)),
    ]


def _threads(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Let the jobs of threads, the database among them, take long."""
    return [
        Action(at_s, "slow_threads", (rng.choice((50.0, 400.0, 3000.0)),)),
        Action(at_s + _duration_s(rng), "slow_threads", (0.2,)),
    ]


def _signing_block(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    message = _message(rng, setup, rng.randrange(3))
    actions = [Action(at_s, "block", (message,))]
    if rng.random() < 0.7:
        actions.append(Action(at_s + _duration_s(rng), "unblock", (message,)))
    return actions


def _block_in_flight(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Block a message while its validators take their time."""
    message, delay_s = _message(rng, setup, 20 + rng.randrange(3)), rng.choice((1, 4))
    everyone = range(setup.all_validators)
    return [
        *(Action(at_s, "behave", (index, f"slow={delay_s}s")) for index in everyone),
        _ask(at_s, message),
        Action(at_s + rng.uniform(0.01, delay_s), "block", (message,)),
        Action(at_s + 8, "unblock", (message,)),
        *(Action(at_s + 8, "behave", (index, "")) for index in everyone),
    ]


def _upgrade(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Move validators and nodes to the next release one by one, around the time of its upgrade."""
    fork_s = rng.uniform(0, 20)
    # Most before the time of the upgrade, some after it.
    actions = _move_to_next_release(rng, setup, at_s, fork_s, fork_s + 2)
    if rng.random() < 0.5:
        actions.append(Action(at_s + fork_s + rng.uniform(0, 5), "future_transaction"))
    asks_s = [at_s + rng.uniform(0, fork_s + 10) for _ in range(rng.randint(0, 4))]
    for place, ask_s in enumerate(asks_s):
        actions.append(_ask(ask_s, _message(rng, setup, 20 + place), 30.0))
    return [*actions, *_register(rng, setup, at_s + fork_s + rng.uniform(-5, 10))]


def _draw_upgrade(rng: Random, setup: Setup) -> list[list[Action]]:
    """Return an upgrade that the daemon can learn of before its time, and what callers ask then."""
    at_s, fork_s = rng.uniform(0, 5), rng.choice((30, 60, 120, 150)) * rng.uniform(0.9, 1.1)
    actions = _move_to_next_release(rng, setup, at_s, fork_s, rng.uniform(5, 25))
    end_s = fork_s + rng.uniform(0, 5)
    if rng.random() < 0.8:
        actions.append(Action(at_s + end_s, "future_transaction"))
    times_s = [at_s + rng.uniform(0, end_s + 40) for _ in range(rng.randint(2, 6))]
    groups = [[Action(time_s, "read_announcements")] for time_s in times_s]
    for place in range(rng.randint(1, 5)):
        ask_s = at_s + rng.uniform(0, end_s + 40)
        groups.append([_ask(ask_s, _message(rng, setup, 20 + place), 30.0)])
    for _ in range(rng.randint(2, 6)):
        change = rng.choice((_register, _weigh, _register_and_remove))
        groups.append(change(rng, setup, at_s + rng.uniform(0, end_s + 30)))
    if rng.random() < 0.5:
        groups.append(_restart(rng, setup, at_s + rng.uniform(0, end_s + 20)))
    return [actions, *groups]


def _move_to_next_release(
    rng: Random, setup: Setup, at_s: float, fork_s: float, moved_s: float
) -> list[Action]:
    """Schedule an upgrade, and move validators and nodes to its release until another time."""
    return [
        Action(at_s, "schedule_fork", (fork_s,)),
        *(
            Action(at_s + rng.uniform(0, moved_s), "upgrade_validator", (index,))
            for index in range(setup.all_validators)
        ),
        *(
            Action(at_s + rng.uniform(0, moved_s), "upgrade_node", (place,))
            for place in range(setup.nodes)
        ),
    ]


def _weigh(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Change a weight of the L1, and ask for the message of that."""
    return [
        Action(at_s, "change_weight", (rng.randrange(8), rng.choice((1, 500, 5_000)))),
        *(
            Action(at_s + rng.uniform(0, 20), "ask_tx", (place, 30.0))
            for place in range(rng.randint(1, 3))
        ),
    ]


def _register_and_remove(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Remove a validator before the follower has its registration, whose origin is searched for."""
    return [
        Action(at_s, "register", (1,)),
        Action(at_s, "change_weight", (-1, 0)),
        Action(at_s + rng.uniform(0, 0.1), "ask_tx", (0, 10.0)),
        Action(at_s + 20.0, "ask_tx", (rng.randrange(3), 30.0)),
    ]


def _register(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Register a validator of the L1, and ask for the message of a transaction."""
    timeout_s = rng.choice((2.0, 10.0, 30.0))
    return [
        Action(at_s, "register", (rng.choice((1, 100, 5_000)),)),
        *_ask_of_l1(rng, setup, at_s),
        *(
            Action(at_s + rng.uniform(0, 5), "ask_tx", (rng.randrange(8), timeout_s))
            for _ in range(rng.randint(1, 3))
        ),
    ]


def _receiver(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Let the receiver of the webhook refuse, hang or end."""
    kind = rng.choice(("500", "302", "hang", "drop", "late", "down", "down"))
    return [
        Action(at_s, "receive", (kind,)),
        Action(at_s + _duration_s(rng), "receive", ("200",)),
    ]


def _disk(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Let the disk fail for some operations, or until it is mended."""
    kind, times = rng.choice(("full", "write", "sync", "read", "open")), rng.choice((1, 5, 10**6))
    return [
        Action(at_s, "fail_disk", (kind, rng.randint(1, 20), times)),
        Action(at_s + _duration_s(rng), "mend_disk"),
    ]


def _cut_power(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    return [
        Action(at_s, "cut_power", (rng.randrange(2**32), int(rng.random() < 0.3))),
        Action(at_s + rng.choice((0.0, 0.5, 5.0)), "start"),
    ]
