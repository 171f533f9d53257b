"""Our own signed address."""

from __future__ import annotations

from pathlib import Path

from warpseal.peers.identity import lock_identity
from warpseal.peers.settings import PeerSettings
from warpseal.peers.signed_ip import OwnAddress
from warpseal.protocol.addresses import signed_bytes
from warpseal.protocol.certificate import parse_certificate


def test_it_is_signed_once_and_again_only_when_the_clock_was_ahead(tmp_path: Path) -> None:
    moments = [1_000.0]
    with lock_identity(PeerSettings(tmp_path), 1) as held:
        own = OwnAddress(held.identity, lambda: moments[-1])
        first = own.claim()
        moments.append(5_000.0)
        assert own.claim() is first
        moments.append(900.0)
        again = own.claim()
        assert (first.timestamp, again.timestamp) == (1_000, 900)
        signed = signed_bytes(again.ip, again.port, again.timestamp)
        assert (str(again.ip), again.port) == ("0.0.0.0", 1)
        assert parse_certificate(held.identity.certificate).verifies(signed, again.tls_signature)
