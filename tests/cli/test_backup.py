"""`warpseal backup` and `restore`: what is restored is what there was, and a bad archive leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import pwd
import shutil
import sqlite3
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.test_store import create_filled_store, in_use
from tests.store.fixtures import store_at
from tests.store.signed import read_messages, write_rows
from tests.store.test_events import new_event
from warpseal.cli.main import main
from warpseal.config.keys import KEYS
from warpseal.peers.data_dir import locked_folder
from warpseal.peers.identity import issue_certificate
from warpseal.store.connection import Connection
from warpseal.store.errors import CursorExpired
from warpseal.store.event_rows import add_events
from warpseal.store.migrate import HEAD
from warpseal.store.schema import UPGRADES
from warpseal.store.url import StoreUrl
from warpseal.usage.database import MetricsDatabase
from warpseal.usage.schema import BUCKETS
from warpseal.usage.settings import UsageSettings
from warpseal.version import __version__

NETWORK = "12345"
Change = Callable[[tarfile.TarInfo, bytes], None]


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG_FILE", *(key.name.upper().replace("-", "_") for key in KEYS)):
        monkeypatch.delenv(f"WARPSEAL_{name}", raising=False)
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data folder of a daemon that does not run."""
    create_filled_store(f"sqlite:///{tmp_path}/data/{NETWORK}/store.db")
    certificate, key = issue_certificate()
    identity = tmp_path / "data" / NETWORK / "identity.pem"
    identity.write_bytes(key + certificate)
    identity.chmod(0o400)
    return tmp_path / "data"


@pytest.fixture
def backup(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    file = tmp_path / "backup.tar"
    assert main(("backup", "--output", str(file), "--data-dir", str(data))) == 0
    capsys.readouterr()
    return file


def names(file: Path) -> list[str]:
    with tarfile.open(file) as archive:
        return archive.getnames()


def read_members(file: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(file) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            yield member, content.read()


def rewritten(
    file: Path, change: Callable[[tarfile.TarInfo, bytes, tarfile.TarFile], None]
) -> bytes:
    """Return the archive with each member added by `change`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for member, content in read_members(file):
            change(member, content, archive)
    return out.getvalue()


def add(archive: tarfile.TarFile, member: tarfile.TarInfo, content: bytes = b"") -> None:
    archive.addfile(member, io.BytesIO(content))


def assert_refused(
    file: Path, target: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Assert that an archive is refused with one sentence and that nothing is left behind."""
    before = sorted(target.parent.rglob("*"))
    capsys.readouterr()
    assert main(("restore", str(file), "--data-dir", str(target))) == 1
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert words in output.err
    assert sorted(target.parent.rglob("*")) == before


def test_a_backup_is_private_and_is_restored_with_content_and_modes(
    tmp_path: Path, data: Path, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert names(backup) == ["backup.json", "store.db", "identity.pem"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "data"]
    restored = tmp_path / "other" / "place"
    assert main(("restore", str(backup), "--data-dir", str(restored))) == 0
    out = capsys.readouterr().out
    assert f"restored the identity and the store with its API keys of network {NETWORK}" in out
    assert "Indexes are not in a backup" in out
    for name, mode in (("store.db", 0o600), ("identity.pem", 0o400)):
        assert stat.S_IMODE((restored / NETWORK / name).stat().st_mode) == mode
    assert (restored / NETWORK / "identity.pem").read_bytes() == (
        data / NETWORK / "identity.pem"
    ).read_bytes()
    before, after = (
        StoreUrl.for_file(folder / NETWORK / "store.db") for folder in (data, restored)
    )
    assert read_messages(after) == read_messages(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (restored, restored / NETWORK)] == [
        0o700
    ] * 2


async def add_event_and_webhook(url: StoreUrl) -> str:
    """Add an event, and a webhook behind it; return the cursor."""
    async with store_at(url.text) as store:
        await store.database.write(lambda connection: add_events(connection, [new_event(1)]))
        cursor = f"{await store.events.cursor_prefix()}1"
        await store.events.exchange_webhooks({"hook": (None, b'{"cursor":"%b"}' % cursor.encode())})
        return cursor


async def read_restored_log(url: StoreUrl, cursor: str) -> tuple[str, bytes]:
    """Return the cursor with which an expired one continues, and the body of the webhook."""
    async with store_at(url.text) as store:
        with pytest.raises(CursorExpired) as error:
            await store.events.parse_cursor("after", cursor)
        webhooks = await store.events.exchange_webhooks()
        return error.value.detail["oldest"], webhooks["hook"]


def test_a_restored_event_log_has_a_new_id_so_that_no_cursor_of_lost_events_skips_new_ones(
    tmp_path: Path, data: Path
) -> None:
    file, restored = tmp_path / "backup.tar", tmp_path / "restored"
    cursor = asyncio.run(add_event_and_webhook(StoreUrl.for_file(data / NETWORK / "store.db")))
    assert main(("backup", "--output", str(file), "--data-dir", str(data))) == 0
    assert main(("restore", str(file), "--data-dir", str(restored))) == 0
    store_url = StoreUrl.for_file(restored / NETWORK / "store.db")
    oldest, webhook = asyncio.run(read_restored_log(store_url, cursor))
    log_id = oldest.partition("-")[0]
    assert log_id != cursor.partition("-")[0]
    assert (oldest, webhook) == (f"{log_id}-0", b'{"cursor":"%b-1"}' % log_id.encode())


def test_a_restore_names_the_user_of_the_files(
    tmp_path: Path, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("restore", str(backup), "--data-dir", str(tmp_path / "other"))) == 0
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert (
        f"The files belong to user {user}: run the daemon as this user." in capsys.readouterr().out
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_files_that_root_restores_belong_to_the_owner_of_the_data_folder(
    tmp_path: Path, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # As the folder of a systemd service, whose user exists while it runs.
    owner, folder = 61_234, tmp_path / "service"
    folder.mkdir(mode=0o700)
    os.chown(folder, owner, owner)
    assert main(("restore", str(backup), "--data-dir", str(folder))) == 0
    assert f"The files belong to user {owner}" in capsys.readouterr().out
    network = folder / NETWORK
    assert {
        path.name: path.stat().st_uid for path in (network, *network.iterdir())
    } == dict.fromkeys((NETWORK, "identity.pem", "store.db", "lock", "store.db.lock"), owner)


def test_a_backup_without_the_nodes_of_the_environment_file_is_written(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nodes with keys are named in the environment of the service, which a shell does not have.
    config, output = tmp_path / "config.json", tmp_path / "backup.tar"
    config.write_text(json.dumps({"data-dir": str(data)}))
    assert main(("backup", "--output", str(output), "--config", str(config))) == 0
    assert names(output) == ["backup.json", "store.db", "identity.pem"]


def test_a_backup_of_a_store_in_use_replaces_an_earlier_backup(
    data: Path, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup.write_bytes(b"an earlier one")
    with in_use(f"sqlite:///{data}/{NETWORK}/store.db"):
        assert main(("backup", "--output", str(backup), "--data-dir", str(data))) == 0
    assert names(backup) == ["backup.json", "store.db", "identity.pem"]
    backup.write_bytes(b"an earlier one")
    shutil.rmtree(data / NETWORK)
    assert (
        main(("backup", "--output", str(backup), "--data-dir", str(data), "--network", NETWORK))
        == 1
    )
    assert "nothing to back up" in capsys.readouterr().err
    assert backup.read_bytes() == b"an earlier one"


async def fill_metrics(file: Path) -> None:
    """Make a metrics database with one row."""
    async with MetricsDatabase(StoreUrl.for_file(file), UsageSettings()) as metrics:
        await metrics.write(lambda connection: connection.run(BUCKETS.insert_text, 0, 7, 0, 0))


@pytest.mark.parametrize("place", [f"data/{NETWORK}/metrics.db", "elsewhere/usage.db"])
def test_the_metrics_database_is_backed_up_and_restored(
    tmp_path: Path, data: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fill_metrics(tmp_path / place))
    config = tmp_path / "config.json"
    config.write_text(
        "{}"
        if place.startswith("data")
        else json.dumps({"metrics-db-url": f"sqlite:///{tmp_path}/{place}"})
    )
    file = tmp_path / "backup.tar"
    arguments = (str(file), "--data-dir", str(data), "--config", str(config), "--network", NETWORK)
    # An earlier version took the file without a flag.
    assert main(("backup", *arguments)) == 0
    assert main(("backup", *arguments, "--output", str(file))) == 2
    assert (
        "the identity and the store with its API keys and the metrics database"
        in capsys.readouterr().out
    )
    assert names(file) == ["backup.json", "store.db", "metrics.db", "identity.pem"]
    shutil.rmtree(data)
    shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)
    (tmp_path / "elsewhere").mkdir()
    assert main(("restore", *arguments)) == 0
    with closing(sqlite3.connect(tmp_path / place)) as restored:
        assert restored.execute("SELECT start FROM usage_buckets").fetchall() == [(7,)]


def test_certificate_and_key_from_outside_of_the_folder_are_restored_where_the_settings_say(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / NETWORK / "identity.pem").unlink()
    certificate, key = issue_certificate()
    (tmp_path / "cert.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "key.pem").chmod(0o440)
    file, target = tmp_path / "backup.tar", tmp_path / "target"
    flags = (
        "--tls-cert-path",
        str(tmp_path / "cert.pem"),
        "--tls-key-path",
        str(tmp_path / "key.pem"),
    )
    assert main(("backup", "--output", str(file), "--data-dir", str(data), *flags)) == 0
    assert names(file) == ["backup.json", "store.db", "tls-key.pem", "tls-cert.pem"]
    assert_refused(file, target, "--tls-key-path", capsys)
    restore = ("restore", str(file), "--data-dir", str(target))
    assert main((*restore, *flags)) == 1
    assert "key.pem exists" in capsys.readouterr().err
    (tmp_path / "secrets").mkdir()
    new = tmp_path / "secrets" / "cert.pem", tmp_path / "secrets" / "key.pem"
    assert main((*restore, "--tls-cert-path", str(new[0]), "--tls-key-path", str(new[1]))) == 0
    assert (new[0].read_bytes(), new[1].read_bytes()) == (certificate, key)
    assert stat.S_IMODE(new[1].stat().st_mode) == 0o440


def test_with_postgresql_only_the_identity_is_backed_up_and_the_command_says_so(
    tmp_path: Path, data: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / NETWORK / "store.db").unlink()
    file = tmp_path / "backup.tar"
    assert (
        main(
            ("backup", "--output", str(file), "--data-dir", str(data), "--store-url", postgres_url)
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "backed up the identity of network 12345" in out
    assert "the API keys in it are not in this backup" in out
    assert "pg_dump" in out
    assert names(file) == ["backup.json", "identity.pem"]
    target = ("--data-dir", str(tmp_path / "target"), "--store-url", postgres_url)
    assert main(("restore", str(file), *target)) == 0
    assert os.listdir(tmp_path / "target" / NETWORK) != []


def test_a_folder_that_is_in_use_or_not_empty_is_refused(
    tmp_path: Path, data: Path, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(backup, data, "is not empty (identity.pem, store.db", capsys)
    with locked_folder(data / NETWORK):
        assert main(("restore", str(backup), "--data-dir", str(data))) == 1
        assert f"is in use by another daemon (pid {os.getpid()})" in capsys.readouterr().err
    empty = tmp_path / "empty" / NETWORK
    with locked_folder(empty):
        assert main(("restore", str(backup), "--data-dir", str(empty.parent))) == 1
        assert "is in use by" in capsys.readouterr().err
    # The locks that a stopped daemon leaves are nothing.
    (empty / "index.lock").write_text("7\n")
    assert sorted(os.listdir(empty)) == ["index.lock", "lock"]
    assert main(("restore", str(backup), "--data-dir", str(empty.parent), "--network", "1")) == 1
    assert "is a backup of network 12345, not of 1" in capsys.readouterr().err
    assert main(("restore", str(backup), "--data-dir", str(empty.parent))) == 0


def test_a_truncated_archive_is_refused(
    tmp_path: Path, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, file = backup.read_bytes(), tmp_path / "bad.tar"
    ends = len(raw.rstrip(b"\0"))
    for size in {
        0,
        1,
        511,
        512,
        1024,
        1500,
        ends // 2,
        ends - 1,
        ends & ~511,
        *range(0, ends, 37 * 512),
    }:
        file.write_bytes(raw[:size])
        assert_refused(file, tmp_path / "target", "nothing was restored", capsys)


def test_an_archive_with_changed_bytes_is_refused_or_restored_as_it_was(
    tmp_path: Path, data: Path, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, file, target = backup.read_bytes(), tmp_path / "bad.tar", tmp_path / "target"
    identity = (data / NETWORK / "identity.pem").read_bytes()
    places = [
        *range(0, 2048, 97),
        raw.index(b"SQLite format"),
        raw.index(b"-----BEGIN") + 40,
        len(raw) // 2,
    ]
    refused = 0
    for place in places:
        file.write_bytes(raw[:place] + bytes([raw[place] ^ 0x20]) + raw[place + 1 :])
        if main(("restore", str(file), "--data-dir", str(target))):
            assert not target.exists()
            refused += 1
        else:
            assert (target / NETWORK / "identity.pem").read_bytes() == identity
            shutil.rmtree(target)
    assert refused > len(places) // 2
    capsys.readouterr()


def hostile_members() -> Iterator[tuple[str, Callable[[tarfile.TarFile], None], str]]:
    def build_member(
        name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = ""
    ) -> tarfile.TarInfo:
        member = tarfile.TarInfo(name)
        member.size, member.type, member.linkname = size, kind, link
        return member

    traversals = ("../evil", "/etc/evil", "sub/../../evil", "store.db/evil", "a" * 300)
    for name in traversals:
        yield (
            f"name {name[:20]}",
            lambda archive, name=name: add(archive, build_member(name, 4), b"evil"),  # type: ignore[misc]
            "no backup has",
        )
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)
    for kind in kinds:
        member = build_member("tls-key.pem", kind=kind, link="/etc/passwd")
        yield f"kind {kind!r}", lambda archive, member=member: add(archive, member), "no backup has"  # type: ignore[misc]
    yield "twice", lambda archive: add(archive, build_member("identity.pem", 4), b"evil"), "twice"
    yield (
        "unlisted",
        lambda archive: add(archive, build_member("tls-key.pem", 4), b"evil"),
        "not those that it lists",
    )


@pytest.mark.parametrize(
    ("member", "words"),
    [case[1:] for case in hostile_members()],
    ids=[c[0] for c in hostile_members()],
)
def test_a_hostile_member_is_refused(
    member: Callable[[tarfile.TarFile], None],
    words: str,
    tmp_path: Path,
    backup: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "bad.tar"
    with tarfile.open(backup, "a") as archive:
        member(archive)
    backup.rename(file)
    assert_refused(file, tmp_path / "target", words, capsys)


def test_giant_members_and_extended_headers_are_refused_without_being_read(
    tmp_path: Path, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, target = tmp_path / "bad.tar", tmp_path / "target"
    for name, words in (("store.db", "truncated"), ("identity.pem", "more than 65536")):
        giant = tarfile.TarInfo(name)
        giant.size = 2**40
        file.write_bytes(giant.tobuf(tarfile.GNU_FORMAT) + backup.read_bytes())
        assert_refused(file, target, words, capsys)
    sparse = tarfile.TarInfo("store.db")
    sparse.type = tarfile.GNUTYPE_SPARSE
    extended = tarfile.TarInfo("././@PaxHeader")
    extended.type, extended.size = tarfile.XHDTYPE, 2**40
    for member in (sparse, extended):
        file.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + backup.read_bytes())
        assert_refused(file, target, "no backup has", capsys)


def change_manifest(backup: Path, file: Path, **fields: object) -> None:
    def change(member: tarfile.TarInfo, content: bytes, archive: tarfile.TarFile) -> None:
        if member.name == "backup.json":
            content = json.dumps(json.loads(content) | fields).encode()
            member.size = len(content)
        add(archive, member, content)

    file.write_bytes(rewritten(backup, change))


def test_a_deeply_nested_description_is_refused(
    tmp_path: Path, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def nest(member: tarfile.TarInfo, content: bytes, archive: tarfile.TarFile) -> None:
        if member.name == "backup.json":
            content = content.rstrip()[:-1] + b',"more":' + b"[" * 30_000 + b"]" * 30_000 + b"}"
            member.size = len(content)
        add(archive, member, content)

    file = tmp_path / "bad.tar"
    file.write_bytes(rewritten(backup, nest))
    assert_refused(file, tmp_path / "target", "backup.json is damaged", capsys)


def test_a_backup_of_another_format_is_refused(
    tmp_path: Path, backup: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.tar"
    for fields, words in (
        ({"version": 2}, "it is of version 2"),
        ({"networkId": 0}, "0 is no network id"),
        ({"networkId": "../x"}, "backup.json is damaged"),
        ({"files": {}}, "not those that it lists"),
        ({"createdAt": "2026-11-23T12:00:00\x1b[2JZ"}, "backup.json is damaged"),
    ):
        change_manifest(backup, file, **fields)
        assert_refused(file, tmp_path / "target", words, capsys)
    file.write_bytes(b"\x1f\x8b" + bytes(2000))
    assert_refused(file, tmp_path / "target", "no archive of `warpseal backup`", capsys)
    assert_refused(tmp_path / "missing.tar", tmp_path / "target", "cannot be read", capsys)


def test_the_store_of_a_newer_program_is_refused_with_both_versions(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = StoreUrl.for_file(data / NETWORK / "store.db")

    def make_newer(connection: Connection) -> None:
        connection.run(UPGRADES.insert_text, "0999", "9.9.9", 0.0)
        connection.run("UPDATE alembic_version SET version_num = '0999'")

    write_rows(place, make_newer)
    file = tmp_path / "backup.tar"
    assert main(("backup", "--output", str(file), "--data-dir", str(data))) == 0
    capsys.readouterr()
    words = (
        f"written by warpseal 9.9.9 (schema version 0999), and this is warpseal {__version__}"
        f" (schema version {HEAD})"
    )
    assert_refused(file, tmp_path / "target", words, capsys)


def test_a_damaged_store_is_not_backed_up(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / NETWORK / "store.db"
    raw = bytearray(path.read_bytes())
    raw[4096 * 2 : 4096 * 6] = b"\xff" * (4096 * 4)
    path.write_bytes(raw)
    file = tmp_path / "backup.tar"
    assert main(("backup", "--output", str(file), "--data-dir", str(data))) == 1
    assert "it is damaged" in capsys.readouterr().err
    assert not file.exists()
