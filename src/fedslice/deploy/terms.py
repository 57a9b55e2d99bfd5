"""What does not go together, refused before the first letter is written."""

from fedslice.compose import check_heat, check_sampler
from fedslice.data.sampling import Sampler
from fedslice.deploy.program import Program
from fedslice.deploy.schema import Schema
from fedslice.errors import InputError


def check_terms(
    program: Program, schema: Schema, sampler: Sampler, seed: int, least: int | None, spare: int
) -> None:
    """Refuse a run whose results would not be what its algorithm says."""
    algorithm, model = program.algorithm, program.model
    check_sampler(algorithm, sampler)
    able = sum(node.examples > 0 for node in schema.nodes.values())
    if not able:
        raise InputError(f"no node has any examples; refused were {schema.refused}")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed={seed}: give a whole number from 0 to {2**31 - 1}")
    if spare < 0 or (spare and (sampler.kind != "uniform" or algorithm.noise is not None)):
        raise InputError(
            "spare nodes go with sampling.uniform and without noise: who answers first is no draw,"
            " and what a draw hides is no longer hidden. Leave spare out"
        )
    if least is not None and not 0 <= least <= able:
        raise InputError(f"least={least}: there are {able} nodes with examples")
    reads = any(work.part == "support" for work in program.works)
    if reads and program.shapes.restless():
        raise InputError(
            f"the server of {algorithm.name} moves rows whose update is zero, also those that nodes"
            " only read in their support phase, and of which it is not told: use a server optimizer"
            " without momentum, such as optax.sgd or optax.adagrad"
        )
    check_heat(algorithm, schema.population(model))
