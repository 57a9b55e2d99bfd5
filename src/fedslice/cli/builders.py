"""From settings to algorithms: how the command line builds each recipe."""

from collections.abc import Callable
from typing import Any

from fedslice import prox, recipes
from fedslice.cli.settings import Settings, optimizer, schedule
from fedslice.client import proximal
from fedslice.data import halves
from fedslice.errors import InputError
from fedslice.heat import Heat
from fedslice.tasks.base import Task
from fedslice.types import Algorithm


def _heat(task: Task, s: Settings) -> Heat | None:
    return task.train.heat(task.model) if s.values.get("heat", False) else None


def _more(task: Task, s: Settings) -> dict[str, Any]:
    """What composes with every algorithm that goes through a mean, as far as it has the settings."""
    more: dict[str, Any] = {"heat": _heat(task, s), "stages": s.before_mean, **s.work}
    if "reduce" in s.values:
        more["reduce"] = s.reduction
    if s.sampler == "weighted":
        more["coefficient"] = "examples"
    return more | ({"weights": s.weights} if "weights" in s.values else {})


def _without(more: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in more.items() if key not in names}


def family(
    recipe: Callable[..., Algorithm], *corrected: str
) -> Callable[[Task, Settings], Algorithm]:
    """FedAvg and its kin; ``corrected`` names the settings that the recipe itself takes."""

    def build(task: Task, s: Settings) -> Algorithm:
        own = {name: s.values[name] for name in corrected}
        extra = (
            {} if "mu" in corrected or not s.values.get("mu") else {"corrections": [proximal(s.mu)]}
        )
        factor = schedule(s.client_schedule)
        more = {**_more(task, s), **own, **extra, "server": s.server_optimizer, "schedule": factor}
        return recipe(task.model, s.client_optimizer, **more)

    return build


def _clients(task: Task) -> int:
    """N."""
    return max(1, int((task.train.counts > 0).sum()))


def _share(task: Task, s: Settings) -> float:
    """K / N."""
    return 1.0 if s.sampler == "full" else min(1.0, s.cohort / _clients(task))


def fedsgd(task: Task, s: Settings) -> Algorithm:
    """One full gradient a client."""
    return recipes.fedsgd(task.model, server=s.server_optimizer, **_more(task, s))


def central(task: Task, s: Settings) -> Algorithm:
    """As many examples a round as the cohort goes through."""
    some = int((task.train.counts > 0).sum())
    clients = some if s.sampler == "full" else s.cohort
    passes = max(1, round(s.epochs * task.train.examples / max(1, some) / s.batch))
    steps = min(s.steps, passes) if s.steps and s.epochs else s.steps or passes
    return recipes.central(task.model, s.client_optimizer, steps=steps, batch=clients * s.batch)


def fednova(task: Task, s: Settings) -> Algorithm:
    """The normalisation follows from the clients' optimizer and proximal term."""
    if s.client not in ("sgd", "momentum"):
        raise InputError(f"fednova knows how to normalise sgd and momentum clients, not {s.client}")
    own = {
        "momentum": s.client_b1 if s.client == "momentum" else 0.0,
        "proximal": s.client_rate * s.mu,
    }
    more = {**_more(task, s), "server": s.server_optimizer, "schedule": schedule(s.client_schedule)}
    return recipes.fednova(
        task.model, s.client_optimizer, corrections=[proximal(s.mu)], **own, **more
    )


def scaffold(recipe: Callable[..., Algorithm]) -> Callable[[Task, Settings], Algorithm]:
    """As published, or among the holders of each row."""

    def build(task: Task, s: Settings) -> Algorithm:
        own = {"option": s.option, "server_rate": s.server_rate}
        everybody = {"clients": _clients(task), "examples": task.train.examples}
        return recipe(task.model, s.client_rate, **own, **everybody, **_more(task, s))

    return build


def approximate(task: Task, s: Settings) -> Algorithm:
    """Equation 47."""
    more = _more(task, s)
    return recipes.scaffold_approximate(
        task.model, s.client_optimizer, participation=_share(task, s), **more
    )


def mime(lite: bool) -> Callable[[Task, Settings], Algorithm]:
    """Mime or MimeLite."""

    def build(task: Task, s: Settings) -> Algorithm:
        return recipes.mime(task.model, s.client_optimizer, lite=lite, **_more(task, s))

    return build


def feddane(task: Task, s: Settings) -> Algorithm:
    """A survey, then proximal steps."""
    return recipes.feddane(task.model, s.client_optimizer, mu=s.mu, **_more(task, s))


def feddyn(task: Task, s: Settings) -> Algorithm:
    """With the cohort's share of the clients."""
    more = _without(_more(task, s), "weights")
    return recipes.feddyn(task.model, s.client_optimizer, mu=s.mu, clients=_clients(task), **more)


def fedpd(task: Task, s: Settings) -> Algorithm:
    """All clients take part."""
    return recipes.fedpd(
        task.model, s.client_optimizer, mu=s.mu, **_without(_more(task, s), "weights")
    )


def fedpa(task: Task, s: Settings) -> Algorithm:
    """Its steps follow from its samples."""
    more = _more(task, s)
    own = {
        name: s.values[name]
        for name in ("samples", "window", "burn_in", "shrinkage", "burn_in_rounds")
    }
    return recipes.fedpa(task.model, s.client_optimizer, server=s.server_optimizer, **own, **more)


def composite(recipe: Callable[..., Algorithm]) -> Callable[[Task, Settings], Algorithm]:
    """FedMiD or FedDualAvg with a regulariser by name."""

    def build(task: Task, s: Settings) -> Algorithm:
        kinds = {"l1": prox.l1, "group": prox.group}
        if s.regulariser not in (*kinds, "box"):
            raise InputError(
                f"regulariser={s.regulariser!r} is not known; there are l1, group, box"
            )
        psi = (
            prox.box(-s.strength, s.strength)
            if s.regulariser == "box"
            else kinds[s.regulariser](s.strength)
        )
        own = {"server_only": True} if s.values.get("server_only") else {}
        return recipe(
            task.model, s.client_rate, psi, server_rate=s.server_rate, **own, **_more(task, s)
        )

    return build


def qffl(task: Task, s: Settings) -> Algorithm:
    """L is one over the client rate."""
    return recipes.qffl(task.model, s.client_rate, q=s.q, **_more(task, s))


def afl(task: Task, s: Settings) -> Algorithm:
    """Without heat."""
    more = {**_without(_more(task, s), "heat"), "server": s.server_optimizer}
    return recipes.afl(
        task.model,
        s.client_optimizer,
        rate=s.weight_rate,
        schedule=schedule(s.client_schedule),
        **more,
    )


def superquantile(task: Task, s: Settings) -> Algorithm:
    """The reduction is its own."""
    return recipes.superquantile(
        task.model,
        s.client_optimizer,
        share=s.share,
        server=s.server_optimizer,
        schedule=schedule(s.client_schedule),
        **_more(task, s),
    )


def ifca(task: Task, s: Settings) -> Algorithm:
    """k models."""
    return recipes.ifca(
        task.model, s.client_optimizer, models=s.models, spread=s.spread, **_more(task, s)
    )


def _query_heat(task: Task, s: Settings, all_rows: bool = False) -> Heat | None:
    """The heat where clients count for their query examples and send the rows of these, or all of
    theirs."""
    if not s.heat or s.split == "none":
        return _heat(task, s)
    return halves.heat(
        task.train, s.split, task.model, all_rows=all_rows, drawn=s.sampler == "weighted"
    )


def fedrecon(task: Task, s: Settings) -> Algorithm:
    """``steps`` is here the most batches of one pass, as the paper counts; heat is that of the
    query examples."""
    local = {
        "split": s.split,
        "reconstruct_steps": s.reconstruct_steps,
        "reconstruct_epochs": s.reconstruct_epochs,
        "joint": s.joint,
        "batch": s.batch,
        **({"steps": s.steps, "epochs": s.epochs or 1} if s.steps else {"epochs": s.epochs}),
    }
    more = {
        **_without(_more(task, s), "steps", "epochs", "batch"),
        "heat": _query_heat(task, s),
        **_both(s),
    }
    return recipes.fedrecon(
        task.model,
        s.client_optimizer,
        reconstruction=optimizer("sgd", s.reconstruct_rate),
        **more,
        **local,
    )


def _both(s: Settings) -> dict[str, Any]:
    """The server's optimizer, and the schedule of the clients' rate."""
    return {"server": s.server_optimizer, "schedule": schedule(s.client_schedule)}


def maml(task: Task, s: Settings) -> Algorithm:
    """Full MAML changes support rows too; clients count for their query examples all the same."""
    more = {**_more(task, s), "heat": _query_heat(task, s, all_rows=not s.first_order), **_both(s)}
    own = {"inner_rate": s.inner_rate, "first_order": s.first_order, "split": s.split}
    return recipes.maml(task.model, s.client_optimizer, **own, **more)


def reptile(task: Task, s: Settings) -> Algorithm:
    """The server's rate is its epsilon."""
    more = {**_without(_more(task, s), "weights"), "schedule": schedule(s.client_schedule)}
    return recipes.reptile(task.model, s.client_optimizer, rate=s.server_rate, **more)


def ditto(task: Task, s: Settings) -> Algorithm:
    """The clients' own models have a rate of their own."""
    own = {"pull": s.pull, "personal": s.chosen("client", s.personal_rate or s.client_rate)}
    return recipes.ditto(task.model, s.client_optimizer, **own, **_more(task, s), **_both(s))


def fedper(task: Task, s: Settings) -> Algorithm:
    """For tasks whose model has local leaves."""
    return recipes.fedper(task.model, s.client_optimizer, **_more(task, s), **_both(s))
