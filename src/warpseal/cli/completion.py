"""`warpseal completion bash|zsh|fish`: a script that completes commands, flags and their values.

It is made from the table of commands and their flags, and calls no program when it completes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from shlex import quote
from typing import Final, NamedTuple

from warpseal.cli.main import COMMANDS, GROUPS, load_command

DESCRIPTION = """\
Print a script that completes the commands of warpseal, their flags and values. A shell that starts
later loads it:

  warpseal completion bash > ~/.local/share/bash-completion/completions/warpseal
  warpseal completion zsh > ~/.zsh/completions/_warpseal
      with fpath=(~/.zsh/completions $fpath) before compinit
  warpseal completion fish > ~/.config/fish/completions/warpseal.fish

Without the package bash-completion, source the file in ~/.bashrc. Write the file again after an
upgrade.
"""

_MAX_HELP: Final = 76
_FILE: Final = re.compile(r"\b(?:FILE|DIR)\b")
_BASH: Final = """\
# bash completion of warpseal
_warpseal() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]} place=2 words= files= values= takes_file=
    # bash takes the = of --flag=value for a word.
    if [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD - 2]}; fi
    if [[ $current == = ]]; then current=; fi
    case $command in @groups@) command="$command ${COMP_WORDS[2]}" place=3 ;; esac
    if ((COMP_CWORD == 1)); then
        words=@first_words@
    elif ((COMP_CWORD < place)); then
        case ${COMP_WORDS[1]} in
@actions@
        esac
    else
        case $command in
@commands@
        esac
        # The value of a flag is nothing else.
        if [[ $values == *" $previous "* ]]; then words= takes_file=; fi
        if [[ $files == *" $previous "* || $current == -* ]]; then takes_file=; fi
        case "$command $previous" in
@choices@
        esac
        if [[ $files == *" $previous "* || -n $takes_file ]]; then
            compopt -o filenames 2> /dev/null
            local IFS=$'\\n'
            COMPREPLY=($(compgen -f -- "$current"))
            return
        fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -F _warpseal warpseal"""

_ZSH: Final = """\
#compdef warpseal
_warpseal() {
    local command=$words[2] previous=$words[CURRENT-1] place=3 files= values= takes_file=
    local -a options choices
    case $command in (@groups@) command="$command $words[3]" place=4 ;; esac
    if ((CURRENT == 2)); then
        options=(@first_words@)
    elif ((CURRENT < place)); then
        case $words[2] in
@actions@
        esac
    else
        case $command in
@commands@
        esac
        case "$command $previous" in
@choices@
        esac
        if [[ $files == *" $previous "* ]]; then _files; return; fi
        if [[ $values == *" $previous "* ]]; then return; fi
        if [[ -n $takes_file && $PREFIX != -* ]]; then _files; return; fi
        if (($#choices)); then compadd -- $choices; fi
    fi
    _describe warpseal options
}
if [[ $funcstack[1] == _warpseal ]]; then _warpseal; else compdef _warpseal warpseal; fi"""

_FISH: Final = """\
# fish completion of warpseal
# Succeeds if the words before the cursor are those of the first argument. If more words may follow,
# the words before the cursor need only begin with them.
function __warpseal_is
    set -l words (commandline -opc)[2..]
    set -l expected (string split -n ' ' -- $argv[1])
    set -l count (count $expected)
    if test "$argv[2]" != more -o $count -eq 0
        test "$words" = "$expected"
    else
        test (count $words) -ge $count; and test "$words[1..$count]" = "$expected"
    end
end
complete -c warpseal -f
@commands@"""


class _Argument(NamedTuple):
    """A flag, or an argument by position, which has no names.

    choices: values that the argument may have; empty if they are not known.
    """

    names: tuple[str, ...]
    help: str
    takes_value: bool
    is_file: bool
    choices: tuple[str, ...]


class _CommandLine(NamedTuple):
    """The words of a command, and the arguments that may follow them."""

    words: str
    help: str
    arguments: tuple[_Argument, ...]

    @property
    def flags(self) -> list[_Argument]:
        return [argument for argument in self.arguments if argument.names]

    @property
    def choices(self) -> list[str]:
        """The values of the arguments by position."""
        by_position = [argument for argument in self.arguments if not argument.names]
        return [choice for argument in by_position for choice in argument.choices]

    @property
    def choices_of_flags(self) -> list[tuple[_Argument, tuple[str, ...]]]:
        """The flags with choices, each with its names."""
        return [(flag, flag.names) for flag in self.flags if flag.choices]

    @property
    def takes_file(self) -> bool:
        """Whether an argument by position names a file."""
        return any(argument.is_file for argument in self.arguments if not argument.names)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `warpseal completion`."""
    parser.description = DESCRIPTION
    parser.add_argument("shell", metavar="SHELL", choices=tuple(_SCRIPTS), help="bash, zsh or fish")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(_SCRIPTS[args.shell](list(_command_lines())))
    return 0


def _command_lines() -> Iterator[_CommandLine]:
    for words, (location, summary) in COMMANDS.items():
        parser = argparse.ArgumentParser()
        load_command(location).add_arguments(parser)
        visible = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        yield _CommandLine(" ".join(words), summary, tuple(map(_argument, visible)))


def _argument(action: argparse.Action) -> _Argument:
    names = tuple(name for name in action.option_strings if name.startswith("--"))
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    choices = tuple(map(str, action.choices or ()))
    if metavar == "BOOL":
        choices = ("true", "false")
    is_file = action.type is Path or _FILE.search(metavar) is not None
    return _Argument(names, _short_help(action), action.nargs != 0, is_file, choices)


def _short_help(action: argparse.Action) -> str:
    """Return the help up to its first detail."""
    text = (action.help or "") % {**vars(action), "prog": "warpseal"}
    return re.split(r"[;:(\\]", text, maxsplit=1)[0].strip()[:_MAX_HELP]


def _first_words() -> dict[str, str]:
    """Return the first word of each command, with its help."""
    return {words[0]: GROUPS.get(words[0], summary) for words, (_, summary) in COMMANDS.items()}


def _actions(group: str) -> dict[str, str]:
    """Return the second word of each command of a group, with its help."""
    return {
        words[1]: summary
        for words, (_, summary) in COMMANDS.items()
        if len(words) > 1 and words[0] == group
    }


def _names(flags: Iterable[_Argument]) -> str:
    return " ".join(name for flag in flags for name in flag.names)


def _bash(lines: list[_CommandLine]) -> str:
    commands, choices = list[str](), list[str]()
    for line in lines:
        words = " ".join(filter(None, (*line.choices, _names(line.flags))))
        commands.append(f"{quote(line.words)}) words={quote(words)} {_value_lists(line)} ;;")
        for flag, names in line.choices_of_flags:
            choices += [
                f"{quote(f'{line.words} {name}')}) words={quote(' '.join(flag.choices))} ;;"
                for name in names
            ]
    return _fill(
        _BASH,
        groups="|".join(GROUPS),
        first_words=quote(" ".join((*_first_words(), "--help", "--version"))),
        actions=_indented(
            f"{group}) words={quote(' '.join(_actions(group)))} ;;" for group in GROUPS
        ),
        commands=_indented(commands),
        choices=_indented(choices),
    )


def _zsh(lines: list[_CommandLine]) -> str:
    commands, choices = list[str](), list[str]()
    for line in lines:
        options = _described({name: flag.help for flag in line.flags for name in flag.names})
        own = " ".join(map(quote, line.choices))
        commands.append(
            f"({quote(line.words)}) options=({options}) choices=({own}) {_value_lists(line)} ;;"
        )
        for flag, names in line.choices_of_flags:
            values = " ".join(map(quote, flag.choices))
            choices += [
                f"({quote(f'{line.words} {name}')}) compadd -- {values}; return ;;"
                for name in names
            ]
    return _fill(
        _ZSH,
        groups="|".join(GROUPS),
        first_words=_described(_first_words()),
        actions=_indented(
            f"({group}) options=({_described(_actions(group))}) ;;" for group in GROUPS
        ),
        commands=_indented(commands),
        choices=_indented(choices),
    )


def _fish(lines: list[_CommandLine]) -> str:
    rules = [
        f"-n \"__warpseal_is ''\" -a {word} -d {quote(text)}"
        for word, text in _first_words().items()
    ]
    for group in GROUPS:
        rules += [
            f"-n '__warpseal_is {group}' -a {word} -d {quote(text)}"
            for word, text in _actions(group).items()
        ]
    for line in lines:
        place = f"-n \"__warpseal_is '{line.words}' more\""
        rules += [f"{place} -a {quote(choice)}" for choice in line.choices]
        rules += [f"{place} -F"] * line.takes_file
        for flag in line.flags:
            value = ""
            if flag.choices:
                value = f" -x -a {quote(' '.join(flag.choices))}"
            elif flag.takes_value:
                value = " -r -F" if flag.is_file else " -x"
            rules += [
                f"{place} -l {name.removeprefix('--')}{value} -d {quote(flag.help)}"
                for name in flag.names
            ]
    return _fill(_FISH, commands="\n".join(f"complete -c warpseal {rule}" for rule in rules))


def _value_lists(line: _CommandLine) -> str:
    """Return the variables that name the flags with a file and with a value.

    takes_file: whether an argument by position is a file.
    """
    with_value = [flag for flag in line.flags if flag.takes_value]
    with_file = [flag for flag in with_value if flag.is_file]
    files = quote(f" {_names(with_file)} ")
    values = quote(f" {_names(with_value)} ")
    takes_file = "yes" if line.takes_file else ""
    return f"files={files} values={values} takes_file={takes_file}"


def _fill(template: str, **parts: str) -> str:
    """Return a template whose words between two @ are replaced."""
    for name, part in parts.items():
        template = template.replace(f"@{name}@", part)
    return template


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"        {line}" for line in lines)


def _described(words: dict[str, str]) -> str:
    """Return words with their help, as zsh's _describe takes them."""
    return " ".join(quote(f"{word}:{help_text}") for word, help_text in words.items())


_SCRIPTS: Final[dict[str, Callable[[list[_CommandLine]], str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
