"""Stack Overflow next word prediction of FedRecon: an LSTM of 670 whose vectors of unknown words
stay with the client.

Singhal et al., "Federated Reconstruction: Partially Local Federated Learning" (2021), appendix C.2;
the model is that of Reddi et al. (2021).  Words outside the vocabulary (1,000, 5,000 or 10,000
words) are hashed to 500 buckets, whose vectors are local; everything else is global.  Support and
query are a client's earlier and later half.  All methods of the paper have Yogi on the server, and
so have all algorithms on this task without ``--set server=sgd --set server_rate=1``.  The rates are
those of the authors' public command.  As in the authors' code, a bucket is also a class to predict,
with global output weights, and targets that are buckets do not count in the accuracy.  With one
bucket the unknown word is the likeliest answer at many places, and wrong where it counts; 500
buckets share that likelihood.  So more buckets raise the accuracy even of a model that makes no use
of its local vectors."""

from pathlib import Path
from typing import Any

import optax

from fedslice.client import reconstruction
from fedslice.models.language_lstm import language_lstm
from fedslice.tasks.base import Task, Workload
from fedslice.tasks.generators.stackoverflow import generate
from fedslice.tasks.readers import stackoverflow
from fedslice.tasks.readers.sentences import Data, population
from fedslice.types import Work

NAME, BUCKETS, HIDDEN = "stackoverflow-lstm", 500, 670
SMALL = 0.1  # the scale below which the generated task is a small one
SETTINGS: dict[str, Any] = {
    "cohort": 200,
    "epochs": 1,  # of at most 100 steps: 500 query sentences have 32
    "batch": 16,
    "weights": "examples",
    "server": "yogi",
    "server_rate": 0.1,
    "split": "time",
    "reconstruct_steps": 100,
    "reconstruct_rate": 0.1,
}
RATES = {"": 0.3}
# Of the small generated task, our own: with Adam on clients it learns in hundreds of rounds.
FAST = {
    "client": "adam",
    "server": "sgd",
    "server_rate": 1.0,
    "reconstruct_rate": 3.0,
    "reconstruct_epochs": 1,
}
PUBLISHED = {
    "accuracy at 1,000 / 5,000 / 10,000 words, FedRecon, 1 bucket": "24.1 / 26.2 / 26.4",
    "accuracy at 1,000 / 5,000 / 10,000 words, FedRecon, 500 buckets": "29.6 / 28.1 / 27.7",
    "accuracy at 1,000 / 5,000 / 10,000 words, no split": "28.8 / 28.1 / 27.7",
    "accuracy at 1,000 / 5,000 / 10,000 words, joint training": "29.3 / 27.9 / 27.7",
}


def synthetic(
    seed: int = 0,
    scale: float = 1.0,
    *,
    vocabulary: int = 0,
    buckets: int = BUCKETS,
    local: bool = True,
) -> Task:
    """The task on generated text; with ``local=False`` the buckets' vectors are a global table.

    Below scale 0.1 it is small: 1,000 words unless ``vocabulary`` says how many, the least that
    FedRecon tried, an LSTM of 128, at most 32 sentences of a user, 20 clients a round, and settings
    with which it learns in a few hundred rounds.

    >>> task = synthetic(scale=0.0001)
    >>> task.model.local, task.model.tables["embedding"].shape
    (('buckets',), (96,))
    """
    source = f"generated text, seed {seed}, scale {scale:g}"
    if scale >= SMALL:
        words = vocabulary or stackoverflow.VOCABULARY
        return _task(generate(seed, scale, vocabulary=words), source, buckets, local)
    data = generate(seed, scale, sentences=32, vocabulary=vocabulary or 1_000)
    return _task(
        data, source, buckets, local, {**SETTINGS, **FAST, "cohort": 20}, {"": 0.01}, hidden=128
    )


def load(
    path: str | Path,
    clients: int = stackoverflow.CLIENTS,
    sentences: int = stackoverflow.SENTENCES,
    vocabulary: int = stackoverflow.VOCABULARY,
    *,
    buckets: int = BUCKETS,
    local: bool = True,
) -> Task:
    """The task on the real data: at most ``clients`` training users with at most so many
    ``sentences`` each."""
    return _task(
        stackoverflow.load(Path(path), clients, sentences, vocabulary), str(path), buckets, local
    )


def _task(
    data: Data,
    source: str,
    buckets: int,
    local: bool,
    settings: dict[str, Any] = SETTINGS,
    rates: dict[str, float] = RATES,
    hidden: int = HIDDEN,
) -> Task:
    train, test = (
        population(corpus, data.vocabulary, buckets) for corpus in (data.train, data.test)
    )
    model = language_lstm(
        len(data.vocabulary),
        1 if buckets else 2,
        buckets=buckets,
        local_buckets=local,
        hidden=hidden,
    )
    rate, passes = settings["reconstruct_rate"], settings.get("reconstruct_epochs", 5)
    rebuilt = reconstruction(
        model, optax.sgd(rate), Work(steps=100, epochs=passes, batch=16), split="time"
    )
    return Task(
        NAME,
        model,
        train,
        test,
        {**settings, "cohort": min(settings["cohort"], len(train))},
        rates,
        published=PUBLISHED,
        source=source,
        adaptation=rebuilt if local else None,
    )


WORKLOAD = Workload(
    NAME,
    "next word of a sentence; LSTM 670, 10,000 words, 500 local buckets of others, 342,477 clients;"
    " generated by default with 342 clients, 1,000 words, LSTM 128, and other settings: 20 clients"
    " a round with Adam at 0.01, SGD on the server, one pass of reconstruction at 3",
    synthetic,
    load,
    stackoverflow.NEEDS,
    stackoverflow.FILES,
    scale=0.001,
    statistics={
        **stackoverflow.STATISTICS,
        "rounds": "2,500",
        "support and query": (
            "earlier and later half; up to 100 steps of reconstruction, up to 100 of the rest"
        ),
        "rates tried": "server (Yogi) 0.01, 0.1, 0.3; reconstruction 0.1, 0.3; client 0.1, 0.3",
    },
    settings=SETTINGS,
    learning_rates=RATES,
    published=PUBLISHED,
    algorithm="fedrecon",
)
