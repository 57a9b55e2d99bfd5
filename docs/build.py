"""Build the site: python docs/build.py [FOLDER], by default into site/; warnings are errors.

The pages of this folder, README as the first one, CHANGELOG and CONTRIBUTING, and a page of
reference for each group of public modules, from their docstrings.  Nothing comes from the network,
when it is built or when it is read; search works from the disk, too.
"""

import importlib
import inspect
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sphinx.cmd.build import build_main

ROOT = Path(__file__).parent.parent
# the order of the pages, by the kind of question that they answer
CONTENTS = {
    "Learn": ("tutorial", "concepts"),
    "How to": (
        "how-to/your-own-data",
        "how-to/your-own-model",
        "how-to/frameworks",
        "how-to/export",
        "how-to/long-runs",
        "how-to/compare",
        "how-to/personalise",
        "how-to/large",
        "how-to/cluster",
        "how-to/deploy",
        "how-to/add-an-algorithm",
        "how-to/add-a-task",
    ),
    "Reference": ("command-line", "algorithms", "tasks"),
    "Explanation": (
        "privacy",
        "privacy-accounting",
        "secure-sums",
        "attack",
        "benchmarks",
        "design",
    ),
    "Project": ("changes", "contributing"),
}
# pages of reference: what they are about, and the modules whose public names they show
PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "own": (
        "API: own data",
        ("fedslice.estimator", "fedslice.data.loading", "fedslice.data.purposes"),
    ),
    "populations": (
        "API: populations",
        (
            "fedslice.data.population",
            "fedslice.data.sampling",
            "fedslice.data.availability",
            "fedslice.data.halves",
            "fedslice.data.partition",
            "fedslice.heat",
        ),
    ),
    "models": (
        "API: models",
        (
            "fedslice.model",
            "fedslice.metrics",
            "fedslice.prox",
            "fedslice.frameworks.torch",
            "fedslice.frameworks.flax",
            "fedslice.frameworks.equinox",
        ),
    ),
    "running": (
        "API: running and evaluating",
        (
            "fedslice.simulation.run",
            "fedslice.simulation.report",
            "fedslice.evaluation.scores",
            "fedslice.evaluation.gain",
            "fedslice.evaluation.kept_models",
            "fedslice.evaluation.diagnostics",
        ),
    ),
    "parts": (
        "API: parts of algorithms",
        (
            "fedslice.compose",
            "fedslice.client",
            "fedslice.stage",
            "fedslice.reduce",
            "fedslice.server",
            "fedslice.types",
        ),
    ),
    "private": (
        "API: privacy",
        (
            "fedslice.privacy",
            "fedslice.privacy.heat",
            "fedslice.privacy.accounting.account",
            "fedslice.privacy.accounting.budget",
            "fedslice.privacy.accounting.mechanism",
        ),
    ),
    "elsewhere": (
        "API: clusters, deployments",
        (
            "fedslice.cluster",
            "fedslice.deploy",
        ),
    ),
    "errors": (
        "API: errors",
        ("fedslice.errors",),
    ),
}
ROLES = re.compile(r":(?:mod|class|func|meth|attr|data|exc):`~?([^`]+)`")


def main(folder: Path) -> int:
    """Put the sources together, and build; the exit code is 0 if nothing is amiss."""
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        shutil.copytree(ROOT / "docs", source, dirs_exist_ok=True)
        made = {
            "index": outside("README.md") + toctrees(),
            "changes": outside("CHANGELOG.md"),
            "contributing": outside("CONTRIBUTING.md"),
            **{f"reference/{name}": reference(*about) for name, about in PAGES.items()},
        }
        for path, text in made.items():
            file = source / f"{path}.md"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return build_main(["-q", "-W", "--keep-going", "-b", "html", name, str(folder)])


def toctrees() -> str:
    """What stands at the side of every page."""
    known = dict(CONTENTS)
    known["Reference"] = (*known["Reference"], *(f"reference/{name}" for name in PAGES))
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(names) + "\n```\n"
        for caption, names in known.items()
    )


def outside(name: str) -> str:
    """A page that stands beside the folder docs, with its links as they are from within; what is
    not on the site is named without a link."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    text = text.replace("](CONTRIBUTING.md)", "](contributing.md)")
    text = text.replace("](CHANGELOG.md)", "](changes.md)")
    return re.sub(r"\[([^\]]+)\]\((?:examples/|LICENSE)[^)]*\)", r"\1", text) + "\n"


def reference(title: str, modules: tuple[str, ...]) -> str:
    """A page about some modules."""
    parts = [f"# {title}"]
    for name in modules:
        module = importlib.import_module(name)
        parts += [f"## {name.removeprefix('fedslice.')}", f"`{name}`", markdown(module.__doc__)]
        parts += [text for each in public(module) for text in about(*each)]
    return "\n\n".join(filter(None, parts)) + "\n"


def public(module: Any) -> Iterator[tuple[str, Any]]:
    """Functions and classes of a module, or those that a package shows as its own."""
    package = hasattr(module, "__path__")
    for name, value in vars(module).items():
        if name.startswith("_") or not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        home = getattr(value, "__module__", "")
        if home == module.__name__ or (package and home.startswith(f"{module.__name__}.")):
            yield name, value


def about(name: str, value: Any) -> Iterator[str]:
    """Heading, signature and docstring; of a class its public methods, too."""
    yield f"### {name}"
    yield code(f"{'class ' if inspect.isclass(value) else ''}{name}{signature(value)}")
    yield markdown(inspect.getdoc(value))
    if not inspect.isclass(value) or issubclass(value, Exception):
        return
    for own, member in vars(value).items():
        call = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        text = getattr(call, "__doc__", "") or ""
        if own.startswith("_") or not text or text.startswith("Alias for field"):
            continue
        if own in getattr(value, "__dataclass_fields__", ()):  # a default, no method
            continue
        if inspect.isfunction(call):
            yield f"#### {name}.{own}"
            yield code(f"{own}{signature(call)}")
            yield markdown(inspect.getdoc(call))
        elif isinstance(call, property) or hasattr(call, "attrname"):
            yield f"#### {name}.{own}"
            yield markdown(inspect.cleandoc(text))


def signature(value: Callable[..., Any]) -> str:
    """How it is called, one parameter a line where it is long."""
    try:
        found = inspect.signature(value)
    except (ValueError, TypeError):
        return ""
    text = (
        str(found).replace("fedslice.", "").replace("collections.abc.", "").replace("typing.", "")
    )
    text = re.sub(r"\b(?:\w+\.)+([A-Z]\w*)", r"\1", text)  # names without their modules
    text = re.sub(r"^\((?:self|cls)(?:, )?", "(", text).replace("<factory>", "...")
    text = text.replace("<lambda>", "...")
    text = re.sub(r"<function ([\w.]+) at 0x\w+>", r"\1", text)  # no addresses
    text = re.sub(r"'([A-Z]\w*)'", r"\1", text).removesuffix(" -> None")
    if len(text) < 80:
        return text
    inside, _, end = text[1:].rpartition(")")
    lines, depth, start = [], 0, 0
    for place, letter in enumerate(inside):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            lines.append(inside[start : place + 1].strip())
            start = place + 1
    lines.append(inside[start:].strip() + ",")
    return "(\n" + "\n".join(f"    {line}" for line in lines) + f"\n){end}"


def code(text: str, language: str = "python") -> str:
    """A block of code."""
    return f"```{language}\n{text}\n```"


def markdown(docstring: str | None) -> str:
    """A docstring as Markdown: what is indented is an equation or a table as it stands, Args: is a
    list, and an example is a session of Python."""
    text = inspect.cleandoc(docstring or "").replace("``", "`")
    text = ROLES.sub(lambda found: f"`{found[1]}`", text)
    before, sign, example = (
        text.partition("\n>>> ") if not text.startswith(">>> ") else ("", "\n>>> ", text[4:])
    )
    parts = [block(each) for each in re.split(r"\n\n+", before.strip("\n"))]
    if sign:
        session, gap, rest = example.partition("\n\n")
        if gap and not rest.startswith((">>>", "    ")):
            parts += [code(f">>> {session}", "pycon"), markdown(rest)]
        else:
            parts.append(code(f">>> {example}", "pycon"))
    return "\n\n".join(filter(None, parts))


def block(text: str) -> str:
    """A paragraph of a docstring."""
    lines = text.split("\n")
    if lines[0] in ("Args:", "Returns:", "Raises:"):
        items: list[str] = []
        for line in lines[1:]:
            if line.startswith("        ") and items:
                items[-1] += f" {line.strip()}"
            else:
                name, colon, meaning = line.strip().partition(": ")
                items.append(f"- `{name}`: {meaning}" if colon else f"- {name}")
        return f"**{lines[0][:-1]}**\n\n" + "\n".join(items)
    if all(line.startswith("    ") for line in lines) or (len(lines) > 1 and "   " in text.strip()):
        return code(inspect.cleandoc(text) if lines[0].startswith(" ") else text, "text")
    return text


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"))
