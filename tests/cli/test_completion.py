"""Scripts of completion, sourced in the shells that they are for."""

import contextlib
import io
import shutil
import subprocess
from pathlib import Path

import pytest

from fedslice.cli.catalogue import ALGORITHMS
from fedslice.cli.main import main
from fedslice.cli.workloads import TASKS
from fedslice.models.own import NAMES

ASK = """
source {script}
ask() {{
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _fedslice; echo "${{COMPREPLY[*]}}"
}}
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for shell in ("bash", "zsh", "fish"):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert main(["completion", shell]) == 0
        found[shell] = tmp_path_factory.mktemp("completion") / shell
        found[shell].write_text(said.getvalue())
    return found


def run(*words: str, cwd: Path | None = None) -> list[str]:
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, check=True)
    assert not done.stderr
    return done.stdout.splitlines()


def test_bash_completes_commands_options_and_names(
    scripts: dict[str, Path], tmp_path: Path
) -> None:
    """Each line of words, and what a Tab after it offers."""
    (tmp_path / "clicks.csv").touch()
    wanted = {
        ("fedslice", "ex"): {"example", "export"},
        ("fedslice", "run", ""): {*TASKS, *NAMES},
        ("fedslice", "run", "--algorithm", ""): set(ALGORITHMS),
        ("fedslice", "run", "movielens-lr", "--synth"): {"--synthetic"},
        ("fedslice", "run", "movielens-lr", "--set", "client_ra"): {"client_rate="},
        ("fedslice", "run", "--rounds", ""): set(),  # a number
        ("fedslice", "run", "--data", "cl"): {"clicks.csv"},
        # a shell cuts words at =; what follows it is no task
        ("fedslice", "compare", "--set", "mu", "=", "1", "movielens-l"): {"movielens-lr"},
        ("fedslice", "compare", "lr", "--synthetic", "fedavg", "fedsub"): {"fedsubavg"},
        ("fedslice", "deploy", "in"): {"init"},
        ("fedslice", "deploy", "local", "--tl"): {"--tls"},
        ("fedslice", "algorithms", "scaffold-a"): {"scaffold-approximate"},
        ("fedslice", "tasks", "quad"): {"quadratic"},
        ("fedslice", "completion", ""): {"bash", "zsh", "fish"},
    }
    asked = "\n".join("ask " + " ".join(f"'{word}'" for word in words) for words in wanted)
    text = ASK.format(script=scripts["bash"]) + asked
    found = run("bash", "--norc", "-c", text, cwd=tmp_path)
    assert [set(line.split()) for line in found] == list(wanted.values())


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_reads_its_script(scripts: dict[str, Path]) -> None:
    text = f"compdef() {{ echo $1 }}; source {scripts['zsh']}; functions -m '_fedslice*' | wc -l"
    first, lines = run("zsh", "-f", "-c", text)
    assert first == "_fedslice"
    assert int(lines) > 50


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_completes(scripts: dict[str, Path]) -> None:
    lines = ["fedslice compare lr scaffold-", "fedslice run lr --algorithm fedsub", "fedslice he"]
    asked = "; ".join(f"complete -C '{line}'" for line in lines)
    found = run("fish", "--no-config", "-c", f"source {scripts['fish']}; {asked}")
    assert [line.split()[0] for line in found] == [
        "scaffold-approximate",
        "scaffold-heat",
        "fedsubavg",
        "heat",
    ]
