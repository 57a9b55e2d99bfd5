"""Put the parts together, and refuse what cannot work."""

from collections.abc import Sequence

from fedslice.data.population import Population
from fedslice.data.sampling import Sampler
from fedslice.errors import InputError
from fedslice.reduce import total
from fedslice.safeguards import check_bounds, check_drawn, check_lazy, check_most, check_private
from fedslice.types import Algorithm, Client, Reduce, Server, Stage


def algorithm(
    client: Client,
    stages: Sequence[Stage],
    server: Server,
    reduce: Reduce | None = None,
    name: str = "custom",
    survey: Client | None = None,
) -> Algorithm:
    """An algorithm from its parts; ``stages`` are written from the learner to the wire.

    >>> import optax, fedslice as fs
    >>> model = fs.tasks.quadratic.example1(clients=4).model
    >>> local = fs.client.sgd(model, optax.sgd(0.1))
    >>> algorithm(local, [fs.stage.mean()], fs.server.optimize()).mean.weights
    'examples'
    """
    _check_stages(stages)
    if server.several and any(stage.codes for stage in stages):
        raise InputError(
            "compression is not possible with several models side by side: leave compress out"
        )
    chosen = reduce or total()
    needs_sum = server.needs_sum or client.everyone or any(stage.needs_sum for stage in stages)
    if needs_sum and not chosen.plain:
        raise InputError(
            f"{name} works on the plain sum of its clients' messages, which {chosen.name} is not:"
            " use reduce=sum, or an algorithm without such state (fedavg, fedsubavg, fedprox, ...)"
        )
    if any(stage.alters for stage in stages) and (server.needs_update or client.everyone):
        raise InputError(
            f"{name} keeps duals that must match the updates sent: leave out clip, compress and"
            " nova"
        )
    if server.several and not chosen.additive:
        raise InputError(
            f"{name} sends zeros for the models a client did not choose, which {chosen.name} would"
            " count"
        )
    on_sum = server.noise is not None or any(stage.on_sum for stage in stages)
    if on_sum and not chosen.plain:
        raise InputError(
            f"a stage after the mean, or noise, acts on the sum of messages, which {chosen.name} is"
            " not: use reduce=sum, or leave that out"
        )
    if on_sum and survey is not None:
        raise InputError(
            f"{name} surveys its clients first, and what they answer would not go through the stage"
            " after the mean, or get noise: leave that out, or use an algorithm of one trip"
        )
    made = Algorithm(name, client, tuple(stages), server, chosen, survey)
    check_bounds(made)
    if made.noise is not None:
        check_private(made)
    if server.noise is not None:
        check_lazy(made)
    return made


def _check_stages(stages: Sequence[Stage]) -> None:
    weighing = [place for place, stage in enumerate(stages) if stage.weighs]
    if len(weighing) != 1:
        raise InputError(
            f"an algorithm needs exactly one stage that turns the sum into a mean, got"
            f" {len(weighing)}: put stage.mean(...) once among its stages"
        )
    before, after = stages[: weighing[0]], stages[weighing[0] + 1 :]
    if not all(stage.on_sum for stage in after):
        raise InputError(
            "only what acts on the sum may stand after the mean: put clip, compress and the like"
            " before it"
        )
    if any(stage.on_sum for stage in before):
        raise InputError("a stage that acts on the sum must stand after the mean")
    if sum(stage.codes for stage in before) > 1:
        raise InputError("an update can be compressed once: leave one of the stages out")
    if after and any(stage.codes for stage in before):
        raise InputError(
            "a stage after the mean needs updates as numbers, not as codes of them: leave out"
            " compress, or that stage"
        )


def check_sampler(algorithm: Algorithm, sampler: Sampler) -> None:
    """Refuse a sampler with which the algorithm's mean is not what it says.

    Drawn in proportion to their examples, clients must not be weighted by them again, and a row's
    holders come as often as their examples say: c_m = sum_all |D| / sum_{i: m in S(i)} |D_i|."""
    name, mean = algorithm.name, algorithm.mean
    if algorithm.noise is not None:
        check_drawn(algorithm.noise, sampler)
    if algorithm.most is not None:
        check_most(algorithm.most, sampler)
    if algorithm.client.everyone and not sampler.everyone:
        raise InputError(
            f"{name} needs every client in every round: use sampling.full() (--set sampler=full)"
        )
    if not sampler.by_examples:
        if mean.weights and mean.coefficient not in ("", mean.weights):
            raise InputError(
                f"weights={mean.weights!r} with a heat coefficient by {mean.coefficient!r} fits"
                " sampling.weighted only: leave coefficient out, it then follows the weights"
            )
        return
    if algorithm.server.needs_sum or any(stage.keeps for stage in algorithm.stages):
        raise InputError(
            f"{name} keeps something on each client (variates, duals, errors, weights) that must"
            f" count once a round, and {sampler.name} may draw a client twice: use"
            " sampling.uniform(...) (--set sampler=uniform)"
        )
    if not mean.weights:
        raise InputError(
            f"{sampler.name} draws clients in proportion to their examples; what a function of"
            " weights adds to that cannot be told: use weights='uniform'"
        )
    if mean.weights == "examples":
        raise InputError(
            f"{sampler.name} draws clients in proportion to their examples; with weights='examples'"
            " size would count twice: use weights='uniform' (--set weights=uniform)"
        )
    if mean.coefficient == "uniform":
        raise InputError(
            f"{sampler.name} draws a row's holders as often as their examples say, so heat must go"
            " by examples too: give coefficient='examples' beside heat"
        )


def check_heat(algorithm: Algorithm, population: Population) -> None:
    """Refuse heat that is not this model's, or not of this population.  Clients that train on a
    part of their examples send fewer rows than they hold, and their heat may know fewer."""
    heat, model = algorithm.mean.heat, algorithm.client.model
    if heat is None:
        return
    heat.check({name: table.rows for name, table in model.tables.items()})
    whole = all(work.part == "all" for work in algorithm.client.work)
    spaces = population.spaces(model)
    # 0: all is padding, and nobody holds row 0
    some = {name: len(space.slots) for name, space in spaces.items()}
    held = {name: spaces[space].ids[: some[space]] for name, space in model.space_of.items()}
    heat.check_population(
        {name: table.fields for name, table in model.tables.items()}, held if whole else None
    )
    if whole and heat.clients < (clients := int((population.counts > 0).sum())):
        raise InputError(
            f"the heat is of another population, with {heat.clients:,} clients, where here"
            f" {clients:,} have examples: compute it where you train, population.heat(model)"
        )
