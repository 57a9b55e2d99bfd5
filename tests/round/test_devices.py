"""Several devices share the cohort; a process of its own has two, made of one CPU."""

import os
import subprocess
import sys
from pathlib import Path

import optax
import pytest

import fedslice as fs
from fedslice.errors import InputError

SCRIPT = """
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
import fedslice as fs
from laws import MODEL, RECIPES, sampler_of
from nodes import bits
from problems import people

def state(name, **given):
    method = RECIPES[name](MODEL, people())
    run = fs.simulate(method, people(), sampler=fs.sampling.uniform(5), seed=3, **given)
    reports = [np.asarray(report.figures.values).tolist() for report in run.rounds(3)]
    used = {len(leaf.devices()) for leaf in jax.tree.leaves(run.store.state)}
    assert used == {1}
    return reports, bits([run.store.state, run.memory])

for name in ("fedsubavg", "scaffold-2", "mime"):
    one, two = (state(name, engine="map", devices=devices) for devices in (1, 2))
    assert one == two, name
    both = state(name, engine="vmap", devices=2)
    assert np.allclose(both[0], one[0], rtol=1e-5), name
assert state("fedsubavg", engine=2, devices=2) == state("fedsubavg", engine=2)
print("same")
"""


def test_two_devices_give_the_bits_of_one() -> None:
    here = Path(__file__).parents[1]
    given = {**os.environ, "PYTHONPATH": str(here)}
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT], env=given, capture_output=True, text=True
    )
    assert found.stdout == "same\n", found.stderr


def test_devices_that_are_not_there() -> None:
    task = fs.tasks.quadratic.example1(clients=4)
    method = fs.recipes.fedsgd(task.model, optax.sgd(0.1))
    with pytest.raises(InputError, match="devices=99: JAX has 1 here"):
        fs.simulate(method, task.train, sampler=fs.sampling.full(), devices=99)
