"""The model that a client would serve: the global one, adapted on the client's support examples.

    reconstruction   local leaves trained from scratch, global ones frozen: R of FedRecon (Singhal
                     et al. 2021)
    fine-tuning      all leaves, or some by name, trained from the global model

Nothing is sent and nothing is kept.  :mod:`fedslice.evaluation.gain` measures what adapting gains.
"""

from collections.abc import Sequence

import optax

from fedslice.client.local import ONE_PASS, check_optimizer, checked, train
from fedslice.data.halves import Split, check
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Adaptation, Key, Params, Phase, Work


def reconstruction(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
    *,
    split: Split = "half",
) -> Adaptation:
    """Fresh local leaves, trained by ``work`` on the support examples.

    >>> import fedslice as fs
    >>> ratings = lambda p, b: (p["item"] + p["user"] - b["stars"]) ** 2
    >>> model = Model(lambda key: {"item": 1.0, "user": 0.0}, ratings, local="user")
    >>> people = fs.Population.from_arrays([0, 0], stars=[4.0, 4.0])
    >>> fs.Personal(people, reconstruction(model, optax.sgd(0.5)))({"item": 1.0}).clients("loss")
    array([9.])
    """
    return finetune(model, optimizer, work, split=split, leaves=model.local)


def finetune(
    model: Model,
    optimizer: optax.GradientTransformation,
    work: Work = ONE_PASS,
    *,
    split: Split = "half",
    leaves: str | Sequence[str] | None = None,
) -> Adaptation:
    """The global model and fresh local leaves, trained by ``work`` on the support examples: all
    leaves, or ``leaves`` by name.  A proximal term pulls to the global model.

    >>> import fedslice as fs
    >>> task = fs.tasks.quadratic.example1(clients=4)
    >>> finetune(task.model, optax.sgd(0.5), Work(epochs=2, batch=1)).work
    Work(steps=None, epochs=2, batch=1, part='support', split='half')
    """
    check_optimizer(optimizer)
    chosen = None if leaves is None else {leaves} if isinstance(leaves, str) else set(leaves)

    def apply(params: Params, phase: Phase, key: Key) -> Params:
        whole = {**params, **model.fresh(key)}
        if missing := (chosen or set()) - set(whole):
            raise InputError(
                f"there are no leaves {sorted(missing)} to fine-tune; there are {sorted(whole)}"
            )
        trained = {name: leaf for name, leaf in whole.items() if chosen is None or name in chosen}
        frozen = {name: leaf for name, leaf in whole.items() if name not in trained}
        if not trained:
            return whole
        start = {name: leaf for name, leaf in params.items() if name in trained}
        return {**frozen, **train(model, optimizer, trained, frozen, phase, start, None)[0]}

    return Adaptation(model, part_work(work, "support", split), apply)


def part_work(work: Work, part: str, split: Split) -> Work:
    """Local work on support or query, or with ``split="none"`` on all examples."""
    if split != "none":
        check(split)
    chosen = checked(work)
    return chosen if split == "none" else chosen._replace(part=part, split=split)
