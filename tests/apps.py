"""Apps of ``fedslice deploy init``, with all nodes in this process."""

from pathlib import Path
from typing import Any

from fedslice.cli.deployment import app
from fedslice.cli.main import main
from fedslice.deploy import Coordinator, InProcess, flower
from fedslice.deploy.session import coordinate

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
