"""The servers of Mime and MimeLite (Karimireddy et al. 2021) and FedDANE (Li et al. 2019).

Mime   x <- x + mean(y_i - x);   the optimizer's state s moves with c, the cohort's mean full
gradient at x"""

import jax
import optax

from fedslice.types import Message, Params, PyTree, Rows, Server


def mime(optimizer: optax.GradientTransformation, lite: bool = False) -> Server:
    """The offer is (params, state, c); with ``lite`` the gradients come along with the updates.

    >>> server = mime(optax.sgd(0.1, momentum=0.9))
    """

    def init(params: Params, rows: Rows) -> PyTree:
        return params, optimizer.init(params)

    def offer(state: PyTree, survey: PyTree) -> PyTree:
        params, inner = state
        if lite:
            return params, inner, ()
        return (params, inner, _minus(survey)) if survey != () else params

    def step(state: PyTree, message: Message) -> PyTree:
        params, inner = state
        centre = message.extra["gradient"] if lite else _minus(message.extra["survey"])
        _, inner = optimizer.update(centre, inner, params)
        return jax.tree.map(lambda x, d: x + d, params, message.update), inner

    return Server(init, offer, step, lambda state: state[0])


def dane() -> Server:
    """Plain averaging; the offer is (params, mean gradient).

    >>> server = dane()
    """

    def offer(state: PyTree, survey: PyTree) -> PyTree:
        return (state, _minus(survey)) if survey != () else state

    def step(state: PyTree, message: Message) -> PyTree:
        return jax.tree.map(lambda x, d: x + d, state, message.update)

    return Server(lambda params, rows: params, offer, step, lambda state: state)


def _minus(survey: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: -leaf, survey)
