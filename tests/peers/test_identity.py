"""The identity of the daemon: stored, locked and never replaced."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec.structs import replace

from tests.peers.fixtures import self_signed
from warpseal.errors import StartupError
from warpseal.peers.data_dir import InUse, UnusableFolder, write_atomically
from warpseal.peers.identity import (
    IDENTITY_NAME,
    LockedIdentity,
    UnusableIdentity,
    issue_certificate,
    lock_identity,
)
from warpseal.peers.settings import PeerSettings
from warpseal.protocol.certificate import parse_certificate
from warpseal.warp.ids import hash160

NETWORK_ID = 88888
_HOLD = """
import sys
from pathlib import Path
from warpseal.peers.identity import lock_identity
from warpseal.peers.settings import PeerSettings
paths = [Path(p) if p else None for p in sys.argv[1:]]
with lock_identity(PeerSettings(paths[0], paths[1], paths[2]), 88888) as locked:
    print(locked.identity.node_id.hex(), flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_daemon(settings: PeerSettings) -> Iterator[str]:
    """Run a second process that holds an identity; yields its node id in hex."""
    paths = [
        str(settings.data_dir),
        str(settings.tls_cert_path or ""),
        str(settings.tls_key_path or ""),
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


def lock(settings: PeerSettings, network_id: int = NETWORK_ID) -> LockedIdentity:
    """Claim an identity for a moment."""
    with lock_identity(settings, network_id) as held:
        return held


def explicit(folder: Path) -> PeerSettings:
    return PeerSettings(folder / "data", folder / "staker.crt", folder / "staker.key")


def make_read_only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make `folder` as a read-only mount is: tests may run as root, which ignores file modes."""
    real_open, real_mkdir = os.open, Path.mkdir

    def read_only_open(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).is_relative_to(folder) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(30, "Read-only file system", str(path))
        return real_open(path, flags, mode)

    def read_only_mkdir(
        self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False
    ) -> None:
        if self.is_relative_to(folder) and not self.exists():
            raise OSError(30, "Read-only file system", str(self))
        real_mkdir(self, mode, parents, exist_ok)

    monkeypatch.setattr(os, "open", read_only_open)
    monkeypatch.setattr(Path, "mkdir", read_only_mkdir)


def test_the_identity_is_created_on_the_first_start_and_stored(tmp_path: Path) -> None:
    settings = PeerSettings(tmp_path / "state")
    first, second = lock(settings), lock(settings)
    assert first.identity.node_id == second.identity.node_id
    assert first.identity.certificate == second.identity.certificate
    assert first.folder == tmp_path / "state" / str(NETWORK_ID)
    assert not first.identity.temporary


def test_the_node_id_is_the_hash_of_the_whole_certificate(tmp_path: Path) -> None:
    identity = lock(PeerSettings(tmp_path)).identity
    assert identity.node_id == hash160(identity.certificate)


def test_each_network_has_an_identity_of_its_own(tmp_path: Path) -> None:
    settings = PeerSettings(tmp_path)
    assert lock(settings, 1).identity.node_id != lock(settings, 5).identity.node_id


def test_only_the_owner_can_read_the_key_file(tmp_path: Path) -> None:
    lock(PeerSettings(tmp_path))
    assert (tmp_path / str(NETWORK_ID) / IDENTITY_NAME).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / str(NETWORK_ID)).stat().st_mode & 0o777 == 0o700


def test_signatures_verify_with_the_certificate(tmp_path: Path) -> None:
    identity = lock(PeerSettings(tmp_path)).identity
    assert parse_certificate(identity.certificate).verify_signature(
        b"address", identity.sign(b"address")
    )
    assert not parse_certificate(identity.certificate).verify_signature(
        b"other", identity.sign(b"address")
    )


def test_a_second_daemon_on_the_same_folder_is_refused_with_the_path(tmp_path: Path) -> None:
    settings = PeerSettings(tmp_path)
    with another_daemon(settings) as node_id, pytest.raises(InUse) as refusal:
        lock(settings)
    assert isinstance(refusal.value, StartupError)
    assert str(tmp_path / str(NETWORK_ID)) in str(refusal.value)
    assert refusal.value.pid is not None
    assert f"another daemon (pid {refusal.value.pid})" in str(refusal.value)
    assert lock(settings).identity.node_id.hex() == node_id


def test_two_networks_can_run_at_the_same_time(tmp_path: Path) -> None:
    with another_daemon(PeerSettings(tmp_path)):
        assert lock(PeerSettings(tmp_path), network_id=5).folder == tmp_path / "5"


def test_two_missing_configured_files_are_created(tmp_path: Path) -> None:
    settings = explicit(tmp_path)
    first, second = lock(settings), lock(settings)
    assert first.identity.node_id == second.identity.node_id
    assert (tmp_path / "staker.key").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "data" / str(NETWORK_ID) / IDENTITY_NAME).exists()


def test_the_certificate_names_the_time_of_its_expiry(tmp_path: Path) -> None:
    identity = lock(explicit(tmp_path)).identity
    expected = datetime.now(UTC) + timedelta(days=36_500)
    assert identity.expires_at is not None
    assert abs(identity.expires_at - expected.timestamp()) < 86_400
    assert replace(identity, certificate=b"no certificate").expires_at is None


def test_configured_files_take_precedence_over_the_stored_identity(tmp_path: Path) -> None:
    identity = lock(PeerSettings(tmp_path / "data")).identity
    assert lock(explicit(tmp_path)).identity.node_id != identity.node_id


def test_a_configured_key_serves_one_daemon_for_any_folder(tmp_path: Path) -> None:
    settings = explicit(tmp_path)
    elsewhere = PeerSettings(tmp_path / "other", settings.tls_cert_path, settings.tls_key_path)
    with (
        another_daemon(settings),
        pytest.raises(InUse, match=r"staker\.key is in use.*tls-key-path"),
    ):
        lock(elsewhere)


def test_configured_files_work_on_a_read_only_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = explicit(tmp_path)
    before = lock(settings).identity
    make_read_only(monkeypatch, tmp_path)
    held = lock(PeerSettings(tmp_path / "nowhere", settings.tls_cert_path, settings.tls_key_path))
    assert held.identity.node_id == before.node_id
    assert held.folder is None
    assert not held.identity.temporary


@pytest.mark.parametrize("missing", ["staker.crt", "staker.key"])
def test_half_a_pair_is_an_error_and_is_not_changed(tmp_path: Path, missing: str) -> None:
    settings = explicit(tmp_path)
    lock(settings)
    (tmp_path / missing).unlink()
    with pytest.raises(
        UnusableIdentity, match=rf"^tls-(cert|key)-path: .*{missing} does not exist"
    ):
        lock(settings)
    assert not (tmp_path / missing).exists()


def test_one_path_without_the_other_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="must be given together"):
        lock(PeerSettings(tmp_path, tls_cert_path=tmp_path / "staker.crt"))


def test_certificate_and_key_of_two_pairs_are_an_error(tmp_path: Path) -> None:
    settings = explicit(tmp_path)
    lock(settings)
    (tmp_path / "staker.crt").write_bytes(issue_certificate()[0])
    with pytest.raises(
        UnusableIdentity, match=r"^tls-cert-path: .*crt does not belong to the key in .*staker.key"
    ):
        lock(settings)


@pytest.mark.parametrize(
    "content", [b"", b"junk", b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"]
)
def test_a_damaged_stored_identity_is_an_error_and_is_not_changed(
    tmp_path: Path, content: bytes
) -> None:
    settings = PeerSettings(tmp_path)
    lock(settings)
    path = tmp_path / str(NETWORK_ID) / IDENTITY_NAME
    path.write_bytes(content)
    with pytest.raises(UnusableIdentity, match=rf"^data-dir: .*{IDENTITY_NAME} holds no"):
        lock(settings)
    assert path.read_bytes() == content


def test_an_encrypted_key_is_an_error(tmp_path: Path) -> None:
    settings = explicit(tmp_path)
    lock(settings)
    key = serialization.load_pem_private_key((tmp_path / "staker.key").read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "staker.key").write_bytes(locked)
    with pytest.raises(
        UnusableIdentity, match=r"^tls-key-path: .*staker.key holds no unencrypted private key"
    ):
        lock(settings)


def write_staker(folder: Path, key: rsa.RSAPrivateKey) -> None:
    """Write a key of an operator and its certificate."""
    certificate, key_pem = self_signed(key)
    (folder / "staker.crt").write_bytes(certificate)
    (folder / "staker.key").write_bytes(key_pem)


def test_a_certificate_that_nodes_refuse_is_an_error(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 1024)
    write_staker(tmp_path, key)
    with pytest.raises(
        UnusableIdentity, match=r"^tls-cert-path: .*staker.crt holds a .* every node refuses"
    ):
        lock(explicit(tmp_path))


def test_an_rsa_staker_certificate_can_be_used(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    write_staker(tmp_path, key)
    identity = lock(explicit(tmp_path)).identity
    assert parse_certificate(identity.certificate).verify_signature(
        b"address", identity.sign(b"address")
    )


def test_a_read_only_folder_without_tls_paths_warns_and_gives_a_temporary_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_read_only(monkeypatch, tmp_path)
    with caplog.at_level(logging.WARNING):
        first, second = (
            lock(PeerSettings(tmp_path / "state")),
            lock(PeerSettings(tmp_path / "state")),
        )
    assert first.identity.temporary
    assert first.folder is None
    assert first.identity.node_id != second.identity.node_id
    assert "temporary identity" in caplog.text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("fails", ["mkstemp", "mkdir"])
def test_a_first_start_on_a_full_disk_warns_and_gives_a_temporary_identity(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fails: str,
    number: int,
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile if fails == "mkstemp" else Path, fails, full)
    with caplog.at_level(logging.WARNING):
        held = lock(PeerSettings(tmp_path / "state"))
    assert held.identity.temporary
    assert held.folder is None
    assert "temporary identity" in caplog.text


def test_a_stored_identity_in_a_read_only_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PeerSettings(tmp_path / "state")
    before = lock(settings).identity
    make_read_only(monkeypatch, tmp_path)
    assert lock(settings).identity.node_id == before.node_id


def test_a_data_dir_that_is_a_file_is_an_error_naming_it(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(UnusableFolder, match="state"):
        lock(PeerSettings(tmp_path / "state"))


def test_a_failed_write_leaves_the_old_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
