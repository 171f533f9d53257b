"""What happens in a world: a network, and actions at times, all drawn from the seed.

An action is its name and plain arguments, so that a history can be printed, shortened and kept.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

LENGTHS_S: Final = (1.0, 1.0, 2.0, 2.0, 4.0, 10.0, 30.0, 60.0)
_LIES: Final = (
    *("silent", "refuse=6/later", "refuse=1/no", "wrong", "stolen", "garbage", "notapoint"),
    *("short", "long", "empty", "truncated", "oversized", "drop", "after=3s", "slow=20s"),
    *("slow=50ms-3s", "lag=3", "duplicate", "twice", "twice=garbage", "lost-pongs", "behind=30"),
)
_NODE_LIES: Final = (
    *("old-sets=2", "foreign-sets", "forged-height=1000", "forged-proposal=1000000000"),
    *("forged-height=8796093022208", "foreign-conversion", "forged-balance", "foreign-version"),
    *("foreign-upgrade", "foreign-upgrade=0001-01-01T00:00:00Z"),
)
_SET_SOURCES: Final = ("node", "both", "index", "default", "default")
_ON_DISK: Final = ("fail_disk", "mend_disk", "cut_power")
_SERVER_SHARE: Final = 0.15
# Worlds in which an upgrade is the only disturbance, so that all of it can be judged.
_UPGRADE_SHARE: Final = 0.03
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
    rng = Random(f"scenario {seed}")
    setup = _draw_setup(rng)
    length_s = rng.choice(LENGTHS_S)
    asks, failures = _draw_asks(rng, setup, length_s), _draw_failures(rng, setup, length_s)
    times_s = [action.at_s for failure in failures for action in failure]
    if failures and rng.random() < 0.7:
        # Requests that begin around a fault meet it.
        asks = [_move(rng, ask, rng.choice(times_s)) for ask in asks]
    groups = [*([ask] for ask in asks), *failures]
    rng = Random(f"upgrade {seed}")
    if rng.random() < _UPGRADE_SHARE:
        setup = setup._replace(l1=setup.l1 or "100/100/100")
        groups = [*([ask] for ask in asks), *_draw_upgrade(rng, setup)]
    rng = Random(f"server {seed}")
    if has_server and rng.random() < _SERVER_SHARE:
        setup, groups = _share_store(rng, setup, groups)
    actions = [action for group in groups for action in group]
    return Scenario(seed, setup, tuple(sorted(actions, key=lambda action: action.at_s)))


def _share_store(
    rng: Random, setup: Setup, groups: list[list[Action]]
) -> tuple[Setup, list[list[Action]]]:
    """Return the same world with its store on a server, mostly of two daemons."""
    setup = setup._replace(
        has_store=True,
        has_disk=False,
        has_webhook=setup.has_webhook or rng.random() < 0.5,
        has_server=True,
        daemons=rng.choice((1, 2, 2, 2, 2, 2)),
        server_ms=rng.choice((0.1, 0.1, 1.0, 20.0)),
        has_usage=rng.random() < 0.2,
    )
    groups = [group for group in groups if group[0].name not in _ON_DISK]
    if rng.random() < 0.3:
        # The clocks of the daemons differ from each other, and from that of the server.
        groups.append([Action(0.0, "set_clock", (rng.choice((-3600.0, -5.0, 5.0, 3600.0)),))])
    length_s = max((action.at_s for group in groups for action in group), default=1.0)
    if rng.random() < 0.5:
        # Long enough for a lease to end, and for the next one.
        length_s += 30.0
    for _ in range(rng.randint(0, 6)):
        groups.append([_ask_late(rng, rng.uniform(0, length_s))])
    kinds = rng.sample((_kill_leader, _cut_leader, _cut_server, _server_away, _lose_message), 3)
    for _ in range(rng.choice((0, 1, 2, 4, 8))):
        groups.append(rng.choice(kinds)(rng, rng.uniform(0, length_s)))
    # What begins at a daemon ends there.
    places = [rng.randrange(setup.daemons) for _ in groups]
    return setup, [
        [action._replace(daemon=place) for action in group]
        for group, place in zip(groups, places, strict=True)
    ]


def _kill_leader(rng: Random, at_s: float) -> list[Action]:
    return [Action(at_s, "kill_leader", (rng.choice((0.0, 0.5, 5.0, 20.0)),))]


def _cut_leader(rng: Random, at_s: float) -> list[Action]:
    """Cut the link of the daemon that leads, and ask after that."""
    seconds = rng.choice((3.0, 7.0, 9.0, 12.0, 25.0))
    asks = [_ask_late(rng, at_s + seconds + rng.uniform(0, 30)) for _ in range(rng.randint(0, 3))]
    return [Action(at_s, "cut_leader", (seconds,)), *asks]


def _ask_late(rng: Random, at_s: float) -> Action:
    """Ask for a message that was probably not signed before."""
    return Action(at_s, "ask", (rng.randint(14, 27), 0, 0, 10.0, None, ""))


def _cut_server(rng: Random, at_s: float) -> list[Action]:
    """Cut the link of one daemon to the server, sometimes for longer than a lease is valid."""
    return [Action(at_s, "cut_server", (rng.choice((0.5, 3.0, 7.0, 12.0, 25.0)),))]


def _server_away(rng: Random, at_s: float) -> list[Action]:
    return [Action(at_s, "server_away", (rng.choice((0.1, 2.0, 9.0, 25.0)),))]


def _lose_message(rng: Random, at_s: float) -> list[Action]:
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
    return Setup(
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


def _draw_asks(rng: Random, setup: Setup, length_s: float) -> list[Action]:
    """Return the requests of callers: some messages many times, some callers who leave."""
    asks = []
    for number in range(rng.randint(1, 14)):
        # Most messages are new, so that their signatures have to be collected.
        message = number if rng.random() < 0.7 else rng.randrange(number + 1)
        quorum = rng.choice((0, 0, 0, 1, 34, 67, 80, 100))
        quorum_buffer = rng.choice((0, 0, 0, 10)) if quorum <= 90 else 0
        timeout_s = rng.choice((0.3, 2.0, 10.0, 10.0, 30.0))
        leaves_after_s = rng.uniform(0, timeout_s) if rng.random() < 0.1 else None
        at_s = rng.uniform(0, length_s)
        for _ in range(1 if rng.random() < 0.8 else rng.randint(2, 5)):
            form = rng.choice(("", "", "pinned", "destination"))
            arguments = (message, quorum, quorum_buffer, timeout_s, leaves_after_s, form)
            asks.append(Action(at_s, "ask", arguments))
    return asks


def _draw_failures(rng: Random, setup: Setup, length_s: float) -> list[list[Action]]:
    """Return the faults of a world with their ends; a third of all worlds have few, or none."""
    draws: list[Callable[[Random, Setup, float], list[Action]]] = [
        _lie, _lie, _stop_validator, _disconnect, _cut, _half_open, _node_down, _node_lie,
        _node_outage, _node_lag, _kill, _kill, _restart, _blocks, _blocks, _weight, _balance,
        _clock, _threads, _signing_block, _register, _register, _receiver,
        _disk, _disk, _cut_power, _kill_index,
        _restart_beside_liars, _block_in_flight, _upgrade,
    ]  # fmt: skip
    kinds = rng.sample(draws, rng.randint(1, 5))
    failures = []
    for _ in range(rng.choice((0, 1, 2, 4, 8, 16))):
        failures.append(rng.choice(kinds)(rng, setup, rng.uniform(0, length_s)))
    return failures


def _duration_s(rng: Random) -> float:
    return rng.choice((0.05, 0.05, 1.0, 1.0, 5.0, 5.0, 20.0)) * rng.uniform(0.5, 2)


def _validator(rng: Random, setup: Setup) -> int:
    return rng.randrange(setup.validators + (len(setup.l1.split("/")) if setup.l1 else 0))


def _lie(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    words = rng.choice(_LIES)
    # Sometimes so many that the quorum is out of reach.
    share = rng.choice((0.1, 0.3, 0.6))
    actions = []
    for index in rng.sample(range(setup.validators), max(1, round(setup.validators * share))):
        actions.append(Action(at_s, "behave", (index, words)))
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
    count, duration_s = rng.randint(1, setup.validators), _duration_s(rng)
    return [
        Action(at_s, "cut_validator", (index, duration_s))
        for index in rng.sample(range(setup.validators), count)
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
        Action(at_s, "node_lie", (place, rng.choice(_NODE_LIES))),
        Action(at_s + _duration_s(rng), "node_lie", (place, "")),
    ]


def _node_outage(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    place = rng.randrange(setup.nodes)
    delay_s = rng.choice((0.0, 0.5, 5.0))
    return [
        Action(at_s, "node_outage", (place, rng.choice(_OUTAGES), delay_s)),
        Action(at_s + _duration_s(rng), "node_outage", (place, "", 0.0)),
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


def _restart_beside_liars(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Let all nodes lie about validator sets while a daemon with an index starts."""
    if not setup.set_source:
        return _restart(rng, setup, at_s)
    # By then the index has all blocks, if no further one comes.
    at_s += 12.0
    start_s = at_s + rng.uniform(0.5, 2)
    words = rng.choice(("foreign-sets", "old-sets=2"))
    asks = [
        Action(start_s + rng.uniform(0, 1), "ask", (20 + place, 0, 0, 10.0, None, ""))
        for place in range(rng.randint(1, 6))
    ]
    return [
        *(Action(at_s, "node_lie", (place, words)) for place in range(setup.nodes)),
        Action(at_s, "terminate"),
        Action(start_s, "start"),
        *asks,
        *(Action(start_s + 5, "node_lie", (place, "")) for place in range(setup.nodes)),
    ]


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
        Action(at_s + place, "change_weight", (rng.randrange(8), rng.choice(weights)))
        for place in range(rng.randint(1, 4))
    ]


def _balance(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    return [
        Action(at_s, "set_balance", (rng.randrange(8), 0)),
        Action(at_s + _duration_s(rng), "set_balance", (rng.randrange(8), 10**9)),
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
    message = rng.randrange(3)
    actions = [Action(at_s, "block", (message,))]
    if rng.random() < 0.7:
        actions.append(Action(at_s + _duration_s(rng), "unblock", (message,)))
    return actions


def _block_in_flight(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Block a message while its validators take their time."""
    message, delay_s = 30 + rng.randrange(3), rng.choice((1, 4))
    everyone = range(setup.validators)
    return [
        *(Action(at_s, "behave", (index, f"slow={delay_s}s")) for index in everyone),
        Action(at_s, "ask", (message, 0, 0, 10.0, None, "")),
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
        actions.append(Action(ask_s, "ask", (40 + place, 0, 0, 30.0, None, "")))
    return [*actions, *_register(rng, setup, at_s + fork_s + rng.uniform(-5, 10))]


def _draw_upgrade(rng: Random, setup: Setup) -> list[list[Action]]:
    """Return an upgrade that the daemon can learn of before its time, and what callers ask then."""
    at_s, fork_s = rng.uniform(0, 5), rng.choice((30, 60, 110, 140)) * rng.uniform(0.9, 1.1)
    actions = _move_to_next_release(rng, setup, at_s, fork_s, min(fork_s, rng.uniform(5, 30)))
    end_s = fork_s + rng.uniform(0, 5)
    if rng.random() < 0.8:
        actions.append(Action(at_s + end_s, "future_transaction"))
    times_s = [at_s + rng.uniform(0, end_s + 40) for _ in range(rng.randint(2, 6))]
    groups = [[Action(time_s, "read_announcements")] for time_s in times_s]
    for place in range(rng.randint(1, 5)):
        ask_s = at_s + rng.uniform(0, end_s + 40)
        groups.append([Action(ask_s, "ask", (40 + place, 0, 0, 30.0, None, ""))])
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
    l1_validators = len(setup.l1.split("/")) if setup.l1 else 0
    return [
        Action(at_s, "schedule_fork", (fork_s,)),
        *(
            Action(at_s + rng.uniform(0, moved_s), "upgrade_validator", (index,))
            for index in range(setup.validators + l1_validators)
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
        *(
            Action(at_s + rng.uniform(0, 5), "ask_tx", (rng.randrange(8), timeout_s))
            for _ in range(rng.randint(1, 3))
        ),
    ]


def _receiver(rng: Random, setup: Setup, at_s: float) -> list[Action]:
    """Let the receiver of the webhook refuse, hang or go away."""
    kind = rng.choice(("500", "302", "hang", "drop", "late"))
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
