"""The vocabulary of fedslice: read this first.

One round, from left to right::

    offer  ->  client  ->  encode ...  ->  sum  ->  ... decode  ->  step
    Server     Client      Stage           Reduce   Stage           Server

Each part is a NamedTuple of pure functions over pytrees, as an optax optimizer is.  A part never
sees row ids: in ``params`` a table leaf holds just the rows at hand (the rows of the round on the
server, the client's own rows on a client) and the batch fields that index it hold positions among
those rows.  :mod:`fedslice.round.protocol` puts them together.
"""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from fedslice.arrays import Array as Array
from fedslice.arrays import Batch as Batch
from fedslice.arrays import Key as Key
from fedslice.arrays import Numbers as Numbers
from fedslice.arrays import Params as Params
from fedslice.arrays import PyTree as PyTree
from fedslice.arrays import Rows as Rows
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.protection import HIDDEN as HIDDEN
from fedslice.protection import Answers as Answers
from fedslice.protection import Around as Around
from fedslice.protection import Noise as Noise
from fedslice.protection import OwnNoise as OwnNoise


class Work(NamedTuple):
    """One phase of a client's round: ``steps`` mini-batches drawn independently from its examples
    (the papers' xi ~ D_i), or ``epochs`` shuffled passes over them; with both, at most ``steps``
    batches of the passes.  A client with no more than ``batch`` examples goes through all of them,
    once, in each mini-batch.

    ``part`` says which examples: all, or those that ``split`` makes support or query (see
    :mod:`fedslice.data.halves`).  In a support phase a client may read global leaves but must not
    change them: rows read there alone are not sent.

    >>> Work(steps=10, batch=5).part
    'all'
    """

    steps: int | None = None
    epochs: int | None = None
    batch: int = 32
    part: str = "all"
    split: Any = "half"

    def identity(self) -> list[Any]:
        """What a checkpoint keeps of it; a function can only be named.

        >>> Work(steps=10, batch=5).identity(), Work(epochs=1, part="query").identity()
        ([10, None, 5], [None, 1, 32, 'query', 'half'])
        """
        split = (
            self.split
            if isinstance(self.split, str)
            else getattr(self.split, "__name__", "function")
        )
        return [self.steps, self.epochs, self.batch] + (
            [] if self.part == "all" else [self.part, split]
        )


class Phase(NamedTuple):
    """The data of one phase.  Batches beyond ``steps`` and examples beyond ``sizes`` are
    padding."""

    batches: Batch  # every field [steps, batch, ...]
    sizes: Array  # int32 [steps]: real examples in each batch
    steps: Array  # int32: batches to use
    limit: (
        Array | int
    )  # int32: the most steps of any client that runs along; a plain 0: none has any
    examples: Array  # float32: the client's examples that the batches are drawn from
    key: Key | None = None  # of the noise in the loss, for models that have any


class Data(NamedTuple):
    """What a client works on in one round: a phase for each of its ``work``."""

    phases: tuple[Phase, ...]
    examples: Array  # float32: |D_i|, examples the client holds
    round: Array  # int32: rounds done before this one


class ClientReport(NamedTuple):
    """What a client tells of its work.  Stages and reductions compute with it: a loss may weigh,
    and steps may normalise.
    """

    loss: Array  # mean over the local steps
    start_loss: Array  # of the first batch: that of the offered model
    examples: Array  # gone through
    steps: Array  # taken
    failed: Numbers = np.float32(0)  # 1: its update or loss was not finite, and it sends zeros


class Message(NamedTuple):
    """What a client sends.  ``weight`` starts as |D_i|; a message of weight zero and update zero is
    a no-op.

    Leaves of the update are arrays, or :mod:`codes <fedslice.stage.codes>` of them.  ``extra`` is
    averaged along with the update: a control variate, a gradient.
    """

    update: PyTree
    weight: Array
    report: ClientReport
    extra: dict[str, PyTree] = {}  # noqa: RUF012 (never changed)


class Adaptation(NamedTuple):
    """How a client makes the global model its own: ``apply(params, phase, key)`` gives the model
    that it would serve, with its local leaves, from the global leaves and its support examples.
    """

    model: Model
    work: Work
    apply: Callable[[Params, Phase, Key], Params]


class Client(NamedTuple):
    """Local training: ``run(offer, memory, data, key) -> (message, memory)``.

    ``init(params)`` makes the memory that a client keeps between its rounds, ``()`` for the
    stateless.  A client with ``rows="held"`` changes all rows it holds, not only those that its
    batches touch; with ``everyone`` all clients must take part in every round, one with ``extras``
    sends more than its update.  ``adapt`` is how a client makes the trained model its own, if it
    does; one that keeps a model says with ``serve(params, memory, key)`` which model, with its
    local leaves, it would serve.
    """

    model: Model
    work: tuple[Work, ...]
    init: Callable[[Params], PyTree]
    run: Callable[[PyTree, PyTree, Data, Key], tuple[Message, PyTree]]
    rows: str = "touched"
    everyone: bool = False
    extras: bool = False
    adapt: Adaptation | None = None
    serve: Callable[[Params, PyTree, Key], Params] | None = None


def nothing(state: PyTree) -> PyTree:
    """The offer of a stage whose client half needs nothing from the server."""
    return ()


class Stage(NamedTuple):
    """Something done to a message on its way: ``encode`` on the client, ``decode`` on the server
    after the sum.

    ``init(params, rows)`` makes the state that the server keeps; its row-shaped leaves follow the
    rows.  ``offer(state)`` is what of it clients are told, for their own rows: it travels and is
    counted, and is all that ``encode(offer, memory, message, key)`` sees of the server.
    ``remember(params, tables)`` makes what each client keeps, and a stage that ``keeps`` is right
    only if every message counts once.

    ``weighs`` marks the one stage that weights updates and divides their sum: ``weights`` and
    ``coefficient`` say what clients count for there and in the heat's coefficients, ``"uniform"``
    or ``"examples"`` (empty: something else, no heat), ``heat`` which heat that is.  After the mean
    ``weights`` are those that a stage needs there.  A stage that is ``on_sum`` may stand after it,
    next to the wire: its client half gets what the server would add up, its server half the sum.
    ``needs_sum`` marks one that is right for plain sums only, ``alters`` one after which the update
    is another, ``codes`` one that sends codes of it, ``extras`` one that sends more than the
    update.

    What makes a sum private: after a stage with a ``bound`` no update has a larger L2 norm, and one
    that acts on the sum needs such a stage right before the mean; a mean with a ``denominator``
    divides by that number, whoever came; a stage with ``noise`` adds it to all rows of all tables,
    for which a round must go over all of them; one with ``most`` adds up so many clients at most,
    one that ``lengthens`` may leave an update a little longer than its bound, and ``own`` is how
    clients that are apart add their noise themselves.
    ``rows`` says which rows travel: those that a client ``"named"`` as its own; those of the
    cohort's ``"union"`` to which its ``answers`` say yes, which do not tell which are its own; or
    ``"all"`` of every table both ways.  ``around`` counts the bytes of what goes around messages.
    """

    init: Callable[[Params, Rows], PyTree]
    encode: Callable[[PyTree, PyTree, Message, Key], tuple[Message, PyTree]]
    decode: Callable[[PyTree, Message, Key], tuple[Message, PyTree]]
    offer: Callable[[PyTree], PyTree] = nothing
    remember: Callable[[Params, Collection[str]], PyTree] = lambda params, tables: ()
    weighs: bool = False
    on_sum: bool = False
    needs_sum: bool = False
    alters: bool = False
    codes: bool = False
    keeps: bool = False
    extras: bool = False
    bound: float | None = None
    most: int | None = None
    lengthens: bool = False
    denominator: float | None = None
    noise: Noise | None = None
    own: OwnNoise | None = None
    rows: str = "named"
    answers: Answers | None = None
    around: Callable[[Around], tuple[int, int]] | None = None
    weights: str = ""
    coefficient: str = ""
    heat: Heat | None = None


class Cohort(NamedTuple):
    """All messages of a round, stacked: ``values`` (update and extra) have leaves [clients, ...],
    for rows of a table [clients, held, ...], and are times the clients' ``weight``.

    ``tags`` names the table space of each leaf ("" for dense), ``places`` each client's places
    among the round's rows of that space (past the end: padding), ``sizes`` how many those are.
    """

    values: PyTree
    weight: Array
    report: ClientReport
    tags: PyTree
    places: dict[str, Array]
    sizes: dict[str, int]


class Reduce(NamedTuple):
    """How the cohort's updates become one: by their sum, or by something that resists bad clients.

    ``apply`` gives what takes the place of the sum of values, and that of the weights.  ``plain``
    is the sum itself; where one is ``additive``, zeros count for nothing.
    """

    name: str
    apply: Callable[[Cohort], tuple[PyTree, Array]]
    plain: bool = False
    additive: bool = False


class Server(NamedTuple):
    """The global state: ``offer(state)`` goes to clients, ``step(state, message, key)`` takes the
    decoded aggregate, ``params(state)`` is the model.

    A server that ``needs_sum`` keeps the exact mean of its clients' memories, one with
    ``needs_update`` from their updates as they were; one with ``several`` models has them side by
    side in its state (see :mod:`fedslice.evaluation.clusters`).  One with ``noise`` adds it to what
    it offers and shows, on all rows whoever reads them, so that rounds need not go over all rows.
    """

    init: Callable[[Params, Rows], PyTree]
    offer: Callable[[PyTree], PyTree]
    step: Callable[[PyTree, Message, Key], PyTree]
    params: Callable[[PyTree], Params]
    needs_sum: bool = False
    needs_update: bool = False
    several: bool = False
    noise: Noise | None = None


class Algorithm(NamedTuple):
    """Client, stages, server and reduction, checked to fit together (:func:`fedslice.algorithm`).

    ``survey`` is a client part that the whole cohort runs first.  What it finds, the mean of its
    updates, then goes to the clients, whose offer is (the server's, what was found), and to the
    server's step, as the extra ``"survey"``.
    """

    name: str
    client: Client
    stages: tuple[Stage, ...]
    server: Server
    reduce: Reduce
    survey: Client | None = None

    @property
    def mean(self) -> Stage:
        """The stage that weights updates and divides their sum."""
        return next(stage for stage in self.stages if stage.weighs)

    @property
    def noise(self) -> Noise | None:
        """What makes its sums private, if anything does."""
        each = [*(stage.noise for stage in self.stages), self.server.noise]
        return next((noise for noise in each if noise is not None), None)

    @property
    def most(self) -> int | None:
        """The clients that its sums have room for; None: any number."""
        return min((stage.most for stage in self.stages if stage.most), default=None)

    @property
    def rows(self) -> str:
        """Which rows travel, as the stage says that hides the most."""
        return max((stage.rows for stage in self.stages), key=HIDDEN.index)

    @property
    def answers(self) -> Answers | None:
        """What clients say of the rows of the cohort's union, if they do."""
        return next((stage.answers for stage in self.stages if stage.answers), None)


class State(NamedTuple):
    """Everything on the server that changes from round to round."""

    server: PyTree
    stages: tuple[PyTree, ...]
