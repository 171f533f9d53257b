"""`warpseal store ...`, over both kinds of database, alone and while another process uses the
store.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.eventually import TIMEOUT_S
from tests.store.postgres import PostgresServer
from tests.store.signed import KEYS as SIGNER_KEYS
from tests.store.signed import (
    complete_writer,
    create_store,
    message,
    message_writer,
    read_messages,
    share,
    write_rows,
    wrong_share,
)
from warpseal.cli.main import main
from warpseal.config.keys import KEYS
from warpseal.store.access import open_exclusive
from warpseal.store.engine import create_private
from warpseal.store.migrate import HEAD, MIGRATIONS, Migrations, upgrade_all
from warpseal.store.url import StoreUrl
from warpseal.store.values import StoredShare
from warpseal.warp.message import UnsignedMessage

FIRST, SECOND = message(1), message(2)
NODE = {"base-url": "http://127.0.0.1:9650"}
# Opens a store as a daemon does, says so, and holds it.
HOLDER = """
import asyncio, sys
from warpseal.store.settings import StoreSettings
from warpseal.store.store import open_store

async def hold() -> None:
    async with open_store(StoreSettings(url=sys.argv[1]), None):
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(hold())
"""


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG_FILE", *(key.name.upper().replace("-", "_") for key in KEYS)):
        monkeypatch.delenv(f"WARPSEAL_{name}", raising=False)
        monkeypatch.delenv(name, raising=False)


def create_filled_store(url: str) -> StoreUrl:
    return create_store(
        url,
        complete_writer(FIRST),
        message_writer(SECOND, [share(SECOND, 2)], at_unix_s=1_700_000_000),
    )


def store(*arguments: str) -> int:
    """Return the exit code of `warpseal store ...`."""
    return main(("store", *arguments))


def export_records(
    capfdbinary: pytest.CaptureFixture[bytes], *arguments: str
) -> list[dict[str, object]]:
    assert store("export", *arguments) == 0
    return [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]


@contextmanager
def in_use(url: str) -> Iterator[int]:
    """Let another process hold a store; yields its pid."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process.pid
        finally:
            process.kill()


def test_info_shows_the_contents_and_no_user_of_an_idle_store(
    any_store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    create_filled_store(any_store_url)
    assert store("info", "--store-url", any_store_url) == 0
    lines = dict(line.split(":", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["store"].strip() == any_store_url
    assert lines["schemaVersion"].strip() == HEAD
    assert lines["usedBy"].strip() == "none"
    assert (
        lines["messages"].strip(),
        lines["messagesForEver"].strip(),
        lines["shares"].strip(),
    ) == ("2", "1", "3")
    assert store("info", "--store-url", any_store_url, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["sharesVerified"], document["signatures"], document["usedBy"]) == (2, 1, [])


def test_an_exported_file_is_imported_into_another_store(
    any_store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file, second = (
        create_filled_store(any_store_url),
        tmp_path / "out.jsonl",
        f"sqlite:///{tmp_path}/second.db",
    )
    assert store("export", "--store-url", any_store_url, "--output", str(file)) == 0
    assert "exported 2 messages, 1 signed messages, 3 shares" in capsys.readouterr().err
    target = create_store(second)
    assert store("import", str(file), "--store-url", second) == 0
    assert "imported 2 messages, 1 signed messages, 3 shares" in capsys.readouterr().err
    assert read_messages(target).keys() == read_messages(place).keys()
    assert store("check", "--store-url", second) == 0
    assert "every signature is valid" in capsys.readouterr().out


def test_an_export_to_standard_output_may_be_partial(
    any_store_url: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    create_filled_store(any_store_url)
    where = ("--store-url", any_store_url)
    assert [record.get("type") for record in export_records(capfdbinary, *where)][:2] == [
        None,
        "message",
    ]
    assert len(export_records(capfdbinary, *where, "--message-id", "0x" + SECOND.id.hex())) == 3
    assert len(export_records(capfdbinary, *where, "--for-ever")) == 5
    for since in ("1d", "2024-01-01", "2024-01-01T00:00:00+02:00"):
        assert len(export_records(capfdbinary, *where, "--since", since)) == 5
    assert len(export_records(capfdbinary, *where, "--since", "2020-01-01")) == 7


def test_an_import_from_standard_input_names_bad_lines_and_ends_with_1(
    any_store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = create_store(any_store_url)
    good, wrong = share(FIRST, 0), wrong_share(1)
    damaged = StoredShare(SIGNER_KEYS[2], bytes(95), verified=False)
    lines = [{"format": "warpseal-store", "version": 1}] + [
        {
            "type": "share",
            "unsignedMessage": FIRST.raw.hex(),
            "publicKey": item.public_key.hex(),
            "signature": item.signature.hex(),
        }
        for item in (damaged, wrong, good)
    ]
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(map(json.dumps, lines)).encode()))
    )
    assert store("import", "-", "--store-url", any_store_url, "--for-ever") == 1
    err = capsys.readouterr().err
    assert "line 2: signature: 95 bytes, not 96" in err
    assert "imported 1 messages, 0 signed messages, 2 shares; 1 lines were skipped" in err
    assert "no signature was verified: `warpseal store check` does that" in err
    assert read_messages(place) == {
        FIRST.id: (
            True,
            {(item.public_key, item.signature, False) for item in (wrong, good)},
            set(),
        )
    }
    assert store("check", "--store-url", any_store_url) == 0
    out = capsys.readouterr().out
    assert f"the unverified share of key 0x{wrong.public_key.hex()} is invalid\n" in out
    assert "1 unverified shares are invalid; the daemon never uses them\n" in out


def test_while_a_daemon_runs_reads_work_and_writes_are_refused_with_its_pid(
    any_store_url: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    create_filled_store(any_store_url)
    where = ("--store-url", any_store_url)
    file = tmp_path / "empty.jsonl"
    file.write_text('{"format":"warpseal-store","version":1}\n')
    with in_use(any_store_url) as pid:
        assert store("info", *where) == 0
        assert str(pid).encode() in capfdbinary.readouterr().out
        assert len(export_records(capfdbinary, *where)) == 7
        assert store("check", *where) == 0
        assert store("upgrade", "--if-needed", *where) == 0
        for refused in (("upgrade",), ("import", str(file))):
            assert store(*refused, *where) == 1
            assert f"pid {pid}".encode() in capfdbinary.readouterr().err.replace(
                b"process ", b"pid "
            )
    assert store("import", str(file), *where) == 0
    assert store("info", *where) == 0
    assert re.search(rb"usedBy: +none\n", capfdbinary.readouterr().out)


def test_the_write_ahead_log_of_a_killed_daemon_is_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    writer = HOLDER.replace(
        'print("held", flush=True)',
        "from tests.store.signed import FIRST_SIGNED; message, signed = FIRST_SIGNED;"
        'await store.archive.store_signature(message, signed); print("held", flush=True)',
    ).replace("None):", "None) as store:")
    with subprocess.Popen(
        [sys.executable, "-c", writer, url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.kill()
    assert (tmp_path / "store.db-wal").stat().st_size > 0
    assert store("info", "--store-url", url) == 0
    assert [
        len(signatures) for _, _, signatures in read_messages(StoreUrl.parse(url)).values()
    ] == [1]


def test_an_older_store_must_be_upgraded_before_use(
    any_store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = StoreUrl.parse(any_store_url)
    if place.path is not None:
        create_private(place.path)
    with open_exclusive(place) as engine:
        upgrade_all(
            engine, place.redacted, lambda version, done: None, Migrations(MIGRATIONS.versions[:1])
        )
    where, file = ("--store-url", any_store_url), tmp_path / "empty.jsonl"
    file.write_text('{"format":"warpseal-store","version":1}\n')
    advice = (
        f"needs {HEAD}: start the daemon, which upgrades it, or run `warpseal store upgrade` first;"
        " a copy"
    )
    for needing in (("export",), ("check",), ("import", str(file))):
        assert store(*needing, *where) == 1
        assert "warpseal store upgrade" in capsys.readouterr().err
    assert store("info", *where) == 0
    assert advice in (info := capsys.readouterr().out)
    assert f".before-{HEAD}, stays beside it until a daemon has served with the new one.\n" in info
    assert store("upgrade", *where) == 0
    output = capsys.readouterr()
    backup_notice = (
        ""
        if place.path is None
        else f"{place.path}.before-{HEAD} has the store as it was before; the next daemon"
    )
    assert backup_notice in output.out
    assert f"the store has schema version {HEAD} (before: 0001)" in output.out
    assert f"upgraded to version {HEAD}\n" in output.err
    assert store("upgrade", *where) == 0
    assert f"{HEAD} already" in capsys.readouterr().out
    assert store("check", *where) == 0


def test_check_reports_damage_and_exits_with_1(
    any_store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = create_filled_store(any_store_url)
    write_rows(place, lambda connection: connection.run("UPDATE messages SET candidates = 9"))
    assert store("check", "--store-url", any_store_url) == 1
    out = capsys.readouterr().out
    assert out.count("the number of its unverified shares is not the counted one") == 2
    assert "2 faults: see above" in out


def test_store_commands_find_the_store_as_the_daemon_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, other = tmp_path / "data", tmp_path / "other.db"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"p-chain-api": NODE, "info-api": NODE, "data-dir": str(data)}))
    create_filled_store(f"sqlite:///{data}/5/store.db")
    create_filled_store(f"sqlite:///{other}")

    def read_store_url(*arguments: str) -> str:
        assert store("info", "--json", *arguments) == 0
        text: str = json.loads(capsys.readouterr().out)["store"]
        return text

    assert read_store_url("--data-dir", str(data)).endswith("/data/5/store.db")
    assert read_store_url("--config", str(config)).endswith("/data/5/store.db")
    assert read_store_url("--config", str(config), "--store-url", f"sqlite:///{other}").endswith(
        "other.db"
    )
    monkeypatch.setenv("WARPSEAL_STORE_URL", f"sqlite:///{other}")
    assert read_store_url().endswith("other.db")
    assert read_store_url("--config", str(config)).endswith("other.db")
    monkeypatch.delenv("WARPSEAL_STORE_URL")
    monkeypatch.setenv("WARPSEAL_DATA_DIR", str(data))
    assert read_store_url().endswith("/data/5/store.db")
    create_filled_store(f"sqlite:///{data}/1/store.db")
    assert store("info") == 1
    assert "stores of networks 1, 5" in capsys.readouterr().err
    assert read_store_url("--network", "1").endswith("/data/1/store.db")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:////nowhere/store.db", "there is no such file"),
        ("off", "store-url is off"),
        ("mysql://x", 'expected "sqlite:///PATH"'),
        ("postgresql://user:s3cr3t@127.0.0.1:1/name", "cannot be used"),
    ],
)
def test_a_missing_store_is_reported_without_its_secrets(
    url: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (("info",), ("export",), ("check",), ("upgrade",)):
        assert store(*command, "--store-url", url) == 1
        err = capsys.readouterr().err
        assert words in err
        assert "s3cr3t" not in err


def test_a_data_dir_without_a_store_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store("info", "--data-dir", str(tmp_path)) == 1
    assert f"there is no store below {tmp_path}" in capsys.readouterr().err


def test_a_file_of_another_format_is_not_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    create_store(url)
    file = tmp_path / "other.json"
    file.write_text("{}")
    assert store("import", str(file), "--store-url", url) == 1
    assert "not such a file" in capsys.readouterr().err
    assert store("import", str(tmp_path / "missing"), "--store-url", url) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_a_failed_export_keeps_the_previous_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = create_filled_store(f"sqlite:///{tmp_path}/store.db")
    file = tmp_path / "backup.jsonl"
    file.write_text("the last backup")
    write_rows(place, lambda connection: connection.run("UPDATE messages SET raw = ?", b"damaged"))
    assert store("export", "--store-url", place.text, "--output", str(file)) == 1
    assert "`warpseal store check` shows more" in capsys.readouterr().err
    assert file.read_text() == "the last backup"
    assert sorted(path.name for path in tmp_path.glob("*backup*")) == ["backup.jsonl"]


def test_an_unresponsive_server_ends_a_command_with_an_error(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    create_filled_store(postgres_url)
    with postgres_server.paused():
        command = (sys.executable, "-m", "warpseal", "store", "info", "--store-url", postgres_url)
        # The command ends by itself, or this raises TimeoutExpired.
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    assert (ended.returncode, "cannot be used" in ended.stderr) == (1, True)
    with postgres_server.stopped():
        assert store("upgrade", "--store-url", postgres_url) == 1
    assert store("info", "--store-url", postgres_url) == 0


@pytest.mark.parametrize(
    "arguments", [("export", "--since", "soon"), ("export", "--message-id", "x"), ("import",)]
)
def test_a_usage_error_exits_with_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert store(*arguments) == 2
    assert f"usage: warpseal store {arguments[0]}" in capsys.readouterr().err


@contextmanager
def node_of(network_id: int) -> Iterator[dict[str, str]]:
    """Serve the network id of a node; yields the part of a config file that names it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            call_id = json.loads(self.rfile.read(int(self.headers["content-length"])))["id"]
            body = json.dumps(
                {"jsonrpc": "2.0", "id": call_id, "result": {"networkID": str(network_id)}}
            ).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield {"base-url": f"http://127.0.0.1:{server.server_port}"}
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """An export of messages of network 12345."""
    create_filled_store(f"sqlite:///{tmp_path}/source/store.db")
    file = tmp_path / "exported.jsonl"
    assert (
        store(
            "export", "--store-url", f"sqlite:///{tmp_path}/source/store.db", "--output", str(file)
        )
        == 0
    )
    return file


def test_commands_take_the_network_id_of_the_configured_node(
    tmp_path: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, config = tmp_path / "data", tmp_path / "config.json"
    for network in (1, 12345):
        create_store(f"sqlite:///{data}/{network}/store.db")
    with node_of(12345) as node:
        config.write_text(
            json.dumps({"p-chain-api": node, "info-api": node, "data-dir": str(data)})
        )
        where = ("--config", str(config))
        assert store("import", str(exported), *where) == 0
        for command in ("check", "upgrade", "export"):
            capsys.readouterr()
            assert store(command, *where) == 0
        assert "exported 2 messages" in capsys.readouterr().err
        assert store("info", "--json", *where, "--network", "1") == 0
        assert json.loads(capsys.readouterr().out)["store"].endswith("/data/1/store.db")
        shutil.rmtree(data / "12345")
        assert store("check", *where) == 1
        assert "there is no store of network 12345 below" in capsys.readouterr().err
    # The node is down now: the only store is used, and the command says what it does not know.
    assert store("check", *where) == 0
    assert (
        "the network id is not known (no usable answer for info.getNetworkID"
        in capsys.readouterr().err
    )


def test_an_import_into_an_empty_folder_makes_the_store(
    tmp_path: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    assert store("import", str(exported), "--data-dir", str(data)) == 1
    assert "name another --data-dir, a --store-url, or the --network" in capsys.readouterr().err
    assert not data.exists()
    assert store("import", str(exported), "--data-dir", str(data), "--network", "12345") == 0
    file = data / "12345" / "store.db"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]
    assert len(read_messages(StoreUrl.for_file(file))) == 2
    assert store("check", "--data-dir", str(data)) == 0
    (tmp_path / "new").mkdir()
    assert store("import", str(exported), "--store-url", f"sqlite:///{tmp_path}/new/store.db") == 0


def test_an_import_makes_the_tables_of_an_empty_database(exported: Path, postgres_url: str) -> None:
    assert store("import", str(exported), "--store-url", postgres_url) == 0
    assert len(read_messages(StoreUrl.parse(postgres_url))) == 2


def test_an_import_into_the_store_of_another_network_is_refused(
    tmp_path: Path, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, url = tmp_path / "data", f"sqlite:///{tmp_path}/5/store.db"
    other = UnsignedMessage.build(5, FIRST.source_chain_id, b"payload")
    create_store(f"sqlite:///{data}/1/store.db")
    create_store(url, message_writer(other, [share(other, 0)]))
    unnamed = tmp_path / "unnamed.jsonl"
    first, *others = exported.read_text().splitlines(keepends=True)
    unnamed.write_text(first.replace(',"networkId":12345', "") + "".join(others))
    for file in (exported, unnamed):
        for where, network in (
            (("--data-dir", str(data)), 1),
            (("--data-dir", str(data), "--network", "7"), 7),
            (("--store-url", url), 5),
        ):
            capsys.readouterr()
            assert store("import", str(file), *where) == 1
            words = (
                f"the file has messages of network 12345, and the store is of network {network}:"
                " import it into"
            )
            err = capsys.readouterr().err
            assert (err.count("\n"), words in err) == (1, True), err
    assert store("import", str(exported), "--store-url", url, "--network", "12345") == 1
    assert "has messages of network 5, not of network 12345" in capsys.readouterr().err
    assert [path.name for path in data.iterdir()] == ["1"]
    assert [
        len(read_messages(StoreUrl.parse(place))) for place in (f"sqlite:///{data}/1/store.db", url)
    ] == [0, 1]
