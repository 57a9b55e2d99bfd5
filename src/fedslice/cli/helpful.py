"""A parser whose help has defaults and examples, and whose errors say what was perhaps meant."""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from fedslice.errors import nearest

WIDEST = 100  # columns of help, however wide the terminal is


def columns() -> int:
    """How wide help may be.

    >>> 20 <= columns() <= WIDEST
    True
    """
    return max(20, min(WIDEST, shutil.get_terminal_size().columns) - 2)


class Parser(argparse.ArgumentParser):
    """``argparse.ArgumentParser``, but for its help and its errors.

    >>> parser = Parser(prog="paint", examples=[("paint --colour red", "a red one")])
    >>> print(parser.format_help().splitlines()[-1])
      paint --colour red    # a red one
    """

    def __init__(
        self, *given: Any, examples: Sequence[tuple[str, str]] = (), notes: str = "", **how: Any
    ) -> None:
        how.setdefault("formatter_class", _Formatter)
        super().__init__(*given, **how)
        self.examples, self.notes = examples, notes
        self.below: Mapping[str, argparse.ArgumentParser] = {}

    def add_subparsers(self, **how: Any) -> Any:
        """Commands below this one, which are kept to tell a name that there is not."""
        found = super().add_subparsers(**how)
        self.below = found.choices
        return found

    @property
    def actions(self) -> list[argparse.Action]:
        """All arguments, for which argparse has no public name."""
        return self._actions

    def described(self) -> dict[str, str]:
        """The commands below this one with their help."""
        return {
            each.dest: each.help or ""
            for action in self.actions
            for each in getattr(action, "_choices_actions", [])
        }

    def format_help(self) -> str:
        """Usage, arguments, notes, examples."""
        parts = [super().format_help().rstrip(), self.notes.rstrip(), written(self.examples)]
        return "\n\n".join(filter(None, parts)) + "\n"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but a name that there is not is refused with the nearest one."""
        words = list(sys.argv[1:] if args is None else args)
        if self.below and words and words[0][:1] != "-" and words[0] not in self.below:
            self.error(f"there is no command {words[0]!r}; {nearest(words[0], self.below)}")
        found, rest = super().parse_known_args(words, namespace)
        if rest:
            self.error(self._unknown([str(word) for word in rest]))
        return found, rest

    def _unknown(self, rest: list[str]) -> str:
        wrong = next((word for word in rest if word.startswith("-")), None)
        if wrong is None:
            return f"{' '.join(rest)}: this command does not take so much"
        flag = wrong.partition("=")[0]
        known = [name for action in self.actions for name in action.option_strings]
        near = nearest(flag, [name for name in known if name.startswith("--")])
        return f"there is no option {flag}" + (f"; {near}" if near.endswith("?") else "")

    def error(self, message: str) -> NoReturn:
        """One line about what is wrong, one about where help is."""
        self.exit(2, f"{self.prog}: {message}\ntry: {self.prog} --help\n")


def walk(parser: Parser) -> Iterator[tuple[str, Parser]]:
    """A parser and all below it, with the words that lead there."""

    def below(path: tuple[str, ...], each: Parser) -> Iterator[tuple[str, Parser]]:
        yield " ".join(path), each
        for name, more in each.below.items():
            more.description = more.description or each.described()[name]
            assert isinstance(more, Parser)  # subparsers are of their parent's class
            yield from below((*path, name), more)

    return below((), parser)


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=22, width=columns())

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(text, width)


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most this width, in which names such as movielens-lr stay whole.

    >>> wrapped("one of movielens-lr, example1", 20)
    ['one of movielens-lr,', 'example1']
    """
    return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def written(examples: Sequence[tuple[str, str]]) -> str:
    """Commands with a word about each, which stands above where there is no room beside."""
    if not examples:
        return ""
    width = max(len(command) for command, _ in examples)
    lines = ["examples:"]
    for command, meaning in examples:
        if width + len(meaning) + 8 <= columns():
            lines.append(f"  {command:<{width}}    # {meaning}")
        else:
            lines += [f"  # {meaning}", *_folded(command)]
    return "\n".join(lines)


def _folded(command: str) -> list[str]:
    """A command in lines that a shell reads as one."""
    lines = textwrap.wrap(command, columns() - 8, break_long_words=False, break_on_hyphens=False)
    ends = [" \\"] * (len(lines) - 1) + [""]
    return [
        f"{'  ' if place == 0 else '      '}{line}{end}"
        for place, (line, end) in enumerate(zip(lines, ends, strict=True))
    ]


def table(title: str, meanings: Mapping[str, str]) -> str:
    """Names with what they mean, wrapped.

    >>> print(table("settings:", {"cohort": "clients a round"}))
    settings:
      cohort              clients a round
    """
    lines = [title]
    for name, meaning in meanings.items():
        head = f"  {name:<18}  "
        if len(name) > 18:
            lines.append(f"  {name}")
            head = " " * 22
        lines.append(head + f"\n{' ' * 22}".join(wrapped(meaning, columns() - 22)))
    return "\n".join(lines)


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """The ``type`` of an argument that is one of these names.

    >>> one_of(["png", "pdf"])("png")
    'png'
    """

    def chosen(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is not known; {nearest(text, names)}")
        return text

    return chosen
