"""A model between the adapted and the global one (Mansour et al. 2020; Field Guide, section 7.5).

    served = share * adapted + (1 - share) * global

It is the parameters that are mixed, which for a linear model is the mix of the predictions.
"""

import jax

from fedslice.errors import InputError
from fedslice.types import Adaptation, Key, Params, Phase


def interpolate(adaptation: Adaptation, share: float) -> Adaptation:
    """As ``adaptation``, its global leaves mixed with those that they came from; local leaves are
    as adapted.

    >>> import optax
    >>> from fedslice.client import finetune
    >>> from fedslice.tasks import quadratic
    >>> model = quadratic.example1(clients=4).model
    >>> interpolate(finetune(model, optax.sgd(0.5), steps=1, batch=1), share=0.3).work.steps
    1
    """
    if not 0 <= share <= 1:
        raise InputError(
            f"share={share} of the adapted model must be between 0 (global) and 1 (adapted)"
        )

    def apply(params: Params, phase: Phase, key: Key) -> Params:
        adapted = adaptation.apply(params, phase, key)
        own = {name: adapted[name] for name in params}
        return {**adapted, **jax.tree.map(lambda v, w: share * v + (1 - share) * w, own, params)}

    return adaptation._replace(apply=apply)
