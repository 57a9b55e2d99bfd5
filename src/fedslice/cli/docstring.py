"""A recipe's docstring as the page about it.

a line that says what it is;  indented, the equation;  paragraphs;
Args: a line for each argument;  what a round sends, what it cannot be combined with;  an example
"""

import inspect
from collections.abc import Callable
from typing import NamedTuple


class Page(NamedTuple):
    """What a docstring says, in Markdown: the paragraphs before and after the arguments."""

    summary: str
    body: tuple[str, ...]
    arguments: dict[str, str]
    closing: tuple[str, ...]


def page_of(recipe: Callable[..., object]) -> Page:
    """The parts of a recipe's docstring, without its example.

    >>> from fedslice.recipes import fedprox
    >>> page = page_of(fedprox)
    >>> page.body[0]
    '    local loss F_i(y) + mu/2 ||y - x||^2'
    >>> page.arguments["mu"]
    'strength of the pull to the global model (Ding et al. 2022)'
    """
    text = inspect.getdoc(recipe) or ""
    blocks = text.partition("\n>>> ")[0].strip().replace("``", "`").split("\n\n")
    places = [place for place, block in enumerate(blocks) if block.startswith("Args:")]
    middle = places[0] if places else len(blocks)
    before, after = blocks[1:middle], blocks[middle + 1 :]
    arguments = _arguments(blocks[middle]) if places else {}
    summary = _joined(blocks[0]).rstrip(".")
    return Page(summary, tuple(map(_joined, before)), arguments, tuple(map(_joined, after)))


def _joined(block: str) -> str:
    """A paragraph in one line; an indented block as it stands."""
    lines = block.split("\n")
    return block if lines[0].startswith("    ") else " ".join(line.strip() for line in lines)


def _arguments(block: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in block.split("\n")[1:]:
        if line.startswith("        "):
            name = next(reversed(found))
            found[name] += f" {line.strip()}"
        else:
            name, _, meaning = line.strip().partition(": ")
            found[name] = meaning
    return {name: meaning.rstrip(".") for name, meaning in found.items()}
