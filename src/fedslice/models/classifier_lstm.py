"""Text classification with two LSTM layers: the Sent140 model of FedSubAvg (Ding et al. 2022), as
LEAF's.

    x_t = embedding of token t (25)  ->  LSTM 100  ->  LSTM 100
        ->  h at the last token  ->  p = sigmoid(w . h + b)

The loss is the binary cross-entropy.  The embeddings are trained, from uniform(-0.05, 0.05) as
Keras draws them.
"""

import jax
import jax.numpy as jnp

from fedslice.model import Model, Table, lookup, remembered
from fedslice.models import lstm
from fedslice.types import Array, Batch, Key, Params


@remembered
def classifier_lstm(
    vocabulary: int, embedding: int = 25, hidden: int = 100, layers: int = 2
) -> Model:
    """The model over a table ``embedding`` indexed by the field ``tokens`` [length], -1 where
    padded; ``label`` 0 or 1.

    A text without any token has the hidden state zero.

    >>> model = classifier_lstm(vocabulary=1000)
    >>> model.tables["embedding"].shape, list(model.metrics)
    ((25,), ['accuracy'])
    """

    def init(key: Key) -> Params:
        keys = jax.random.split(key, layers + 1)
        widths = [embedding] + [hidden] * (layers - 1)
        return {
            "lstm": [
                lstm.init(each, width, hidden) for each, width in zip(keys[1:], widths, strict=True)
            ],
            "weight": jax.nn.initializers.glorot_uniform()(keys[0], (hidden, 1))[:, 0],
            "bias": jnp.zeros(()),
        }

    def logit(params: Params, batch: Batch) -> Array:
        tokens = batch["tokens"].T  # [length, batch], as the layers run
        states = lstm.stack(params["lstm"], lookup(params["embedding"], tokens))
        order = jnp.arange(len(tokens))[:, None]
        last = jnp.max(jnp.where(tokens < 0, -1, order), axis=0)
        return (
            jnp.sum(jnp.where((order == last)[:, :, None], states, 0), axis=0) @ params["weight"]
            + params["bias"]
        )

    def loss(params: Params, batch: Batch) -> Array:
        z = logit(params, batch)
        return jax.nn.softplus(z) - batch["label"] * z

    def accuracy(params: Params, batch: Batch) -> Array:
        return ((logit(params, batch) > 0) == (batch["label"] > 0.5)).astype(jnp.float32)

    table = Table(rows=vocabulary, fields=("tokens",), shape=(embedding,), init=_small)
    return Model(
        init, loss, {"embedding": table}, metrics={"accuracy": accuracy}, ranges={"label": 2}
    )


def _small(key: Key, shape: tuple[int, ...]) -> Array:
    return jax.random.uniform(key, shape, minval=-0.05, maxval=0.05)
