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

    >>> import optax, fedslice as fs
    >>> model = fs.Model(lambda key: {"x": 0.0}, lambda p, b: (p["x"] - b["a"]) ** 2)
    >>> people = fs.Population.from_arrays([0, 0], a=[4.0, 4.0])
    >>> half = interpolate(fs.client.finetune(model, optax.sgd(0.5)), share=0.5)  # to x = 4
    >>> fs.Personal(people, half)({"x": 0.0}).after.clients["loss"]
    array([4.])
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
