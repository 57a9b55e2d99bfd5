"""FedRecon's client (Singhal et al. 2021): rebuild the local leaves, then train the global ones.

    R   l <- l - Opt_r(grad_l F(g, l; support)),  k_r times from a fresh l, g frozen
    U   g <- g - Opt_u(grad_g F(g, l; query)),    k_u times, l frozen
    sends g's change, with the number of query examples as its weight

Nothing is kept between rounds and l never leaves the client.  With k_u = 1 and SGD this is
first-order meta-learning: the update is -rate times the gradient of the query loss at the rebuilt
l.  ``split="none"`` uses all examples for both; ``joint`` trains l along with g in U."""

import optax

from fedslice.client import adapt
from fedslice.client.local import ONE_PASS, check_optimizer, subtract, train
from fedslice.data.halves import Split
from fedslice.model import Model
from fedslice.types import Client, Data, Key, Message, PyTree, Work


def reconstruct(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
    *,
    reconstruction: optax.GradientTransformation,
    recover: Work | None = None,
    split: Split = "half",
    joint: bool = False,
) -> Client:
    """R with the optimizer ``reconstruction`` and the work ``recover`` (by default one pass), then
    U with ``optimizer`` and ``work``; both optimizers start anew each round.

    A client without query examples sends nothing,
    with weight zero; one without support trains g at its fresh l.  A model without local leaves
    skips R.

    >>> from fedslice.tasks import quadratic
    >>> model = quadratic.example1(clients=4).model
    >>> reconstruct(model, optax.sgd(0.5), Work(steps=1), reconstruction=optax.sgd(0.1)).work[-1]
    Work(steps=1, epochs=None, batch=32, part='query', split='half')
    """
    check_optimizer(optimizer)
    passes = Work(epochs=1, batch=work.batch) if recover is None else recover
    rebuild = adapt.reconstruction(model, reconstruction, passes, split=split)
    update = adapt.part_work(work, "query", split)

    def run(offer: PyTree, memory: PyTree, data: Data, key: Key) -> tuple[Message, PyTree]:
        query = data.phases[-1]
        rebuilt = rebuild.apply(offer, data.phases[0], key)
        local = {name: rebuilt[name] for name in model.local}
        trained, frozen = ({**offer, **local}, {}) if joint else (offer, local)
        end, report = train(model, optimizer, trained, frozen, query, offer, data.round)
        change = subtract({name: end[name] for name in offer}, offer)
        return Message(change, query.examples, report), memory

    works = (rebuild.work, update) if model.local else (update,)
    return Client(model, works, lambda params: (), run, adapt=rebuild)
