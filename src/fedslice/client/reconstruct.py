"""FedRecon's client (Singhal et al. 2021): rebuild the local leaves, then train the global ones.

    R   l <- l - Opt_r(grad_l F(g, l; support)),  k_r times from a fresh l, g frozen
    U   g <- g - Opt_u(grad_g F(g, l; query)),    k_u times, l frozen
    sends g's change, with the number of query examples as its weight

Nothing is kept between rounds and l never leaves the client.  With k_u = 1 and SGD this is
first-order meta-learning: the update is -rate times the gradient of the query loss at the rebuilt
l.  ``split="none"`` uses all examples for both; ``joint`` trains l along with g in U."""

from collections.abc import Sequence

import optax

from fedslice.client import adapt
from fedslice.client.local import Correction, Schedule, check_optimizer, subtract, train
from fedslice.data.halves import Split
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Client, Data, Key, Message, PyTree


def reconstruct(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    reconstruction: optax.GradientTransformation,
    split: Split = "half",
    reconstruct_steps: int | None = None,
    reconstruct_epochs: int | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int = 32,
    joint: bool = False,
    corrections: Sequence[Correction] = (),
    schedule: Schedule | None = None,
) -> Client:
    """R with the optimizer ``reconstruction``, then U with ``optimizer``; both start anew each
    round.

    Each phase goes ``steps``, ``epochs``, or at most ``steps`` batches of ``epochs`` passes.
    ``schedule`` is a factor on U's rate by round.  A client without query examples sends nothing,
    with weight zero; one without support trains g at its fresh l.  A model without local leaves
    skips R.

    >>> from fedslice.tasks import quadratic
    >>> model = quadratic.example1(clients=4).model
    >>> reconstruct(model, optax.sgd(0.5), reconstruction=optax.sgd(0.1), steps=1, batch=1).work[-1].part
    'query'
    """
    check_optimizer(optimizer)
    for name, value in (
        ("reconstruct_steps", reconstruct_steps),
        ("reconstruct_epochs", reconstruct_epochs),
    ):
        if value is not None and value < 1:
            raise InputError(f"{name}={value} must be at least 1")
    recover = adapt.reconstruction(
        model,
        reconstruction,
        steps=reconstruct_steps,
        epochs=reconstruct_epochs,
        batch=batch,
        split=split,
    )
    update = adapt.part_work(steps, epochs, batch, "query", split)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        query = data.phases[-1]
        rebuilt = recover.apply(offer, data.phases[0], key)
        local = {name: rebuilt[name] for name in model.local}
        trained, frozen = ({**offer, **local}, {}) if joint else (offer, local)
        factor = 1.0 if schedule is None else schedule(data.round)
        end, report = train(model, optimizer, trained, frozen, query, corrections, offer, factor)
        change = subtract({name: end[name] for name in offer}, offer)
        return Message(change, query.examples, report), memory

    works = (recover.work, update) if model.local else (update,)
    return Client(model, works, lambda params: (), run, adapt=recover)
