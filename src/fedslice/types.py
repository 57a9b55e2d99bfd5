"""The vocabulary of fedslice: read this first.

One round, from left to right::

    offer  ->  client  ->  encode ...  ->  sum  ->  ... decode  ->  step
    Server     Client      Stage           Reduce   Stage           Server

Each part is a NamedTuple of pure functions over pytrees, as an optax optimizer is.  A part never sees row ids: in
``params`` a table leaf holds just the rows at hand (the rows of the round on the server, the client's own rows on a
client) and the batch fields that index it hold positions among those rows.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np

if TYPE_CHECKING:
    from fedslice.model import Model

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Params: TypeAlias = dict[str, Any]
Batch: TypeAlias = dict[str, Array]
Rows: TypeAlias = dict[str, np.ndarray]
"""Row ids behind a table leaf, one int64 array a table: given to ``init`` functions only."""


class Work(NamedTuple):
    """How much a client does in a round: ``steps`` mini-batches drawn independently from its examples (the
    papers' xi ~ D_i), or ``epochs`` shuffled passes over them.

    >>> Work(steps=10, batch=5)
    Work(steps=10, epochs=None, batch=5)
    """

    steps: int | None = None
    epochs: int | None = None
    batch: int = 32


class Data(NamedTuple):
    """What a client trains on in one round.  Batches beyond ``steps`` and examples beyond ``sizes`` are padding."""

    batches: Batch  # every field [steps, batch, ...]
    sizes: Array  # int32 [steps]: real examples in each batch
    steps: Array  # int32: batches to use
    limit: Array  # int32: the most steps of any client that runs along with this one
    examples: Array  # float32: |D_i|, examples the client holds


class Message(NamedTuple):
    """What a client sends.  ``weight`` starts as |D_i|; a message of weight zero and update zero is a no-op."""

    update: PyTree
    weight: Array
    metrics: dict[str, Array]


class Client(NamedTuple):
    """Local training: ``run(offer, memory, data, key) -> (message, memory)``.

    ``init(params)`` makes the memory that a client keeps between its rounds, ``()`` for the stateless.
    """

    model: "Model"
    work: Work
    init: Callable[[Params], PyTree]
    run: Callable[[PyTree, PyTree, Data, Key], tuple[Message, PyTree]]


class Stage(NamedTuple):
    """Something done to a message on its way: ``encode`` on the client, ``decode`` on the server after the sum.

    ``init(params, rows)`` makes the stage's state; its row-shaped leaves follow the rows, on both sides.
    ``weighs`` marks the one stage that weights updates and divides their sum.
    """

    init: Callable[[Params, Rows], PyTree]
    encode: Callable[[PyTree, Message, Key], Message]
    decode: Callable[[PyTree, Message], tuple[Message, PyTree]]
    weighs: bool = False


class Reduce(NamedTuple):
    """How the cohort's updates become one: leaf by leaf, rows of tables through each client's ``places`` for them."""

    name: str
    dense: Callable[[Array], Array]  # [clients, ...] -> [...]
    sparse: Callable[[Array, Array, int], Array]  # [clients, held, ...], places [clients, held], rows -> [rows, ...]


class Server(NamedTuple):
    """The global state: ``offer(state)`` goes to clients, ``step(state, message)`` takes the decoded aggregate,
    ``params(state)`` is the model."""

    init: Callable[[Params], PyTree]
    offer: Callable[[PyTree], PyTree]
    step: Callable[[PyTree, Message], PyTree]
    params: Callable[[PyTree], Params]


class Algorithm(NamedTuple):
    """Client, stages, server and reduction, checked to fit together (see :func:`fedslice.algorithm`)."""

    name: str
    client: Client
    stages: tuple[Stage, ...]
    server: Server
    reduce: Reduce


class State(NamedTuple):
    """Everything on the server that changes from round to round."""

    server: PyTree
    stages: tuple[PyTree, ...]
