"""Every algorithm by name, and what each of them runs with.

A recipe of :mod:`fedslice.recipes` has its own name; a line here only says what its name fixes or
where it has another default than its signature."""

import inspect
from collections.abc import Mapping, Sequence

from fedslice import recipes
from fedslice.cli.method import Method
from fedslice.cli.optimizers import CONSTANTS
from fedslice.cli.settings import COMMON, Settings
from fedslice.cli.text import change_of
from fedslice.errors import InputError, nearest
from fedslice.tasks.base import Task


def _tables(task: Task) -> bool:
    return bool(task.model.tables)


UNIFORM = {"weights": "uniform"}
SPECIAL = (
    Method(recipes.fedsubavg, fixed={"heat": True}),
    Method(recipes.central, pooled=True),
    Method(recipes.scaffold_heat, fixed={"heat": _tables}),
    Method(recipes.mime, fixed={"heat": _tables}),
    Method(recipes.feddane, fixed={"heat": _tables}),
    Method(recipes.feddyn, fixed=UNIFORM),
    Method(recipes.fedpd, fixed=UNIFORM, defaults={"sampler": "full"}),
    Method(recipes.fedrecon, capped=True),
    Method(recipes.maml, defaults=UNIFORM),
    Method(recipes.reptile, fixed=UNIFORM),
)


def _server(summary: str, server: str, rate: float) -> Method:
    """FedAvg with one of the server optimizers of FedOpt, under its own name."""
    return Method(recipes.fedavg, summary, {"server": server}, {"server_rate": rate})


OTHER_NAMES = {
    "fedavgm": _server("FedAvg with momentum 0.9 on the server", "momentum", 1.0),
    "fedadagrad": _server("FedAvg with Adagrad on the server", "adagrad", 0.1),
    "fedadam": _server("FedAvg with Adam on the server", "adam", 0.01),
    "fedyogi": _server("FedAvg with Yogi on the server", "yogi", 0.01),
}


def _all() -> dict[str, Method]:
    special = {method.recipe: method for method in SPECIAL}
    found = [each for each in vars(recipes).values() if inspect.isfunction(each)]
    named = {each.__name__.replace("_", "-"): special.get(each, Method(each)) for each in found}
    return named | OTHER_NAMES


ALGORITHMS: dict[str, Method] = _all()


def find_method(name: str) -> Method:
    """The algorithm of this name."""
    if name not in ALGORITHMS:
        raise InputError(f"there is no algorithm {name!r}; {nearest(name, ALGORITHMS)}")
    return ALGORITHMS[name]


def settings_for(
    task: Task, algorithm: str, changes: Sequence[str], several: bool = False
) -> Settings:
    """What this algorithm runs with: the task's published settings with the user's changes,
    ``key=value`` or ``ALGORITHM:key=value``.  Nothing is in it that the algorithm does not use.

    With ``several``, when algorithms are compared, changes that are not its own or shared are
    passed over."""
    method = find_method(algorithm)
    known = {**COMMON, **method.options, **method.additions}
    own = {key: default for key, (default, _) in known.items()}
    published = {
        key: value for key, value in task.settings.items() if key in own
    }  # some are of one algorithm
    rate = task.learning_rates.get(algorithm, task.learning_rates.get("", 0.1))
    values = own | {
        "client_rate": rate,
        **({"epochs": 0} if "steps" in task.settings else {}),
        **published,
    }
    if "client_rate" in method.unused:  # the server alone steps
        values["server_rate"] = rate
    alone = task.algorithms.get(algorithm, {})
    values |= {**method.defaults, **{key: value for key, value in alone.items() if key in own}}
    values |= {key: made(task) if callable(made) else made for key, made in method.fixed.items()}
    settings = Settings({key: value for key, value in values.items() if key not in method.unused})
    settings = _changed(
        algorithm, settings, [c for c in changes if not _constant(c)], several
    ).with_constants()
    tuned = {
        key: value for key, value in alone.items() if key not in own and key in settings.values
    }
    settings = Settings({**settings.values, **tuned}, settings.said)
    return (
        _changed(algorithm, settings, [c for c in changes if _constant(c)], several)
        .with_weights()
        .with_noise()
    )


def _constant(change: str) -> bool:
    """Whether it is one of an optimizer's: those come after the choice of the optimizer, in
    whatever order they are given."""
    side, _, name = change_of(change)[1].partition("_")
    return side in ("client", "server") and name in CONSTANTS


def _changed(algorithm: str, settings: Settings, changes: Sequence[str], several: bool) -> Settings:
    method = find_method(algorithm)
    for change in sorted(
        changes, key=lambda each: bool(change_of(each)[0])
    ):  # what names the algorithm has the last word
        named, key, value = change_of(change)
        if several and not _takes(algorithm, settings, named, key):
            continue
        if named not in ("", algorithm):
            raise InputError(f"--set {change} is for {named}, not for {algorithm}")
        if key in method.fixed:
            raise InputError(
                f"--set {change}: {algorithm} has {key}={settings.values[key]} by its definition"
            )
        if key in method.unused:
            raise InputError(
                f"--set {change}: {algorithm} does not use {key}; fedslice algorithms"
                f" {algorithm} tells what it has"
            )
        settings = settings.change(key, value)
    return settings


def _takes(algorithm: str, settings: Settings, named: str, key: str) -> bool:
    """Whether a change is for this algorithm: it is named, or has the setting as its own or a
    shared one."""
    method = find_method(algorithm)
    return named == algorithm or (
        not named and key in settings.values and key not in {**method.additions, **method.fixed}
    )


def settings_of_all(
    task: Task, algorithms: Sequence[str], changes: Sequence[str]
) -> tuple[dict[str, Settings], list[str]]:
    """What each of several algorithms runs with, and notes on changes that are not for all of them.

    A change that none of them takes is refused.
    """
    found = {name: settings_for(task, name, changes, several=True) for name in algorithms}
    notes = []
    for change in changes:
        named, key, value = change_of(change)
        users = [name for name, settings in found.items() if _takes(name, settings, named, key)]
        if not users:
            raise InputError(f"--set {change}: {_nobody(named, key, value, found)}")
        if not named and len(users) < len(found):
            notes.append(f"note: {key}={value} is for {', '.join(users)} only")
    return found, notes


def _nobody(named: str, key: str, value: str, found: Mapping[str, Settings]) -> str:
    """Why no algorithm takes a change."""
    if named:
        find_method(named)
        return f"{named} is not among those compared, {', '.join(found)}"
    others = [name for name in found if key in find_method(name).additions]
    if others:
        return (
            f"this makes {others[0]} another method, so say for which: --set"
            f" {others[0]}:{key}={value}"
        )
    idle = [name for name in found if key in (*find_method(name).unused, *find_method(name).fixed)]
    if idle:
        return f"{', '.join(idle)}: not used, or fixed by the definition"
    return (
        f"none of {', '.join(found)} has it;"
        f" {nearest(key, dict.fromkeys(k for s in found.values() for k in s.values))}"
    )
