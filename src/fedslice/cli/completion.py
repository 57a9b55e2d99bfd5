"""Completion of commands, options and names in bash, zsh and fish, generated from the parser.

The script has all names in it, so that a Tab starts no Python."""

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedslice.cli.catalogue import ALGORITHMS
from fedslice.cli.helpful import Parser, one_of, walk
from fedslice.cli.published import PAPERS
from fedslice.cli.settings import explained
from fedslice.cli.trackers import KINDS
from fedslice.cli.workloads import TASKS
from fedslice.data.preparing import SPLITS
from fedslice.data.purposes import LABELS
from fedslice.models.own import NAMES as OWN

FILES = ("<file>",)  # in place of names: any file or folder
# what an argument may be, by its name; `name` is of the command that it is given to
NAMES: dict[str, Sequence[str]] = {
    "task": (*TASKS, *OWN),
    "algorithm": tuple(ALGORITHMS),
    "algorithms": tuple(ALGORITHMS),
    "tasks name": tuple(TASKS),
    "data name": tuple(TASKS),
    "algorithms name": tuple(ALGORITHMS),
    "paper": tuple(PAPERS),
    "track": tuple(KINDS),
    "set": tuple(f"{key}=" for key in explained()),
    "grid": tuple(f"{key}=" for key in explained()),
    "sampler": ("poisson", "uniform", "full"),
    "split": tuple(SPLITS),
    "label_as": tuple(LABELS),
    "shell": ("bash", "zsh", "fish"),
}


class Option(NamedTuple):
    """An option with what may follow it; ``None`` where nothing does."""

    flags: tuple[str, ...]
    meaning: str
    names: Sequence[str] | None


class Command(NamedTuple):
    """A command by the words that lead to it, and what may follow."""

    path: str
    below: dict[str, str]
    options: list[Option]
    places: list[Sequence[str]]  # of the arguments without a flag; the last one may come again


def commands(parser: Parser) -> list[Command]:
    """All that can be completed.

    >>> from fedslice.cli.parser import parser
    >>> known = {each.path: each for each in commands(parser())}
    >>> known["compare"].places[1][:2], known["deploy"].below.keys() >= {"init", "local"}
    (('fedavg', 'fedsubavg'), True)
    """
    return [_command(path, each) for path, each in walk(parser)]


def _command(path: str, parser: Parser) -> Command:
    options, places = [], []
    for action in parser.actions:
        if action.option_strings:
            names = None if action.nargs == 0 else _names(path, action)
            meaning = re.split(r" \(|[:;]", action.help or "")[0].replace("%%", "%")
            options.append(Option(tuple(action.option_strings), meaning, names))
        elif not isinstance(action.choices, dict):
            places.append(_names(path, action))
    return Command(path, parser.described(), options, places)


def _names(path: str, action: argparse.Action) -> Sequence[str]:
    known = NAMES.get(f"{path} {action.dest}", NAMES.get(action.dest, ()))
    if known and path.startswith("heat") and action.dest == "task":
        return (*known, *FILES)
    return known or (FILES if action.type is Path or action.dest == "store" else ())


# -- bash ------------------------------------------------------------------------------------------

BASH = """\
_fedslice() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
    local path="" place=0 skip=0 word names options=""
    [[ $cur == "=" ]] && cur=""
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        if ((skip)); then skip=0; continue; fi
        case "$path|$word" in
%(below)s
            *"|=") skip=1 ;;
            *"|-"*) case "$path|$word" in
%(valued)s
                esac ;;
            *) ((place += 1)) ;;
        esac
    done
    ((skip)) || prev=""
    case "$path|$prev" in
%(after)s
        *"|-"*|*"|=") return ;;
        *) case "$path" in
%(options)s
            esac
            case "$path|$place" in
%(places)s
            esac ;;
    esac
    [[ $cur == -* ]] && names=$options
    if [[ $names == *"<file>"* ]]; then
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "$cur"))
        names=${names/<file>/}
    fi
    COMPREPLY+=($(compgen -W "$names" -- "$cur"))
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -F _fedslice fedslice
"""


def bash(found: Sequence[Command]) -> str:
    """The script for bash."""
    below = [
        f'            "{each.path}|{name}") path="{f"{each.path} {name}".strip()}"; place=0 ;;'
        for each in found
        for name in each.below
    ]
    valued, after, options, places = [], [], [], []
    for each in found:
        with_value = [o for o in each.options if o.names is not None]
        if with_value:
            cases = "|".join(f'"{each.path}|{flag}"' for o in with_value for flag in o.flags)
            valued.append(f"                    {cases}) skip=1 ;;")
        for option in with_value:
            cases = "|".join(f'"{each.path}|{flag}"' for flag in option.flags)
            if option.names:
                after.append(f'        {cases}) names="{" ".join(option.names)}" ;;')
        flags = " ".join(flag for o in each.options for flag in o.flags if flag.startswith("--"))
        options.append(f'                "{each.path}") options="{flags}" ;;')
        if each.below:
            places.append(f'                "{each.path}|0") names="{" ".join(each.below)}" ;;')
        for place, names in enumerate(each.places):
            last = place == len(each.places) - 1 and each.path in ("compare", "study", "report")
            at = f'"{each.path}|"*' if last else f'"{each.path}|{place}"'
            places.append(f'                {at}) names="{" ".join(names)}" ;;')
    parts = {"below": below, "valued": valued, "after": after, "options": options, "places": places}
    return BASH % {name: "\n".join(lines) for name, lines in parts.items()}


# -- zsh -------------------------------------------------------------------------------------------


def zsh(found: Sequence[Command]) -> str:
    """The script for zsh: a function a command, with a word about each option."""
    functions = [_zsh_function(each) for each in found]
    return "#compdef fedslice\n" + "\n".join(functions) + "\ncompdef _fedslice fedslice\n"


def _zsh_name(path: str) -> str:
    return "_".join(["_fedslice", *path.split()])


def _zsh_function(each: Command) -> str:
    specs = [_zsh_option(option, flag) for option in each.options for flag in option.flags]
    if each.below:
        cases = "\n".join(
            f"        {name}) {_zsh_name(f'{each.path} {name}')} ;;" for name in each.below
        )
        listed = " ".join(shlex.quote(f"{name}:{text}") for name, text in each.below.items())
        return (
            f"{_zsh_name(each.path)}() {{\n    local line state\n    local -a names=({listed})\n"
            f"    _arguments -C {' '.join(specs)} '1: :->command' '*::argument:->rest'\n"
            f"    [[ $state == command ]] && _describe command names\n"
            f"    [[ $state == rest ]] && case $line[1] in\n{cases}\n    esac\n}}"
        )
    for place, names in enumerate(each.places):
        again = place == len(each.places) - 1 and each.path in ("compare", "study", "report")
        specs.append(shlex.quote(f"{'*' if again else place + 1}: :{_zsh_names(names)}"))
    return f"{_zsh_name(each.path)}() {{\n    _arguments {' '.join(specs)}\n}}"


def _zsh_option(option: Option, flag: str) -> str:
    text = option.meaning.replace("[", "(").replace("]", ")").replace(":", " ")
    repeated = "*" if flag in ("--set", "--grid", "--option", "--track") else ""
    value = "" if option.names is None else f": :{_zsh_names(option.names)}"
    return shlex.quote(f"{repeated}{flag}[{text}]{value}")


def _zsh_names(names: Sequence[str]) -> str:
    if not names:
        return ""
    plain = [name for name in names if name not in FILES]
    if len(plain) < len(names):
        return "_files"
    ends = "-S '' " if plain[0].endswith("=") else ""
    return f"({' '.join(plain)})" if not ends else f"compadd {ends}-- {' '.join(plain)}"


# -- fish ------------------------------------------------------------------------------------------


def fish(found: Sequence[Command]) -> str:
    """The script for fish."""
    lines = ["complete -c fedslice -f"]
    top = " ".join(found[0].below)
    for each in found:
        seen = [f"__fish_seen_subcommand_from {name}" for name in each.path.split()]
        where = "; and ".join(seen) or f"not __fish_seen_subcommand_from {top}"
        start = f"complete -c fedslice -n {shlex.quote(where)}"
        lines += [f"{start} -a {name} -d {shlex.quote(text)}" for name, text in each.below.items()]
        lines += [f"{start} {_fish_option(option)}" for option in each.options]
        for names in each.places:
            if set(FILES) & set(names):
                lines.append(f"{start} -F")
            if plain := [name for name in names if name not in FILES]:
                lines.append(f"{start} -a {shlex.quote(' '.join(plain))}")
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    flags = " ".join(
        f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
    )
    value = ""
    if option.names is not None:
        value = " -r -F" if option.names == FILES else " -x"
        if option.names and option.names != FILES:
            value += f" -a {shlex.quote(' '.join(option.names))}"
    return f"{flags}{value} -d {shlex.quote(option.meaning)}"


SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def command(options: argparse.Namespace) -> None:
    """Print the script."""
    print(SHELLS[options.shell](commands(options.whole)), end="")


def add_to(commands: Any) -> None:
    """The subcommand ``completion``."""
    parser = commands.add_parser(
        "completion", help="a script with which Tab completes commands, options and names"
    )
    parser.add_argument(
        "shell", type=one_of(list(SHELLS)), metavar="SHELL", help="bash, zsh or fish"
    )
    parser.set_defaults(act=command)
