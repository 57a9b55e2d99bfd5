"""Several devices share the cohort; a process of its own has two, made of one CPU."""

import os
import subprocess
import sys
from pathlib import Path

import optax
import pytest
from kinds import few

import fedslice as fs
from fedslice.errors import InputError

SCRIPT = """
import sys, jax, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
import fedslice as fs
from laws import PEOPLE, method_of
from nodes import bits

name = sys.argv[1]

def state(**given):
    run = fs.simulate(method_of(name), PEOPLE, sampler=fs.sampling.uniform(5), seed=3, **given)
    reports = [np.asarray(report.figures.values).tolist() for report in run.rounds(3)]
    used = {len(leaf.devices()) for leaf in jax.tree.leaves(run.store.state)}
    assert used == {1}
    return reports, bits([run.store.state, run.memory])

one, two = (state(engine="map", devices=devices) for devices in (1, 2))
assert one == two
assert np.allclose(state(engine="vmap", devices=2)[0], one[0], rtol=1e-5)
assert state(engine=2, devices=2) == state(engine=2)
print("same")
"""


@pytest.mark.parametrize("name", few(["fedsubavg", "scaffold-2", "mime"], "scaffold-2"))
def test_two_devices_give_the_bits_of_one(name: str) -> None:
    here = Path(__file__).parents[1]
    given = {**os.environ, "PYTHONPATH": str(here)}
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, name],
        env=given,
        capture_output=True,
        text=True,
    )
    assert found.stdout == "same\n", found.stderr


def test_devices_that_are_not_there() -> None:
    task = fs.tasks.quadratic.example1(clients=4)
    method = fs.recipes.fedsgd(task.model, optax.sgd(0.1))
    with pytest.raises(InputError, match="devices=99: JAX has 1 here"):
        fs.simulate(method, task.train, sampler=fs.sampling.full(), devices=99)
