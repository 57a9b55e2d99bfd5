"""Apps of ``fedslice deploy init``, with all nodes in this process."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedslice.cli.deployment import app, commands
from fedslice.cli.deployment.recipe import trained
from fedslice.cli.export import write_model
from fedslice.cli.main import main
from fedslice.deploy import Coordinator, InProcess, flower
from fedslice.deploy.session import coordinate, train

SAME = "bit for bit the model of the simulation of the same clients"


def written(folder: Path, *arguments: str) -> Any:
    known = {"--task", "--vocabulary"} & set(arguments)
    task = [] if known else ["--task", "quadratic"]
    assert main(["deploy", "init", str(folder), *task, *arguments]) == 0
    return app.method_of(folder)


def link_of(folder: Path, method: Any, **config: Any) -> InProcess:
    return InProcess(
        {
            f"node-{place.name}": flower.node(
                {"folder": str(place), **config}, method.algorithm, heat=method.HEAT
            )
            for place in app.nodes_of(folder)
        }
    )


def session(folder: Path, method: Any, link: InProcess, **settings: Any) -> Coordinator:
    given = {"folder": folder / app.SERVER, "nodes": len(link.members), "patience": 0.0}
    given |= {"tell": lambda line: None}
    return coordinate(link, method.MODEL, method.algorithm, method.SAMPLER, **given, **settings)


class InOneProcess:
    """What ``fedslice deploy local`` has of a Loopback, but for its processes: between submitting
    the app and the next look at it the server trains with the nodes that were started."""

    def __init__(self, logs: Path, home: Path, certificates: Any = None) -> None:
        self.logs, self.certificates = logs, certificates
        self.nodes: dict[str, dict[str, Any]] = {}
        self.keys: list[str] = []  # of nodes that were registered
        self.submitted: tuple[Path, int] | None = None

    def __enter__(self) -> "InOneProcess":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def check(self) -> None:
        assert self.submitted is not None
        folder, rounds = self.submitted
        method = app.method_of(folder)
        nodes = {
            name: flower.node(config, method.algorithm, heat=method.HEAT)
            for name, config in self.nodes.items()
        }
        server = session(folder, method, InProcess(nodes), heat=method.HEAT)
        list(train(server, rounds, lambda line: None))
        server.publish("all")
        write_model(trained(server, {}), folder / app.SERVER)

    def flwr(self, *arguments: str) -> None:
        assert arguments[:2] == ("supernode", "register")
        self.keys.append(arguments[-1])

    def start_node(self, name: str, config: dict[str, Any], key: Path | None = None) -> None:
        assert (key is None) == (self.certificates is None)
        self.nodes[name] = config

    def start(self, name: str, program: str, *arguments: str) -> Any:
        assert (name, program, *arguments[:1]) == ("run", "flwr", "run")
        folder = Path(arguments[1])
        config = dict(word.split("=", 1) for word in shlex.split(arguments[-1]))
        assert Path(config["folder"]).samefile(folder / app.SERVER)
        assert config["nodes"] == str(len(self.nodes))
        assert config["authenticated"] == ("false" if self.certificates is None else "true")
        assert self.keys == ([] if self.certificates is None else list(self.nodes))
        self.submitted = folder, int(config["rounds"])
        return SimpleNamespace(poll=lambda: None)


def in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """``fedslice deploy local`` without Flower's processes."""
    monkeypatch.setattr(commands, "Loopback", InOneProcess)
    monkeypatch.setattr(flower, "compiled_in", lambda folder: None)
