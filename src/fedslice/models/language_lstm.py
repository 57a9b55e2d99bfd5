"""Next-token prediction with LSTM layers: the Stack Overflow model of Reddi et al. (2021) and of
FedRecon (2021).

    x_t = embedding of token t (96)  ->  LSTM 670  ->  linear 96
        ->  softmax(W y_t + b) over all tokens

With ten thousand words and four special tokens that is 4,050,748 numbers, as Reddi et al. count
them.  In FedRecon the words outside the vocabulary are hashed to buckets whose vectors are local:
each client has its own.  Without the linear map, and with two layers of 256 over 8 numbers a
letter, it is the usual Shakespeare model.
"""

import jax
import jax.numpy as jnp

from fedslice import metrics
from fedslice.errors import InputError
from fedslice.model import Model, Table, lookup, remembered
from fedslice.models import lstm, next_token
from fedslice.types import Array, Batch, Key, Params


@remembered
def language_lstm(
    vocabulary: int,
    specials: int = 2,
    *,
    buckets: int = 0,
    local_buckets: bool = False,
    embedding: int = 96,
    hidden: int = 670,
    layers: int = 1,
    project: int | None = 96,
    tied: bool = False,
) -> Model:
    """Predicts the field ``next`` [length] from ``tokens`` [length]; -1 is padding in both, at the
    end.

    Ids below ``vocabulary`` are tokens; the ``specials`` after them (where a text begins and ends,
    the unknown word) are learned too but do not count in the accuracy.  With ``buckets`` an unknown
    word is -1 in ``tokens`` and has the number of its bucket in a field ``bucket`` [length], which
    is -1 elsewhere; in ``next`` the buckets come after the specials, and do not count either.  The
    buckets' vectors are a table, or with ``local_buckets`` a local leaf; their output weights are
    global, as in the authors' code.  ``project`` is the width of the linear map, None for no such
    map.  With ``tied`` the output weights are the embeddings: then these are dense, for a client
    that holds the rows of its own words could not score the others.  A text's loss is the mean over
    its targets.

    >>> model = language_lstm(10_000, specials=1, buckets=500, local_buckets=True)
    >>> model.local, {name: table.rows for name, table in model.tables.items()}
    (('buckets',), {'embedding': 10001})
    """
    width = project or hidden
    _check(buckets, local_buckets, tied, width, embedding)
    known = vocabulary + specials
    classes = known + buckets

    def init(key: Key) -> Params:
        keys = jax.random.split(key, 4)
        params = _layers(keys[0], [embedding] + [hidden] * layers, project, classes)
        if tied:
            params["embedding"] = _small(keys[1], (known, embedding))
        else:
            params["output"] = _glorot(keys[2], (width, classes))
        if local_buckets:
            params["buckets"] = _small(keys[3], (buckets, embedding))
        return params

    def logits(params: Params, batch: Batch) -> Array:
        x = lookup(params["embedding"], batch["tokens"].T)
        if buckets:
            x = x + lookup(params["buckets"], batch["bucket"].T)
        return _logits(params, x, params["embedding"].T if tied else params["output"])

    def loss(params: Params, batch: Batch) -> Array:
        return next_token.surprise(logits(params, batch), batch["next"].T, axis=0)

    def hits(params: Params, batch: Batch) -> tuple[Array, Array]:
        return next_token.hits(logits(params, batch), batch["next"].T, vocabulary, axis=0)

    rows = {} if tied else {"embedding": known}
    if buckets and not local_buckets:
        rows["buckets"] = buckets
    tables = {name: _table(name, count, embedding) for name, count in rows.items()}
    local = ("buckets",) if local_buckets else ()
    ranges = {"next": range(-1, classes)}
    if local_buckets:
        ranges["bucket"] = range(-1, buckets)
    return Model(
        init, loss, tables, local, {"accuracy": metrics.ratio(hits, more=True)}, ranges=ranges
    )


def _check(buckets: int, local: bool, tied: bool, width: int, embedding: int) -> None:
    if buckets < 0:
        raise InputError(f"buckets={buckets} must not be negative: 0 is none, FedRecon has 500")
    if local and not buckets:
        raise InputError(
            "local_buckets=True needs buckets=, their number, 500 in FedRecon; without, nothing is"
            " local"
        )
    if tied and buckets:
        raise InputError(
            "tied=True and buckets= do not go together: buckets have no row among the embeddings"
        )
    if tied and width != embedding:
        raise InputError(f"tied=True needs project={embedding}, the width of the embeddings")


def _table(name: str, rows: int, width: int) -> Table:
    field = "tokens" if name == "embedding" else "bucket"
    return Table(rows=rows, fields=(field,), shape=(width,), init=_small)


_glorot = jax.nn.initializers.glorot_uniform()


def _small(key: Key, shape: tuple[int, ...]) -> Array:
    return jax.random.uniform(key, shape, minval=-0.05, maxval=0.05)


def _layers(key: Key, widths: list[int], project: int | None, classes: int) -> Params:
    keys = jax.random.split(key, len(widths))
    pairs = zip(keys[1:], widths[:-1], widths[1:], strict=True)
    params: Params = {"lstm": [lstm.init(*each) for each in pairs], "bias": jnp.zeros(classes)}
    if project:
        params["project"] = {
            "weight": _glorot(keys[0], (widths[-1], project)),
            "bias": jnp.zeros(project),
        }
    return params


def _logits(params: Params, x: Array, output: Array) -> Array:
    """[length, batch, classes]"""
    x = lstm.stack(params["lstm"], x)
    if "project" in params:
        x = x @ params["project"]["weight"] + params["project"]["bias"]
    return x @ output + params["bias"]
