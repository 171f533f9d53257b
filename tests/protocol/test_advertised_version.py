"""The release that handshakes advertise: the newest tested one, unless validators with enough
weight refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from warpseal.protocol.handshake import TESTED_VERSION, AdvertisedVersion, PeerWeights, Version
from warpseal.warp.ids import NodeID

OLDER, NEWER, NEWEST, MAJOR = (1, 14, 2), (1, 16, 0), (1, 16, 2), (2, 0, 0)
FUTURE = (99, 0, 0)
NOW_S = 1_800_000_000


def node(number: int) -> NodeID:
    return NodeID(bytes([number]) * 20)


def advertised(count: int, setting: Version | None = None) -> AdvertisedVersion:
    """Return the version among that many validators of weight 10."""
    weights = PeerWeights()
    weights.replace({node(number): 10 for number in range(count)})
    return AdvertisedVersion(setting, weights)


def chosen(version: AdvertisedVersion) -> Version:
    version.update(NOW_S)
    return version.current


@pytest.mark.parametrize(
    ("validators", "refusing", "accepting", "expected"),
    [
        (10, [], [], TESTED_VERSION),
        (10, [], [OLDER] * 10, TESTED_VERSION),
        # The network accepts the tested release, whatever its peers run.
        (10, [], [NEWEST] * 10, TESTED_VERSION),
        (1, [], [FUTURE], TESTED_VERSION),
        # The first peers are liars, before others answer and afterwards.
        (3, [FUTURE], [], TESTED_VERSION),
        (10, [FUTURE] * 3, [], TESTED_VERSION),
        (10, [FUTURE] * 3, [TESTED_VERSION] * 7, TESTED_VERSION),
        # More than a third of all weight refuses it, and most of the known weight a major number.
        (10, [NEWEST] * 4, [], NEWEST),
        (10, [MAJOR] * 4, [OLDER] * 4, TESTED_VERSION),
        (10, [MAJOR] * 5, [OLDER] * 4, MAJOR),
        # Older peers accept a newer release of the same major number.
        (10, [NEWEST] * 4, [OLDER] * 6, NEWEST),
        # The release that most of the refusing weight runs or exceeds.
        (10, [FUTURE] * 3 + [NEWER] * 4, [], NEWER),
        (10, [MAJOR] * 6 + [NEWER] * 4, [], MAJOR),
        # Peers that run no newer release hang up for another reason.
        (10, [TESTED_VERSION] * 10, [], TESTED_VERSION),
        (10, [OLDER] * 10, [], TESTED_VERSION),
    ],
)
def test_a_newer_release_is_advertised_if_enough_weight_refuses_the_tested_one(
    validators: int, refusing: Sequence[Version], accepting: Sequence[Version], expected: Version
) -> None:
    version = advertised(validators)
    for number, release in enumerate(refusing):
        version.record_refused(node(number), release)
    for number, release in enumerate(accepting, len(refusing)):
        version.record_accepted(node(number), release)
    assert version.update(NOW_S) is (expected != TESTED_VERSION)
    assert version.current == expected
    assert not version.update(NOW_S)


def test_a_raised_release_stays_while_the_peers_that_demanded_it_accept_it() -> None:
    version = advertised(3)
    for number in range(3):
        version.record_refused(node(number), NEWER)
    assert chosen(version) == NEWER
    version.record_accepted(node(0), NEWER)
    version.record_accepted(node(1), NEWEST)
    # A connection may end during the handshake for any reason.
    version.record_refused(node(2), NEWER)
    assert chosen(version) == NEWER


def test_a_raised_release_stays_when_those_that_demanded_it_leave_and_others_accept_it() -> None:
    version = advertised(10)
    # It accepted the tested release before its upgrade came.
    version.record_accepted(node(4), NEWER)
    for number in range(4):
        version.record_refused(node(number), NEWER)
    assert chosen(version) == NEWER
    # Releases of the tested minor number refuse nothing.
    for number in range(4, 8):
        version.record_accepted(node(number), NEWER)
    for number in range(8, 10):
        version.record_accepted(node(number), (*TESTED_VERSION[:2], TESTED_VERSION[2] + 1))
    version.forget([node(0), node(1), node(2), node(3)])
    assert chosen(version) == NEWER
    version.forget([node(4)])
    assert chosen(version) == TESTED_VERSION


def test_the_tested_release_is_advertised_again_when_the_peers_run_it() -> None:
    version = advertised(3)
    for number in range(3):
        version.record_refused(node(number), MAJOR)
    assert chosen(version) == MAJOR
    version.record_refused(node(0), TESTED_VERSION)
    assert chosen(version) == MAJOR
    version.record_accepted(node(1), OLDER)
    assert chosen(version) == TESTED_VERSION


def test_refusals_of_peers_that_are_no_validators_any_more_do_not_count() -> None:
    version = advertised(3)
    for number in range(3):
        version.record_refused(node(number), NEWER)
    assert chosen(version) == NEWER
    version.forget([node(0), node(1)])
    assert chosen(version) == TESTED_VERSION


def test_a_peer_without_weight_is_not_counted() -> None:
    version = advertised(3)
    for number in range(100, 200):
        version.record_refused(node(number), FUTURE)
    assert chosen(version) == TESTED_VERSION


def test_a_setting_is_never_changed() -> None:
    version = advertised(3, (1, 14, 0))
    for number in range(3):
        version.record_refused(node(number), NEWER)
    assert not version.update(NOW_S)
    assert version.current == (1, 14, 0)


@pytest.mark.parametrize(
    ("reports", "shared"), [([9], None), ([9, 8], 8), ([9, 8, 7], 8), ([7, 8, 9, 9], 9), ([], None)]
)
def test_a_value_is_shared_by_more_than_a_third_of_the_weight(
    reports: list[int], shared: int | None
) -> None:
    weights = PeerWeights()
    weights.replace({node(number): 10 for number in range(5)})
    assert (
        weights.find_shared((node(number), value) for number, value in enumerate(reports)) == shared
    )


def test_no_value_is_shared_before_the_validators_are_known() -> None:
    assert PeerWeights().find_shared([(node(0), 9)]) is None


def test_a_peer_that_accepts_the_tested_release_takes_its_refusal_back() -> None:
    version = advertised(10)
    for number in range(4):
        version.record_refused(node(number), NEWER)
    for number in range(4):
        version.record_accepted(node(number), NEWER)
    assert chosen(version) == TESTED_VERSION


def test_a_peer_of_the_raised_release_hangs_up_for_another_reason() -> None:
    version = advertised(6)
    for number in range(3):
        version.record_refused(node(number), NEWER)
    assert chosen(version) == NEWER
    version.forget([node(0)])
    version.record_refused(node(3), NEWER)
    assert chosen(version) == TESTED_VERSION


def test_a_peer_that_runs_the_tested_release_refuses_it_no_longer() -> None:
    version = advertised(6)
    for number in range(3):
        version.record_refused(node(number), MAJOR)
    assert chosen(version) == MAJOR
    version.record_refused(node(2), TESTED_VERSION)
    assert chosen(version) == TESTED_VERSION


UPGRADE_S = NOW_S + 100


def test_a_newer_release_is_advertised_when_the_upgrade_of_enough_weight_has_come() -> None:
    version = advertised(10)
    for number in range(4):
        version.record_accepted(node(number), NEWER, UPGRADE_S)
    for number in range(4, 10):
        version.record_accepted(node(number), TESTED_VERSION, UPGRADE_S)
    assert not version.update(UPGRADE_S - 1)
    assert version.update(UPGRADE_S)
    assert version.current == NEWER
    # Peers that connect again accept it; the upgrade is no longer ahead then.
    for number in range(4):
        version.record_accepted(node(number), NEWER)
    assert not version.update(UPGRADE_S + 1)
    for number in range(3):
        version.record_accepted(node(number), TESTED_VERSION)
    assert version.update(UPGRADE_S + 2)
    assert version.current == TESTED_VERSION


@pytest.mark.parametrize(
    ("knowing", "release"),
    [
        # A third of the weight is not enough.
        (3, NEWER),
        # Releases of one minor number accept each other, and an older one refuses no newer one.
        (10, (*TESTED_VERSION[:2], TESTED_VERSION[2] + 1)),
        (10, TESTED_VERSION),
        (10, OLDER),
    ],
)
def test_an_upgrade_of_other_peers_changes_nothing(knowing: int, release: Version) -> None:
    version = advertised(10)
    for number in range(knowing):
        version.record_accepted(node(number), release, UPGRADE_S)
    assert not version.update(UPGRADE_S)
    assert version.current == TESTED_VERSION


def test_an_upgrade_with_a_new_major_number_needs_most_of_the_known_weight() -> None:
    version = advertised(10)
    for number in range(10):
        version.record_accepted(node(number), MAJOR if number < 5 else OLDER, UPGRADE_S)
    assert not version.update(UPGRADE_S)
    version.record_accepted(node(5), MAJOR, UPGRADE_S)
    assert version.update(UPGRADE_S)
    assert version.current == MAJOR


def test_a_setting_outlasts_an_upgrade() -> None:
    version = advertised(3, OLDER)
    for number in range(3):
        version.record_accepted(node(number), NEWER, UPGRADE_S)
    assert not version.update(UPGRADE_S)
    assert (version.is_setting, version.current) == (True, OLDER)
