"""What it gains a client to make the model its own: figures before and after adapting, client by
client.

Each client adapts on its support examples and is judged on its query examples alone.  With the
reconstruction of local leaves this is ReconEval (Singhal et al. 2021), with all leaves it is
fine-tuning.  Before adapting, local leaves are as drawn: a model that has any is then as good as
nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.compatibility import meet
from fedslice.data.halves import Split, assign, check
from fedslice.data.population import Population
from fedslice.errors import InputError, nearest
from fedslice.evaluation.scores import Scores, joined, tally
from fedslice.model import Model
from fedslice.round.batches import check_query
from fedslice.round.mode import choose
from fedslice.round.plan import Plan, Planner
from fedslice.round.program import once
from fedslice.round.store import take
from fedslice.simulation.run import Run
from fedslice.types import Adaptation, Array, Key, Params, Phase, Work

TOGETHER = 64  # clients that adapt side by side
SCORED = 32  # examples of a client scored at once
NO_QUERY = "no client has a query example to be judged by: use another split"


class Gain(NamedTuple):
    """Figures on the clients' query examples ``before`` and ``after`` they adapted.

    ``local`` are the local leaves that each client then had, where they were asked for, and
    ``moved`` says whether any of them changed other leaves.

    >>> losses = [4.0, 2.0, 1.0, np.nan], [1.0, 1.0, 2.0, np.nan]
    >>> one, two = (Scores({}, {"loss": np.array(loss)}) for loss in losses)
    >>> Gain(one, two).clients("loss").tolist(), Gain(one, two).spread("loss")["share"]
    ([3.0, 1.0, -1.0, nan], 0.6666666666666666)
    """

    before: Scores
    after: Scores
    local: Mapping[str, np.ndarray] = {}
    moved: bool = False

    def __str__(self) -> str:
        return "; ".join(
            f"{name} {value:.4f} to {self.after.pooled[name]:.4f}"
            for name, value in self.before.pooled.items()
        )

    def clients(self, name: str, more: bool | None = None) -> np.ndarray:
        """What each client gains in a figure: how far it falls, or with ``more`` (by default, where
        its metric says so: accuracy, AUC) rises.

        NaN for a client without query examples; minus infinity for one whose own model is no longer
        finite.
        """
        if name not in self.before.clients:
            wanted = nearest(name, self.before.clients)
            raise InputError(f"there is no figure {name!r}; {wanted}")
        more = name in self.before.more if more is None else more
        before, after = self.before.clients[name], self.after.clients[name]
        with np.errstate(invalid="ignore"):
            change = after - before if more else before - after
        return np.where(np.isnan(before) | np.isfinite(after), change, -np.inf)

    def spread(self, name: str, more: bool | None = None) -> dict[str, float]:
        """The gain over clients: mean, percentiles, the worst, and the ``share`` of clients that
        gain at all."""
        gains = self.clients(name, more)
        gains = gains[~np.isnan(gains)]
        if not len(gains):
            raise InputError(NO_QUERY)
        if np.isfinite(gains).all():
            low, middle, high = np.percentile(gains, [10, 50, 90])
        else:  # between a number and infinity there is nothing
            low, middle, high = np.percentile(gains, [10, 50, 90], method="lower")
        figures = {
            "mean": gains.mean(),
            "p10": low,
            "median": middle,
            "p90": high,
            "worst": gains.min(),
        }
        return {key: float(figure) for key, figure in figures.items()} | {
            "share": float(np.mean(gains > 0))
        }


class Personal:
    """Judges models by what the clients of one population make of them; prepared once, called with
    any parameters.

    ``support`` is the most examples a client may adapt on; its query examples stay the same.  The
    split is the adaptation's own unless given, and ``"half"`` for one that was made without.  With
    ``leaves`` it also gives the clients' local leaves.
    """

    def __init__(
        self,
        population: Population,
        adaptation: Adaptation,
        *,
        split: Split | None = None,
        support: int | None = None,
        seed: int = 0,
        engine: str = "auto",
        leaves: bool = False,
    ) -> None:
        self.leaves = leaves
        self.adaptation, self.model, self.population = adaptation, adaptation.model, population
        own = adaptation.work.split if adaptation.work.part == "support" else "half"
        chosen = own if split is None else split
        check(chosen)
        if support is not None and support < 0:
            raise InputError(f"support={support} must not be negative")
        self.part = part = assign(population, chosen, support)
        works = [adaptation.work, Work(epochs=1, batch=SCORED)]
        halves = [
            w._replace(part=p, split=lambda _: part)
            for w, p in zip(works, ("support", "query"), strict=True)
        ]
        self.spaces = population.spaces(self.model)
        meet(self.model, population)
        fields = self.model.fields(population.columns)
        self.planner = Planner(population, self.spaces, halves, seed, fields=fields)
        check_query(halves, self.planner.pools)
        self.cohorts = self._cohorts(np.arange(len(population)))
        # they find the sizes to pad to
        plans = [self.planner.plan(0, cohort)[0] for cohort in self.cohorts]
        self.scored = max((int(plan.own.phases[1].steps.max()) for plan in plans), default=1)
        self.mode, self.threads = choose(engine, None, _numbers(self.model, population), TOGETHER)
        clients = Clients(adaptation, jax.random.key(seed), self.mode, leaves)
        kind = ("clients", seed, self.mode, leaves)
        self.compiled = once(adaptation, kind, lambda: jax.jit(clients.cohort))

    def ids(self) -> dict[str, np.ndarray]:
        """The rows, by space, that the population's examples need."""
        return {name: space.ids for name, space in self.spaces.items()}

    def __call__(
        self, params: Params, steps: int | None = None, clients: np.ndarray | None = None
    ) -> Gain:
        """Judge ``params``, whose tables hold the rows :meth:`ids`; adapting stops after ``steps``
        steps.  With ``clients``, by number, only these are judged."""
        owners, found, local = self._found(params, steps, clients)
        size = len(self.population)
        before, after = (
            tally(self.model, [part[when] for part in found], owners, size) for when in (0, 1)
        )
        if not self.leaves or not local:
            return Gain(before, after)
        return Gain(before, after, *_each(local, size))

    def numbers(self, params: Params) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """``model.measure`` of every query example before and after, client by client: of each
        figure a pair, [2, examples]."""
        _, found, _ = self._found(params, None, None)
        before, after = (
            {name: joined([part[when] for part in found], name) for name in self.model.figures}
            for when in (0, 1)
        )
        return before, after

    def _found(
        self, params: Params, steps: int | None, clients: np.ndarray | None
    ) -> tuple[np.ndarray, list[tuple[Any, Any]], list[tuple[np.ndarray, Any]]]:
        """The owners of the query examples, and their numbers, in parts; and which clients have
        which local leaves after adapting."""
        if steps is not None and steps < 0:
            raise InputError(f"steps={steps} must not be negative")
        own = [np.zeros(0, np.int64)]
        found: list[tuple[Any, Any]] = []
        local: list[tuple[np.ndarray, Any]] = []
        for plan, (numbers, leaves) in self._results(
            params, steps, self.cohorts if clients is None else self._cohorts(clients)
        ):
            real = plan.own.phases[1].real
            own.append(np.broadcast_to(plan.own.place[:, None, None], real.shape)[real])
            found.append(jax.tree.map(lambda x, real=real: np.asarray(x)[real], numbers))
            local.append((plan.own.place, leaves))
        return np.concatenate(own), found, local

    def _cohorts(self, clients: np.ndarray) -> list[np.ndarray]:
        """Those of the clients who have query examples, in groups that adapt side by side."""
        chosen = np.intersect1d(clients, np.flatnonzero(self.planner.pools[1].counts))
        return [chosen[start : start + TOGETHER] for start in range(0, len(chosen), TOGETHER)]

    def _results(
        self, params: Params, steps: int | None, cohorts: list[np.ndarray]
    ) -> Iterator[tuple[Plan, Any]]:
        """Each cohort's plan and numbers; cohorts run in threads where their clients run one after
        the other."""

        def one(plan: Plan) -> tuple[Plan, Any]:
            return plan, jax.block_until_ready(
                self.compiled(params, _slots(plan), plan.own.number, plan.own.phases)
            )

        with ThreadPoolExecutor(self.threads) as pool:
            for start in range(0, len(cohorts), self.threads):
                several = cohorts[start : start + self.threads]
                plans = [self.planner.plan(0, cohort)[0] for cohort in several]
                yield from pool.map(one, [_stopped(plan, steps, self.scored) for plan in plans])


class Clients(NamedTuple):
    """What clients do, apart from their data: one program for all that adapt alike."""

    adaptation: Adaptation
    key: Key
    mode: str | int
    leaves: bool

    def cohort(self, params: Params, slots: dict[str, Array], clients: Array, phases: Any) -> Any:
        """The numbers of every client."""
        limits = [jnp.max(phase.steps) for phase in phases]

        def one(given: tuple[dict[str, Array], Array, Any]) -> Any:
            places, number, mine = given
            support, query = (
                Phase(
                    p.batches,
                    p.sizes,
                    p.steps,
                    p.steps if self.mode == "map" else limit,
                    p.examples,
                )
                for p, limit in zip(mine, limits, strict=True)
            )
            rows = take(_tags(self.adaptation.model, params), params, places)
            return self._client(rows, support, query, jax.random.fold_in(self.key, number))

        stacked = (slots, clients, phases)
        return jax.vmap(one)(stacked) if self.mode == "vmap" else jax.lax.map(one, stacked)

    def _client(self, params: Params, support: Phase, query: Phase, key: Key) -> Any:
        """The numbers of one client's query examples before and after; its local leaves, and
        whether it changed others."""
        before = {**params, **self.adaptation.model.fresh(key)}
        after = _adapt(self.adaptation, params, support, key)
        measure = self.adaptation.model.measure
        numbers = jax.lax.map(
            lambda batch: (measure(before, batch), measure(after, batch)), query.batches
        )
        if not self.leaves:
            return numbers, ()
        kept = [jnp.all(after[name] == leaf) for name, leaf in params.items()]
        moved = ~jnp.all(jnp.stack(kept)) if kept else jnp.zeros((), bool)
        return numbers, ({name: after[name] for name in self.adaptation.model.local}, moved)


def _each(
    parts: Sequence[tuple[np.ndarray, Any]], clients: int
) -> tuple[dict[str, np.ndarray], bool]:
    """Local leaves by client, zeros where one was not judged; whether any changed other leaves."""
    found: dict[str, np.ndarray] = {}
    moved = False
    for place, (leaves, others) in parts:
        real = place < clients
        moved |= bool(np.asarray(others)[real].any())
        for name, leaf in leaves.items():
            known = found.setdefault(name, np.zeros((clients, *leaf.shape[1:]), np.float32))
            known[place[real]] = np.asarray(leaf)[real]
    return found, moved


def adapted(
    run: Run, population: Population, adaptation: Adaptation | None = None, **options: Any
) -> Gain:
    """The run's present model on clients who adapt it as they do in training, or by ``adaptation``.

    ``options`` are those of :class:`Personal`.  Where several figures are wanted, for instance by
    the number of steps, use that class: it prepares the data once.

    >>> import optax, fedslice as fs
    >>> from fedslice.client import finetune
    >>> model = fs.Model(lambda key: {"x": jnp.zeros(())}, lambda p, b: (p["x"] - b["a"]) ** 2 / 2)
    >>> people = fs.Population.from_arrays([0, 0, 1, 1], a=[2.0, 2.0, -4.0, -4.0])
    >>> method = fs.recipes.fedavg(model, optax.sgd(0.5))
    >>> run = fs.simulate(method, people, sampler=fs.sampling.full())
    >>> tuned = finetune(model, optax.sgd(0.5), fs.Work(steps=1))
    >>> adapted(run, people, tuned).clients("loss").tolist()
    [1.5, 6.0]
    """
    chosen = adaptation or run.algorithm.client.adapt
    if chosen is None:
        raise InputError(
            f"clients of {run.algorithm.name} do not adapt the model: say how, for instance by "
            "client.finetune(model, optax.sgd(0.1), fs.Work(steps=10))"
        )
    if set(chosen.model.tables) != set(run.model.tables) or set(chosen.model.local) != set(
        run.model.local
    ):
        raise InputError(
            "the adaptation is of another model: its tables or local leaves are not those of"
            " the run"
        )
    meet(run.model, population, run.population)
    judge = Personal(population, chosen, **options)
    return judge(run.params(judge.ids()))


def _adapt(adaptation: Adaptation, params: Params, phase: Phase, key: Key) -> Params:
    """One client's model; a noisy model's steps get keys of their own."""
    if adaptation.model.noisy:
        phase = phase._replace(key=jax.random.fold_in(key, 0))
    return adaptation.apply(params, phase, key)


def model_of(
    adaptation: Adaptation, params: Params, population: Population, client: int = 0, seed: int = 0
) -> Params:
    """The model that one client would serve, adapted on all its examples: ``params``, whose tables
    hold the rows that ``population`` needs, with the client's own leaves; of tables, the rows of
    S(i), in ascending order.

    >>> import optax
    >>> from fedslice.client import reconstruction
    >>> model = Model(
    ...     lambda key: {"l": jnp.zeros(())}, lambda p, b: (p["l"] - b["a"]) ** 2 / 2, local="l"
    ... )
    >>> people = Population.from_arrays([7, 7, 7], a=[2.0, 3.0, 4.0])
    >>> adaptation = reconstruction(model, optax.sgd(1.0))
    >>> {name: float(x) for name, x in model_of(adaptation, {}, people).items()}
    {'l': 3.0}
    """
    model, spaces = adaptation.model, population.spaces(adaptation.model)
    meet(model, population)
    work = adaptation.work._replace(part="all")
    planner = Planner(
        population, spaces, [work], seed, rows="held", fields=model.fields(population.columns)
    )
    plan, _ = planner.plan(0, np.array([client]))
    tags = _tags(model, params)

    def fit(params: Params, slots: dict[str, Array], phases: Any) -> Params:
        (phase,) = (Phase(p.batches, p.sizes, p.steps, p.steps, p.examples) for p in phases)
        return _adapt(
            adaptation,
            take(tags, params, slots),
            phase,
            jax.random.fold_in(jax.random.key(seed), int(population.numbers[client])),
        )

    first = jax.tree.map(lambda leaf: leaf[0], (_slots(plan), plan.own.phases))
    found = jax.jit(fit)(params, *first)
    held = {name: int(space.sizes[client]) for name, space in spaces.items()}
    return {
        name: leaf[: held[tags[name]]] if tags.get(name) else leaf for name, leaf in found.items()
    }


def _tags(model: Model, params: Params) -> dict[str, str]:
    """The space of each leaf that is a table, "" for the others."""
    return {name: model.space_of.get(name, "") for name in params}


def _slots(plan: Plan) -> dict[str, np.ndarray]:
    """Where each client's rows stand among those of the population; past the end for padding."""
    past = np.int32(2**31 - 1)
    return {
        name: np.append(union, past)[plan.own.places[name]]
        for name, union in plan.shared.union.items()
    }


def _stopped(plan: Plan, steps: int | None, scored: int) -> Plan:
    """The plan with at most so many steps of adapting, and of query batches only those that some
    client has."""
    support, query = plan.own.phases
    if steps is not None:
        support = support._replace(steps=np.minimum(support.steps, np.int32(steps)))
    batches = {name: field[:, :scored] for name, field in query.batches.items()}
    query = query._replace(sizes=query.sizes[:, :scored], batches=batches)
    return plan._replace(own=plan.own._replace(phases=(support, query)))


def _numbers(model: Model, population: Population) -> int:
    """How many numbers a client holds on average."""
    dense = sum(
        int(np.prod(leaf.shape))
        for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    )
    sizes = {name: float(space.sizes.mean()) for name, space in population.spaces(model).items()}
    return dense + int(
        sum(table.width * sizes[model.space_of[name]] for name, table in model.tables.items())
    )
