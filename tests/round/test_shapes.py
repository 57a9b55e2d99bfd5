"""What is found by tracing: how large a client is, what it remembers first, which program it is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from problems import ROWS, logistic, people, run_of

import fedslice as fs
from fedslice.heat import Heat
from fedslice.model import Model, Table
from fedslice.types import Client


def test_numbers_that_a_client_holds_on_average() -> None:
    """Rows of S(i) on average, rounded up, of one number each, a slope and a bias; with a survey as
    many again, for what it found."""
    population = people()
    rows = np.ceil(population.submodels(("item", "history"), ROWS).sizes.mean())
    plain = fs.recipes.fedavg(logistic(), optax.sgd(0.1), fs.Work(steps=1, batch=2))
    assert run_of(plain, population).shapes.numbers == rows + 2
    heat = population.heat(logistic())
    twice = fs.recipes.feddane(
        logistic(), optax.sgd(0.1), fs.Work(steps=1, batch=2), mu=0.1, heat=heat
    )
    assert twice.survey is not None
    assert run_of(twice, population).shapes.numbers == 2 * (rows + 2)


def test_a_first_memory_has_each_clients_own_rows() -> None:
    """A client that remembers the first model: the dense leaf once for each client, of the table
    the rows of its S(i), one client after the other."""
    model = Model(
        lambda key: {"bias": jnp.full(2, 0.5)},
        lambda p, b: p["w"][b["item"]].sum((1, 2)) + p["bias"].sum(),
        {"w": Table(ROWS, ("item",), (3,), jax.nn.initializers.normal(1.0))},
    )
    plain = fs.client.sgd(model, optax.sgd(0.1), fs.Work(steps=1, batch=2))
    client = Client(model, plain.work, lambda params: params, plain.run)
    population = people()
    run = run_of(fs.algorithm(client, [fs.stage.mean()], fs.server.optimize()), population)
    memory, _ = run.shapes.first_memory()
    assert np.array_equal(memory["bias"], np.full((len(population), 2), 0.5))
    items = [
        np.unique(population.columns["item"][population.owners == c])
        for c in range(len(population))
    ]
    assert np.array_equal(memory["w"], run.table("w", np.concatenate(items)))


def program(**settings: Any) -> str:
    method = fs.recipes.fedavg(logistic(300), optax.sgd(0.1), fs.Work(steps=1, batch=2), **settings)
    return run_of(method, people(rows=300)).shapes.program()


def heat_of(hot: int | None) -> Heat:
    """Two clients with each row, but one row with four."""
    mass = np.full((300, 2), 2.0)
    if hot is not None:
        mass[hot] = 4.0
    return Heat(7, 29.0, {"w": np.arange(300)}, {"w": mass})


def test_a_program_is_told_apart_by_single_numbers_that_it_computes_with() -> None:
    """The heat of one row, first or in the middle; and the same twice is the same."""
    found = [program(heat=heat_of(hot)) for hot in (None, 0, 1, 200)]
    assert len(set(found)) == 4
    assert program(heat=heat_of(200)) == found[3]


def test_a_program_does_not_know_where_functions_lie_in_memory() -> None:
    """Rules for derivatives are Python functions, elsewhere in every process, and some versions of
    JAX print where."""

    def built() -> Any:
        @jax.custom_jvp
        def square(x: jax.Array) -> jax.Array:
            return x**2

        square.defjvp(lambda at, along: (at[0] ** 2, 2 * at[0] * along[0]))
        return lambda message: square(message.weight)

    weights = [built(), built()]  # both alive, so in different places
    assert len({program(weights=each) for each in weights}) == 1
