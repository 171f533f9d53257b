"""`warpseal completion`: what the scripts complete, in a real bash, and in zsh and fish if the
machine has them.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from warpseal.cli.main import COMMANDS, GROUPS, load_command, main

SHELLS = ("bash", "zsh", "fish")
BASH = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_warpseal
printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh completes in its editor only: these stand for the functions that show the words.
ZSH = """
compdef() { : }
_describe() {
  local -a rows; rows=("${(@P)2}")
  local row; for row in $rows; do print -r -- "${row%%:*}"; done
}
compadd() { shift; print -rl -- "$@" }
_files() { print -rl -- $PREFIX*(N) }
source "$1"; shift
words=("$@") CURRENT=$# PREFIX="${@[-1]}"
_warpseal
"""
CASES = [
    (("",), {"status", "serve", "index", "completion"}),
    (("index", ""), {"run", "status", "verify", "rebuild", "export"}),
    (("index", "st"), {"status"}),
    (("message", "sign", "--ex"), {"--explain"}),
    (("serve", "--api-po"), {"--api-port"}),
    (("serve", "--network", ""), {"fuji", "mainnet"}),
    (("serve", "--allow-private-ips", "t"), {"true"}),
    (("block", "add", "s"), {"source-chain", "sender"}),
    (("completion", "f"), {"fish"}),
]


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


@pytest.fixture
def scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    """The script of each shell, in a file."""
    files = {shell: tmp_path / f"warpseal.{shell}" for shell in SHELLS}
    for shell, file in files.items():
        assert main(("completion", shell)) == 0
        file.write_text(capsys.readouterr().out)
    return files


def run_shell(*command: object) -> list[str]:
    """Return the lines that a shell prints, and assert that it prints no error."""
    ended = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert ended.stderr == "", ended.stderr
    return ended.stdout.splitlines()


def complete(shell: str, script: Path, *words: str) -> set[str]:
    """Return what a shell offers for the last of these words behind `warpseal`."""
    if shell == "fish":
        text = " ".join(("warpseal", *words))
        lines = run_shell("fish", "--no-config", "-c", f"source {script}; complete -C '{text}'")
        return {line.partition("\t")[0] for line in lines}
    if shell == "zsh":
        lines = run_shell("zsh", "-f", "-c", ZSH, "zsh", script, "warpseal", *words)
        return {line for line in lines if line.startswith(words[-1])}
    return set(run_shell("bash", "--norc", "-c", BASH, "bash", script, "warpseal", *words)) - {""}


@pytest.mark.parametrize("shell", [pytest.param(shell, marks=needs(shell)) for shell in SHELLS])
def test_commands_flags_and_values_are_completed(
    shell: str, scripts: dict[str, Path], tmp_path: Path
) -> None:
    for words, expected in CASES:
        offered = complete(shell, scripts[shell], *words)
        assert expected <= offered, (words, offered)
        assert words[-1] == "" or offered == expected, (words, offered)
    (tmp_path / "my config.json").touch()
    start = f"{tmp_path}/my"
    for words in (("serve", "--config"), ("restore",), ("store", "import")):
        offered = complete(shell, scripts[shell], *words, start)
        assert {name.replace("\\", "") for name in offered} == {f"{tmp_path}/my config.json"}, (
            words,
            offered,
        )


@needs("bash")
def test_bash_offers_every_flag_of_every_command_and_no_hidden_one(
    scripts: dict[str, Path],
) -> None:
    words_of_all = "\n".join(" ".join(words) for words in COMMANDS)
    loop = (
        'source "$1"; while read -r line; do COMP_WORDS=(warpseal $line --)'
        " COMP_CWORD=$((${#COMP_WORDS[@]} - 1));"
    )
    show = '_warpseal; echo "$line: ${COMPREPLY[*]}"; done <<< "$2"'
    lines = run_shell(
        "bash", "--norc", "-c", f"{loop} {show}", "bash", scripts["bash"], words_of_all
    )
    offered = {line.partition(": ")[0]: set(line.partition(": ")[2].split()) for line in lines}
    for words, (location, _) in COMMANDS.items():
        parser = argparse.ArgumentParser()
        load_command(location).add_arguments(parser)
        visible_actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        flags = {
            name
            for action in visible_actions
            for name in action.option_strings
            if name.startswith("--")
        }
        assert offered[" ".join(words)] == flags


@needs("bash")
def test_bash_offers_values_after_an_equals_sign_and_nothing_for_a_number(
    scripts: dict[str, Path],
) -> None:
    # bash splits the word at the sign.
    assert complete("bash", scripts["bash"], "serve", "--network", "=", "f") == {"fuji"}
    assert complete("bash", scripts["bash"], "serve", "--network", "=") == {"fuji", "mainnet"}
    assert complete("bash", scripts["bash"], "serve", "--api-port", "") == set()
    assert complete("bash", scripts["bash"], "restore", "--data") == {"--data-dir"}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_every_command_and_is_valid(shell: str, scripts: dict[str, Path]) -> None:
    text = scripts[shell].read_text()
    assert all(" ".join(words) in text for words in COMMANDS)
    assert all(group in text for group in GROUPS)
    assert "@" not in text
    if shutil.which(shell) is not None:
        check = "--no-execute" if shell == "fish" else "-n"
        assert run_shell(shell, check, scripts[shell]) == []


def test_another_shell_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("completion", "zhs")) == 2
    assert "did you mean zsh?" in capsys.readouterr().err
