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
    _check_hidden(program, schema, spare)
    named = not program.wire.hides
    reads = named and any(work.part == "support" for work in program.works)
    if reads and program.shapes.restless():
        raise InputError(
            f"the server of {algorithm.name} moves rows whose update is zero, also those that nodes"
            " only read in their support phase, and of which it is not told: use a server optimizer"
            " without momentum, such as optax.sgd or optax.adagrad"
        )
    check_heat(algorithm, schema.population(model))


def _check_hidden(program: Program, schema: Schema, spare: int) -> None:
    """What nodes told when they registered must be what the algorithm lets them tell."""
    algorithm, hides = program.algorithm, program.wire.hides
    able = {name: node for name, node in schema.nodes.items() if node.examples}
    other = [name for name, node in able.items() if node.hidden != hides]
    if other and hides:
        raise InputError(
            f"{algorithm.name} hides which rows are a node's, and {other[0]!r} named them when it"
            " registered: start the nodes with this algorithm and register them anew"
        )
    if other:
        raise InputError(
            f"{other[0]!r} does not say which rows it holds, since its own algorithm hides them:"
            f" {algorithm.name} needs them; use the algorithm of the nodes"
        )
    if not hides:
        return
    for stage in algorithm.stages:
        if stage.heat is not None and stage.heat.release is None:
            raise InputError(
                "the heat is exact, and tells how many hold each row: collect it from the nodes,"
                " deploy.collect(link, schema, model, privacy.heat.symmetric(1.0)), or say that it"
                " is public knowledge by privacy.heat.public(heat)"
            )
    if not program.summed:
        return
    if keyless := [name for name, node in able.items() if not node.key]:
        raise InputError(
            f"{keyless[0]!r} registered without a key for secure sums: register it anew"
        )
    if spare:
        raise InputError("a secure sum has no spare nodes: all who stay count. Leave spare out")
