"""The release that handshakes advertise, learnt from the configured nodes and from the peers."""

from __future__ import annotations

import pytest

from warpseal.protocol.handshake import DEFAULT_VERSION, AdvertisedVersion, Version

OLDER, NEWER, NEWEST, MAJOR = (1, 14, 2), (1, 16, 0), (1, 16, 2), (2, 0, 0)


@pytest.mark.parametrize(
    ("nodes", "peers", "expected"),
    [
        ([], [], DEFAULT_VERSION),
        ([OLDER], [OLDER] * 9, DEFAULT_VERSION),
        ([NEWER], [], NEWER),
        ([OLDER, NEWEST, NEWER], [DEFAULT_VERSION] * 9, NEWEST),
        ([], [NEWEST] * 3 + [OLDER] * 7, DEFAULT_VERSION),
        ([], [NEWEST] * 3 + [NEWER] * 3 + [OLDER] * 4, NEWER),
        ([], [NEWEST] * 4 + [OLDER] * 6, NEWEST),
        # A new major number: most peers would refuse it, or a few claim it.
        ([MAJOR], [NEWER] * 4 + [MAJOR] * 6, NEWER),
        ([MAJOR], [NEWER] * 3 + [MAJOR] * 7, MAJOR),
        ([MAJOR], [], MAJOR),
        ([NEWER], [MAJOR] * 10, NEWER),
        ([], [(2**32, 0, 0)] * 10, DEFAULT_VERSION),
    ],
)
def test_the_newest_release_that_enough_of_them_run_is_advertised(
    nodes: list[Version], peers: list[Version], expected: Version
) -> None:
    version = AdvertisedVersion(None)
    assert version.learn(nodes, peers) is (expected != DEFAULT_VERSION)
    assert version.current == expected
    assert not version.learn([OLDER], [OLDER] * 9)
    assert version.current == expected


def test_a_setting_is_never_changed() -> None:
    version = AdvertisedVersion((1, 14, 0))
    assert not version.learn([NEWER], [NEWER] * 9)
    assert version.current == (1, 14, 0)
