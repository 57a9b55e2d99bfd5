"""What the models that clients keep are worth: Ditto's v_i, FedPer's local leaves, measured client
by client.

Before: the global model, with local leaves as drawn.  After: the model that each client would serve
from its memory.  Both on examples of the same clients that they did not train on.  Rows that a
client's training data did not hold are those of the global model.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.compatibility import meet
from fedslice.data.population import Population
from fedslice.data.submodel import Submodels
from fedslice.errors import InputError
from fedslice.evaluation.gain import SCORED, TOGETHER, Gain
from fedslice.evaluation.scores import tally
from fedslice.round.disk import PAST
from fedslice.round.mode import choose
from fedslice.round.plan import Plan, Planner
from fedslice.round.store import PER_CLIENT, take
from fedslice.simulation.run import Run
from fedslice.types import Array, Params, PyTree, Work


class Kept:
    """Judges what the clients of ``run`` keep at the moment; prepared once for one population,
    called at any round.

    ``population`` has the clients of the training, in the same order, with other examples.
    """

    def __init__(self, run: Run, population: Population, *, engine: str = "auto") -> None:
        if run.algorithm.client.serve is None:
            raise InputError(
                f"clients of {run.algorithm.name} keep no model of their own: use ditto or fedper,"
                " or see with personal.adapted what adapting the global one gains"
            )
        if not np.array_equal(population.clients, run.population.clients):
            raise InputError(
                f"the {len(population)} clients are not the {len(run.population)} of the training,"
                " in the same order: split examples, not clients, as in train, test ="
                " population.split(examples=0.2) or population.split(time='time', examples=0.2)"
            )
        self.run, self.model, self.population, self.serve = (
            run,
            run.model,
            population,
            run.algorithm.client.serve,
        )
        self.spaces = population.spaces(self.model)
        meet(self.model, population, run.population)
        self.known = {name: _places(run.spaces[name], space) for name, space in self.spaces.items()}
        fields = self.model.fields(population.columns)
        works = [Work(epochs=1, batch=SCORED)]
        self.planner = Planner(population, self.spaces, works, 0, memory=True, fields=fields)
        clients = np.flatnonzero(population.counts)
        self.cohorts = [
            clients[start : start + TOGETHER] for start in range(0, len(clients), TOGETHER)
        ]
        for cohort in self.cohorts:  # to find the sizes to pad to
            self.planner.plan(0, cohort)
        self.mode, _ = choose(engine, 1, run.shapes.numbers, TOGETHER)
        self.compiled = jax.jit(self._cohort)

    def __call__(self) -> Gain:
        """The figures with the run's present model and memory."""
        params = self.run.params({name: space.ids for name, space in self.spaces.items()})
        owners: list[np.ndarray] = [np.zeros(0, np.int64)]
        found: list[tuple[Any, Any]] = []
        for cohort in self.cohorts:
            plan, _ = self.planner.plan(0, cohort)
            slots, places = self._rows(plan)
            memory, drawers = self.run.remembered({PER_CLIENT: plan.own.place, **places})
            numbers = self.compiled(
                params, memory[0], slots, drawers, plan.own.number, plan.own.phases[0].batches
            )
            real = plan.own.phases[0].real
            owners.append(np.broadcast_to(plan.own.place[:, None, None], real.shape)[real])
            found.append(jax.tree.map(lambda x, real=real: np.asarray(x)[real], numbers))
        own, clients = np.concatenate(owners), len(self.population)
        before, after = (
            tally(self.model, [part[when] for part in found], own, clients) for when in (0, 1)
        )
        return Gain(before, after)

    def _rows(self, plan: Plan) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Where each client's rows stand in ``params`` and, if it keeps them, in the memory."""
        slots = {
            name: np.append(space.slots, PAST)[plan.own.held[name]]
            for name, space in self.spaces.items()
        }
        return slots, {
            name: np.append(known, PAST)[plan.own.held[name]] for name, known in self.known.items()
        }

    def _cohort(
        self,
        params: Params,
        memory: PyTree,
        slots: dict[str, Array],
        drawers: dict[str, Array],
        numbers: Array,
        batches: dict[str, Array],
    ) -> Any:
        tables = {name: self.model.space_of.get(name, "") for name in params}

        def one(given: tuple[Any, Any, Array, Any]) -> Any:
            slots, drawers, number, batches = given
            key = jax.random.fold_in(jax.random.key(0), number)
            rows = take(tables, params, slots)
            own = take(self.run.shapes.tags.memory[0], memory, drawers)
            served = self.serve(rows, own, key)
            trained = {
                name: _choose(drawers[tables[name]] < PAST, served[name], rows[name])
                for name in self.model.tables
            }
            before, after = {**rows, **self.model.fresh(key)}, {**served, **trained}
            measure = self.model.measure
            return jax.lax.map(
                lambda batch: (measure(before, batch), measure(after, batch)), batches
            )

        stacked = (slots, drawers, numbers, batches)
        return jax.vmap(one)(stacked) if self.mode == "vmap" else jax.lax.map(one, stacked)


def kept(run: Run, population: Population) -> Gain:
    """What the clients of ``run`` gain from the models that they keep, on other examples of the
    same clients.

    In a loop, :class:`Kept` prepares the data only once.

    >>> import optax, fedslice as fs
    >>> model = fs.Model(lambda key: {"x": jnp.zeros(())}, lambda p, b: (p["x"] - b["a"]) ** 2 / 2)
    >>> people = fs.Population.from_arrays([0, 1], a=[2.0, -4.0])
    >>> method = fs.recipes.ditto(model, optax.sgd(1.0), fs.Work(steps=1, batch=1), pull=0.0)
    >>> run = fs.simulate(method, people, sampler=fs.sampling.full())
    >>> _ = run.train(1, progress=False)  # the global model is now -1, the clients' own 2 and -4
    >>> kept(run, people).clients("loss").tolist()
    [4.5, 4.5]
    """
    return Kept(run, population)()


def _places(train: Submodels, test: Submodels) -> np.ndarray:
    """For each row of the test S(i), one after the other, its place in the list of the training
    S(i)."""
    # ids themselves, times clients, may have more than 63 bits
    every = np.union1d(train.ids, test.ids)

    def keys(space: Submodels) -> np.ndarray:
        place = np.searchsorted(every, space.ids)[space.slots]
        return np.repeat(np.arange(len(space.sizes)) * len(every), space.sizes) + place

    mine, wanted = keys(train), keys(test)
    place = np.searchsorted(mine, wanted)
    hit = np.append(mine, -1)[place] == wanted
    return np.where(hit, place, PAST).astype(np.int32)


def _choose(which: Array, left: Array, right: Array) -> Array:
    """Rows of ``left`` where ``which`` is true, of ``right`` elsewhere."""
    return jnp.where(which.reshape(which.shape + (1,) * (left.ndim - 1)), left, right)
