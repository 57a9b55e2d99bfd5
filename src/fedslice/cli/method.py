"""An algorithm by name: its recipe, from whose signature and docstring settings and page follow."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedslice.cli.docstring import Page, page_of
from fedslice.cli.settings import COMMON, Options, Settings
from fedslice.cli.sources import (
    SOURCES,
    client_optimizer,
    pooled_work,
    private_stages,
    sampler,
    secure_stage,
)
from fedslice.data import sampling
from fedslice.data.sampling import Sampler
from fedslice.tasks.base import Task
from fedslice.types import Algorithm

HEAT: Options = {"heat": (False, "correct rows by their heat, as FedSubAvg does")}
PROXIMAL: Options = {"mu": (0.0, "proximal term, as in FedProx")}
OF_THE_RUN = ("cohort", "sampler", "available", "engine", "threads")  # whatever the algorithm is


@dataclass(frozen=True)
class Method:
    """A recipe, and what a name adds to it: ``fixed`` settings, as values or functions of the task,
    ``defaults`` of shared ones, and a ``summary`` if it is a recipe under another name.

    A ``pooled`` method trains on all data as one client; where ``steps`` are ``capped`` they are
    the most batches of a pass, not draws.
    """

    recipe: Callable[..., Algorithm]
    summary: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    pooled: bool = False
    capped: bool = False

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Those of the recipe."""
        return inspect.signature(self.recipe).parameters

    @cached_property
    def page(self) -> Page:
        """What the recipe's docstring says."""
        page = page_of(self.recipe)
        return page._replace(summary=self.summary or page.summary)

    @cached_property
    def options(self) -> Options:
        """Settings of its own, with default and meaning."""
        found: dict[str, tuple[Any, str]] = {}
        for name, parameter in self.parameters.items():
            if name in SOURCES:
                found |= SOURCES[name].own
            elif name not in COMMON and isinstance(parameter.default, bool | int | float | str):
                found[name] = (parameter.default, self.page.arguments[name])
        return {name: each for name, each in found.items() if name not in self.additions}

    @cached_property
    def additions(self) -> Options:
        """Settings with which it becomes another method, so that in a comparison they must be asked
        for by name: heat, and a proximal term that is off by default."""
        heat = HEAT if "heat" in self.parameters and "heat" not in self.fixed else {}
        own = self.parameters.get("mu")
        if own is not None and own.default == 0:
            return {**heat, "mu": (own.default, self.page.arguments["mu"])}
        return {**heat, **(PROXIMAL if self.pulls else {})}

    @property
    def pulls(self) -> bool:
        """Whether ``mu`` puts a proximal term before the clients' optimizer."""
        return "optimizer" in self.parameters and "mu" not in self.parameters and not self.pooled

    @cached_property
    def unused(self) -> tuple[str, ...]:
        """The shared settings that no parameter takes."""
        used = {*OF_THE_RUN, *self.fixed, *self.parameters} - (
            {"available"} if self.pooled else set()
        )
        for name in self.parameters.keys() & SOURCES:
            used |= {*SOURCES[name].shared}
        return tuple(key for key in COMMON if key not in used)

    def build(self, task: Task, settings: Settings) -> Algorithm:
        """The recipe with the arguments that these settings make."""
        made = {
            name: self._argument(name, task, settings)
            for name in self.parameters
            if name in SOURCES or name in settings.values
        }
        if settings.values.get("noise"):  # the clip and the mean are in the heat's geometry
            made["stages"] = private_stages(settings, made.get("heat"))
        if "stages" in made:
            made["stages"] = [*made["stages"], *secure_stage(task, settings)]
        return self.recipe(**made)

    def _argument(self, name: str, task: Task, s: Settings) -> Any:
        if name == "optimizer" and self.pulls:
            return client_optimizer(s, s.mu)
        if name == "work" and self.pooled:
            return pooled_work(task, s)
        if name == "work" and self.capped and s.steps:
            return s.work._replace(epochs=s.epochs or 1)
        return SOURCES[name].make(task, s) if name in SOURCES else s.values[name]

    def sampler(self, settings: Settings, task: Task | None = None) -> Sampler:
        """Who takes part in a round."""
        return sampling.full() if self.pooled else sampler(settings, task)

    def text(self, name: str, whole: bool = True) -> str:
        """The page of this algorithm, in Markdown; without the ``whole``, one under another name
        refers to its recipe's."""
        page, alias = self.page, self.recipe.__name__ if self.summary else ""
        fixed = _pairs(self.fixed)
        if alias and not whole:
            page = page._replace(body=(f"It is `{alias}` with {fixed}; see there.",), closing=())
        parts = [
            f"## {name}",
            f"{page.summary}.",
            *page.body,
            *page.closing,
            _listed("Settings of its own:", self.options),
            _listed(
                f"What it can be combined with (in compare as {name}:KEY=VALUE):", self.additions
            ),
            f"Fixed by its definition: {fixed}." if fixed else "",
            f"Shared settings with a default of its own: {_pairs(self.defaults)}."
            if self.defaults
            else "",
            f"Shared settings that it does not use: {', '.join(self.unused)}."
            if self.unused
            else "",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def _pairs(values: Mapping[str, Any]) -> str:
    """What depends on the task is only named."""
    return ", ".join(
        key if callable(value) else f"{key} = {value}" for key, value in values.items()
    )


def _listed(title: str, options: Options) -> str:
    lines = [f"- `{key}` = {default}: {meaning}" for key, (default, meaning) in options.items()]
    return f"{title}\n\n" + "\n".join(lines) if lines else ""
