"""Warnings about conditions that an operator can fix."""

from __future__ import annotations

import logging
import resource

import pytest

from warpseal.peers.peer_warnings import (
    RESERVED_FILES,
    FileLimit,
    PeerClocks,
    PeerWarnings,
    raise_file_limit,
)
from warpseal.warp.ids import NodeID


def clocks(*offsets: int) -> PeerClocks:
    peer_clocks = PeerClocks()
    for number, offset_s in enumerate(offsets):
        peer_clocks.add(NodeID(bytes([number]) * 20), offset_s, unix_s=1_000_000.0, now=50.0)
    return peer_clocks


def test_the_median_of_the_clocks_resists_a_lying_peer() -> None:
    assert clocks(0, 1, -1, 100_000, -7).median_offset_s(1_000_000.0, 50.0) == 0


def test_two_clocks_are_too_few_for_a_median() -> None:
    assert clocks(90, 90).median_offset_s(1_000_000.0, 50.0) is None


def test_a_corrected_clock_is_judged_by_its_new_time() -> None:
    peer_clocks = clocks(45, 45, 45)
    assert peer_clocks.median_offset_s(1_000_060.0 + 45, 110.0) == 0
    assert peer_clocks.median_offset_s(1_000_060.0, 110.0) == 45


def test_only_the_latest_clock_of_a_peer_counts() -> None:
    peer_clocks = clocks(0, 0, 0)
    for number in range(3):
        peer_clocks.add(NodeID(bytes([number]) * 20), 40, unix_s=1_000_010.0, now=60.0)
    assert peer_clocks.median_offset_s(1_000_010.0, 60.0) == 40


@pytest.mark.parametrize(
    ("offset_s", "right"), [(0, True), (30, True), (-30, True), (31, False), (-31, False)]
)
def test_a_clock_offset_above_thirty_seconds_causes_a_warning(
    offset_s: int, right: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warnings = PeerWarnings(clocks(*[offset_s] * 5), 30.0)
    with caplog.at_level(logging.WARNING):
        assert warnings.check_clock(1_000_000.0, 50.0) is right
    assert bool(caplog.records) is not right


def test_a_warning_is_repeated_after_ten_minutes_at_the_earliest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = PeerWarnings(clocks(60, 60, 60), 30.0)
    for now in (50.0, 51.0, 649.0):
        warnings.check_clock(1_000_000.0 + now - 50, now)
    assert len(caplog.records) == 1
    warnings.check_clock(1_000_600.0, 650.0)
    assert len(caplog.records) == 2


def test_a_newer_version_that_a_third_of_the_weight_runs_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = PeerWarnings(PeerClocks(), 30.0)
    assert warnings.check_version(None, (1, 15, 0), 0.0)
    assert not caplog.text
    assert not warnings.check_version((1, 15, 1), (1, 15, 0), 0.0)
    assert "a third of the weight runs 1.15.1 or newer, and 1.15.0 is advertised" in caplog.text


def test_too_few_files_are_reported_with_the_number_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit = FileLimit(1_024)
    warnings = PeerWarnings(PeerClocks(), 30.0)
    assert warnings.check_connection_limit(limit, limit.connections, limit.connections, 0.0)
    assert not warnings.check_connection_limit(limit, limit.connections, 2_000, 0.0)
    assert (
        f"the limit of open files is 1024; 2000 peers need {2_000 + RESERVED_FILES}" in caplog.text
    )


def test_a_tiny_limit_still_leaves_room_for_peers() -> None:
    assert FileLimit(64).connections == 32


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(soft, hard, 512) if hard != resource.RLIM_INFINITY else 512
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
        limit = raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit.files
        assert limit.files == hard or hard == resource.RLIM_INFINITY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
