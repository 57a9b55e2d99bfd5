"""Ditto (Li et al. 2021): beside the global model, each client trains one of its own that is pulled
to it.

    w   as in FedAvg
    v_i <- v_i - Opt(grad F_i(v_i; xi) + lambda (v_i - w_t))     kept by the client

Both in the same round.  v_i starts as the first global model; of tables it has the client's own
rows.  All of them are pulled in every step, so a client works on all of S(i).  lambda = 0 is
training alone, a large one the global model."""

import jax
import jax.numpy as jnp
import optax

from fedslice.client.keeping import Own, nothing_yet, own_leaves
from fedslice.client.local import ONE_PASS, check_optimizer, checked, descend, subtract, train
from fedslice.client.transforms import proximal
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import (
    Adaptation,
    Array,
    Client,
    ClientReport,
    Data,
    Key,
    Message,
    Params,
    Phase,
    PyTree,
    Work,
)


def ditto(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
    *,
    personal: optax.GradientTransformation | None = None,
    pull: float = 1.0,
    personal_work: Work | None = None,
) -> Client:
    """``optimizer`` on the global model, ``personal`` (default: the same) on the client's own;
    ``pull`` is lambda.

    Both go through the same batches unless ``personal_work`` says otherwise; both optimizers start
    anew each round.  Local leaves belong to v_i and are kept, without a pull; the global model
    trains with fresh ones.  A client serves v_i once it took part, before that the global model.
    A newcomer trains v from the global model, by the same work on its support examples.

    >>> from fedslice.tasks import quadratic
    >>> ditto(quadratic.example1(clients=4).model, optax.sgd(0.1), Work(steps=2)).rows
    'held'
    """
    own_optimizer = optimizer if personal is None else personal
    check_optimizer(optimizer)
    check_optimizer(own_optimizer)
    if not pull >= 0:
        raise InputError(
            f"pull={pull} must not be negative: it would push clients away from the global model"
        )
    shared = checked(work)
    own_work = shared if personal_work is None else checked(personal_work)
    pulled = optax.chain(proximal(pull), own_optimizer)

    def towards(
        start: Params, phase: Phase, centre: Params, round: Array | None
    ) -> tuple[Params, ClientReport]:
        return train(model, pulled, start, {}, phase, centre, round)

    def run(offer: PyTree, memory: Own, data: Data, key: Key) -> tuple[Message, Own]:
        end, report = descend(model, optimizer, offer, data.phases[0], key, data.round)
        kept = own_leaves(model, memory, key)
        own, done = towards(kept, data.phases[-1], offer, data.round)
        update = _both_or_none(subtract(end, offer), own)
        return Message(update, data.examples, report), Own(own, memory.rounds + (done.steps > 0))

    def adapt(params: Params, phase: Phase, key: Key) -> Params:
        return towards({**params, **model.fresh(key)}, phase, params, None)[0]

    def serve(params: Params, memory: Own, key: Key) -> Params:
        own = own_leaves(model, memory, key)
        ready = {name: own[name] for name in params}
        return {
            **own,
            **jax.tree.map(lambda v, w: jnp.where(memory.rounds > 0, v, w), ready, params),
        }

    return Client(
        model,
        (shared,) if personal_work is None else (shared, own_work),
        lambda params: nothing_yet(model, params),
        run,
        rows="held",
        adapt=Adaptation(model, own_work._replace(part="support"), adapt),
        serve=serve,
    )


def _both_or_none(update: Params, own: Params) -> Params:
    """The update; NaN if the client's own model is not finite, so that the client counts as failed
    and keeps the model that it had."""
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(own)]))
    return jax.tree.map(lambda leaf: jnp.where(finite, leaf, jnp.nan), update)
