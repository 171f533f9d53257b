"""The command: help for everything, the version, exit codes, and config check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warpseal.cli.main import COMMANDS, main
from warpseal.config.keys import KEYS
from warpseal.runtime.settings import Group
from warpseal.version import describe_version
from warpseal.warp.ids import ChainID, id_text

NODE = {
    "base-url": "https://user:s3cr3t@node.example:9650/s3cr3t-path",
    "query-parameters": {"token": "s3cr3t-token"},
}
HELP_WIDTH = 100
LEAST = {"p-chain-api": NODE, "info-api": [NODE, {"base-url": "http://127.0.0.1:9650"}]}


def write(folder: Path, content: Any) -> str:
    file = folder / "config.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


def exit_code(*arguments: str) -> int:
    """Return the exit code of a command, however it ends."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in KEYS:
        bare = key.name.upper().replace("-", "_")
        monkeypatch.delenv(f"WARPSEAL_{bare}", raising=False)
        monkeypatch.delenv(bare, raising=False)


def test_version_prints_the_version_and_the_revision(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == describe_version() + "\n"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_every_command_and_what_it_does(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 0
    output = capsys.readouterr().out
    for words, (_, what) in COMMANDS.items():
        assert words[0] in output
        assert len(words) > 1 or what.split()[0] in output
    assert output.splitlines()[0] == "usage: warpseal COMMAND [ARGUMENT ...]"
    assert "First steps:" in output.splitlines()[2]
    assert "warpseal demo " in output.splitlines()[4]


@pytest.mark.parametrize("words", list(COMMANDS))
def test_every_command_and_every_flag_has_a_help_text_of_a_terminals_width(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(HELP_WIDTH))
    assert exit_code(*words, "--help") == 0
    output = capsys.readouterr().out
    assert " ".join(("warpseal", *words)) in output
    lines = output.splitlines()
    assert [line for line in lines if len(line) > HELP_WIDTH] == []
    for place, line in enumerate(lines):
        words_of_line = line.split()
        if line.startswith("  --") and len(words_of_line) < 3:
            # The explanation of a long flag stands on the next line.
            assert lines[place + 1].startswith("     "), line


@pytest.mark.parametrize(
    ("words", "usage", "suggestion"),
    [
        (("stat",), "usage: warpseal COMMAND", "did you mean status?"),
        (("store", "inf"), "usage: warpseal store ", "did you mean info?"),
        (
            ("message", "verify", "00", "--destinaton", "P"),
            "usage: warpseal message verify ",
            "mean --destination?",
        ),
        (("forecast", "--jsn"), "usage: warpseal forecast ", "did you mean --json?"),
        (("serve", "--confg", "x"), "usage: warpseal serve ", "did you mean --config?"),
    ],
    ids=" ".join,
)
def test_a_mistyped_word_names_the_nearest_with_the_usage_of_its_command(
    words: tuple[str, ...], usage: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith(usage)
    assert error.rstrip().endswith(suggestion)


def flags_by_group(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[str]]:
    """Return the flags in the help of a command by the title of their group."""
    assert exit_code(*words, "--help") == 0
    groups: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            flags = groups.setdefault(line.removesuffix(":"), [])
        elif line.startswith("  --"):
            flags.append(line.split()[0].removeprefix("--").rstrip(","))
    return groups


def test_the_help_of_serve_has_every_key_that_is_no_secret_in_its_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    groups = flags_by_group(capsys, "serve")
    for group in Group:
        keys = [key for key in KEYS if key.setting.group is group]
        assert groups[group] == [key.name for key in keys if not key.setting.is_secret]


def test_the_help_of_serve_begins_with_the_first_steps(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert exit_code("serve", "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "usage: warpseal serve [--config FILE] [--KEY VALUE ...]",
        "",
        "Run the daemon. First steps:",
    ]
    (config,) = (line for line in lines if line.lstrip().startswith("{"))
    assert exit_code("config", "check", write(tmp_path, config)) == 0


@pytest.mark.parametrize(
    ("words", "own", "foreign"),
    [
        (
            "doctor",
            {"p-chain-api", "data-dir", "tracked-subnet-ids", "wait"},
            {"api-port", "index-chains", "compat"},
        ),
        (
            "index run",
            {"p-chain-api", "data-dir", "index-chains", "log-level", "ends-with-stdin"},
            {"api-port", "store-url"},
        ),
        (
            "index status",
            {"data-dir", "index-url", "network"},
            {"genesis-file", "log-level", "api-port"},
        ),
        (
            "index verify",
            {"genesis-file", "index-url", "sample"},
            {"index-low-priority", "log-level", "api-port"},
        ),
        ("config check", set[str](), {"api-port", "data-dir"}),
        ("store info", {"store-url", "data-dir"}, {"api-port"}),
        ("health", {"url", "data-dir"}, {"api-port"}),
    ],
)
def test_the_help_of_other_commands_has_only_the_settings_that_they_read(
    words: str, own: set[str], foreign: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    groups = flags_by_group(capsys, *words.split())
    listed_flags = {flag for flags in groups.values() for flag in flags}
    assert own <= listed_flags
    assert not foreign & listed_flags
    assert all(groups[group] for group in Group if group in groups)


@pytest.mark.parametrize(
    "arguments",
    [("sereve",), ("config",), ("serve", "--no-such-flag"), ("doctor", "--wait", "long")],
)
def test_a_usage_error_exits_with_2_and_prints_the_usage(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    assert "usage: warpseal" in capsys.readouterr().err


def test_config_check_shows_each_value_and_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPSEAL_METRICS_PORT", "7001")
    monkeypatch.setenv("LOG_LEVEL", "debug")
    chain = {
        "blockchain-id": id_text(bytes(31) + b"1"),
        "rpc": ["https://node.example/rpc"],
        "ws": ["wss://node.example/ws?key=s3cr3t"],
        "deny-methods": ["debug_*"],
    }
    file = write(tmp_path, {**LEAST, "api-port": 7000, "evm-chains": [chain]})
    assert exit_code("config", "check", file) == 0
    output = capsys.readouterr().out
    rows = {line.split()[0]: line for line in output.splitlines() if line.startswith("  ")}
    assert set(rows) == {key.name for key in KEYS}
    values = {
        name: json.JSONDecoder().raw_decode(row.split(maxsplit=1)[1])[0]
        for name, row in rows.items()
    }
    assert (values["api-port"], values["metrics-port"], values["log-level"]) == (
        7000,
        7001,
        "debug",
    )
    assert rows["api-port"].endswith(f" file {file}")
    assert rows["metrics-port"].endswith(" environment WARPSEAL_METRICS_PORT")
    assert rows["log-level"].endswith(" environment LOG_LEVEL")
    assert rows["signature-cache-size"].endswith(" default")
    assert values["p-chain-api"] == ["https://node.example:9650"]
    assert (values["log-dir"], values["index-from"], values["public-page"]) == (None, {}, True)
    assert (values["advertised-version"], values["node-timeout-seconds"]) == (None, 5)
    assert isinstance(values["data-dir"], str)
    # The paths of nodes may contain keys.
    assert values["evm-chains"] == [
        {
            **chain,
            "rpc": ["https://node.example:443"],
            "ws": ["wss://node.example:443"],
            "deny-methods": ["debug_*"],
        }
    ]
    assert "s3cr3t" not in output


def test_config_check_takes_the_flags_of_serve_and_names_where_each_error_came_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRICS_PORT", "none")
    monkeypatch.setenv("WARPSEAL_API_PROT", "7000")
    file = write(tmp_path, {**LEAST, "p-chain-api": "http://127.0.0.1:9650/ext/bc/P"})
    assert exit_code("config", "check", file, "--log-level", "loud") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the configuration has 4 faults:"
    assert lines[1].startswith("  p-chain-api: ends in the path of an API, /ext/bc/P,")
    assert lines[1].endswith(f"use http://127.0.0.1:9650 (file {file})")
    assert lines[2] == "  metrics-port: expected a number, found 'none' (environment METRICS_PORT)"
    assert lines[3].startswith("  log-level: ")
    assert lines[3].endswith("(flag --log-level)")
    assert lines[4].endswith("did you mean WARPSEAL_API_PORT?")


def test_config_check_reads_the_file_that_serve_would_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, {**LEAST, "api-port": 7000})
    assert exit_code("config", "check", "--config", file) == 0
    assert f"file {file}" in capsys.readouterr().out
    assert exit_code("config", "check") == 1
    assert "p-chain-api: missing" in capsys.readouterr().out
    monkeypatch.setenv("WARPSEAL_CONFIG_FILE", file)
    assert exit_code("config", "check") == 0
    assert f"file {file}" in capsys.readouterr().out


def test_config_check_says_that_a_variable_of_kubernetes_is_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_PORT", "tcp://10.0.0.1:80")
    assert exit_code("config", "check", write(tmp_path, LEAST)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("note: API_PORT is ignored: Kubernetes sets it")
    assert next(line for line in lines if line.startswith("  api-port ")).endswith("default")


def test_config_check_lists_all_errors_with_their_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {
        "p-chain-api": {"base-url": "ftp://x"},
        "api-port": 70000,
        "log-levle": "info",
        "tracked-subnet-ids": ["11111111111111111111111111111111LpoYY", "nonsense"],
    }
    assert exit_code("config", "check", write(tmp_path, wrong)) == 1
    output = capsys.readouterr().out
    assert "5 faults" in output
    for path in (
        "p-chain-api.base-url",
        "info-api",
        "api-port",
        "log-levle",
        "tracked-subnet-ids[1]",
    ):
        assert f"\n  {path}: " in output
    assert "did you mean log-level?" in output


def test_only_settings_that_are_numbers_are_shown_as_one() -> None:
    numbers = [key for key in KEYS if key.setting.metavar == "N"]
    assert "validator-sets" not in [key.name for key in numbers]
    assert all(isinstance(key.setting.default, int) for key in numbers)


def test_config_check_names_every_file_that_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = {
        "blockchain-id": "0x" + "07" * 32,
        "rpc": ["http://x"],
        "upgrade-file": "/no/upgrade.json",
    }
    keys = {
        "genesis-file": "/no/genesis.json",
        "chain-aliases-file": str(tmp_path / "aliases.json"),
        "grpc-tls-file": "/no/tls.pem",
        "tls-cert-path": write(tmp_path, ""),
        "tls-key-path": "/no/key.pem",
        "evm-chains": [chain],
        "store-url": "postgresql://u@h/d?sslmode=verify-full&sslrootcert=/no/ca.pem&sslcert=/no/cert.pem",
    }
    file = str(tmp_path / "config.json")
    Path(file).write_text(json.dumps({**LEAST, **keys}))
    assert exit_code("config", "check", file, "--api-port", "70000") == 1
    output = capsys.readouterr().out
    assert "the configuration has 8 faults" in output
    assert f"chain-aliases-file: there is no file {tmp_path}/aliases.json (file {file})" in output
    for name, missing in (
        ("genesis-file", "/no/genesis.json"),
        ("grpc-tls-file", "/no/tls.pem"),
        ("tls-key-path", "/no/key.pem"),
        ("evm-chains[0].upgrade-file", "/no/upgrade.json"),
        ("store-url[sslrootcert]", "/no/ca.pem"),
        ("store-url[sslcert]", "/no/cert.pem"),
    ):
        assert f"{name}: there is no file {missing} (file {file})" in output
    # The daemon creates a certificate and its key, and none of the other files.
    pair = {
        "tls-cert-path": "/no/cert.pem",
        "tls-key-path": "/no/key.pem",
        "store-url": keys["store-url"][:19],
    }
    assert exit_code("config", "check", write(tmp_path, {**LEAST, **pair})) == 0


@pytest.mark.parametrize("command", ["status", "health", "forecast", "block list", "icm list"])
@pytest.mark.parametrize(
    ("url", "words"),
    [
        (
            "localhost:8080",
            "expected http:// or https:// and a host, found 'localhost:8080': write http://localhost",
        ),
        ("ftp://x", "expected http:// or https:// and a host"),
        ("http:///status", "expected http:// or https:// and a host"),
    ],
)
def test_a_wrong_url_of_a_daemon_is_refused_in_the_words_of_config_check(
    command: str, url: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*command.split(), "--url", url) == 2
    assert f"argument --url: {words}" in capsys.readouterr().err
    assert exit_code("config", "check", write(tmp_path, {**LEAST, "info-api": url})) == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["~nobodyx/d", "a\0b", "a\ud800b"])
@pytest.mark.parametrize("key", ["data-dir", "chain-aliases-file", "store-url"])
def test_a_path_that_cannot_exist_is_an_error_of_its_key(
    key: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = f"sqlite:///{folder}" if key == "store-url" else folder
    file = write(tmp_path, {**LEAST, key: value})
    assert exit_code("config", "check", file) == 1
    assert f"  {key}: " in capsys.readouterr().out
    for command in (("serve",), ("backup", "--output", str(tmp_path / "backup"))):
        assert exit_code(*command, "--config", file) == 1


def test_a_user_without_a_home_folder_is_asked_for_a_data_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    # As in a container that runs as a user without an entry.
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    file = write(tmp_path, LEAST)
    assert exit_code("config", "check", file) == 1
    assert capsys.readouterr().err.startswith("warpseal: data-dir: this user has no home folder")
    assert exit_code("config", "check", file, "--data-dir", str(tmp_path)) == 0


@pytest.mark.parametrize(
    ("content", "words"), [("{", "is not JSON"), ("[]", "JSON object"), (None, "cannot be read")]
)
def test_config_check_reports_a_missing_or_malformed_file(
    content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "missing.json") if content is None else write(tmp_path, content)
    assert exit_code("config", "check", file) == 1
    output = capsys.readouterr().out
    assert words in output
    assert file in output


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_an_invalid_config_ends_every_command_with_1_without_a_traceback(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(command, "--config", write(tmp_path, {"api-port": "x"})) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("warpseal: the configuration has 3 faults")
    assert "api-port" in errors


def test_config_file_as_the_first_flag_means_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "missing.json")
    for arguments in (
        ("--config-file", file),
        (f"--config-file={file}",),
        ("--api-port", "1", "--config", file),
    ):
        assert exit_code(*arguments) == 1
        assert file in capsys.readouterr().err


def test_without_any_config_the_missing_keys_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("serve") == 1
    errors = capsys.readouterr().err
    assert "p-chain-api: missing" in errors
    assert "info-api: missing" in errors


def test_an_impossible_simulated_network_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("simnet", "--validators", "3", "--behave", "7:wrong") == 1
    assert "there is no validator 7" in capsys.readouterr().err


def test_config_check_names_the_genesis_or_upgrade_file_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usable, listed, genesis = (
        tmp_path / "usable.json",
        tmp_path / "listed.json",
        tmp_path / "genesis",
    )
    usable.write_text('{"PrecompileUpgrades":[]}')
    listed.write_text("[]")
    genesis.write_text("no genesis")
    files = (usable, listed, tmp_path / "none.json")
    chains = [
        {
            "blockchain-id": id_text(ChainID(bytes([number]) * 32)),
            "rpc": [NODE],
            "upgrade-file": str(file),
        }
        for number, file in enumerate(files, 1)
    ]
    file = write(tmp_path, {**LEAST, "evm-chains": chains, "genesis-file": str(genesis)})
    assert exit_code("config", "check", file) == 1
    missing = f"evm-chains[2].upgrade-file: there is no file {files[2]}"
    assert missing in capsys.readouterr().out
    file = write(tmp_path, {**LEAST, "evm-chains": chains[:2], "genesis-file": str(genesis)})
    assert exit_code("config", "check", file) == 1
    of_genesis, of_listed = capsys.readouterr().out.splitlines()
    assert of_genesis.startswith(f"genesis-file {genesis} is no P-Chain genesis: ")
    assert of_listed.startswith(
        f"evm-chains[1].upgrade-file {listed}: the upgrade file cannot be read: "
    )
    assert exit_code("config", "check", write(tmp_path, {**LEAST, "evm-chains": chains[:1]})) == 0
