"""The model that a client would serve: the global one, adapted on the client's support examples.

    reconstruction   local leaves trained from scratch, global ones frozen: R of FedRecon (Singhal et al. 2021)
    fine-tuning      all leaves, or some by name, trained from the global model

Nothing is sent and nothing is kept.  :mod:`fedslice.evaluation.gain` measures what adapting gains.
"""

from collections.abc import Sequence

import optax

from fedslice.client.local import check_optimizer, train, work
from fedslice.data.halves import Split, check
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.types import Adaptation, Key, Params, Phase, Work


def reconstruction(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int = 32,
    split: Split = "half",
) -> Adaptation:
    """Fresh local leaves, trained on the support examples: at most ``steps`` batches, of ``epochs``
    passes if given.

    >>> from fedslice.tasks import quadratic
    >>> reconstruction(quadratic.example1(clients=4).model, optax.sgd(0.5), steps=1, batch=1).work.part
    'support'
    """
    return finetune(
        model, optimizer, steps=steps, epochs=epochs, batch=batch, split=split, leaves=model.local
    )


def finetune(
    model: Model,
    optimizer: optax.GradientTransformation,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    batch: int = 32,
    split: Split = "half",
    leaves: str | Sequence[str] | None = None,
) -> Adaptation:
    """The global model and fresh local leaves, trained on the support examples: all leaves, or
    ``leaves`` by name.

    >>> from fedslice.tasks import quadratic
    >>> finetune(quadratic.example1(clients=4).model, optax.sgd(0.5), epochs=2, batch=1).work.epochs
    2
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
        return (
            {**frozen, **train(model, optimizer, trained, frozen, phase)[0]} if trained else whole
        )

    return Adaptation(model, part_work(steps, epochs, batch, "support", split), apply)


def part_work(steps: int | None, epochs: int | None, batch: int, part: str, split: Split) -> Work:
    """Local work on support or query, or with ``split="none"`` on all examples."""
    if split != "none":
        check(split)
    chosen = work(steps, epochs, batch)
    return chosen if split == "none" else chosen._replace(part=part, split=split)
