"""Published tables, row by row: what was run, and what came out.

FedSubAvg: Ding et al. 2022, tables 1 to 3.  FedRecon: Singhal et al. 2021, tables 3 and 4.  Field
Guide: Wang et al. 2021, section 4: joint grids of rates, and the studies of local epochs E and of
clients a round M, of which curves alone were published.
"""

from typing import NamedTuple

ROUNDS = "rounds"  # the figure of a row: rounds to the task's target


class Row(NamedTuple):
    """An algorithm with changes to the task's published settings, and what was published, figure by
    figure of its sheet; nothing where the paper has curves alone."""

    label: str
    algorithm: str
    published: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # of the task


class Quick(NamedTuple):
    """What ``--quick`` runs: so many rounds on generated data of this scale; of the rows those of
    these numbers, where there are some."""

    rounds: int
    scale: float
    eval_every: int
    rows: tuple[int, ...] = ()


class Sheet(NamedTuple):
    """One table of a paper on one task.  ``figures`` are what it shows: rounds to the target, or
    test figures after the last round."""

    title: str
    task: str
    rounds: int
    eval_every: int
    rows: tuple[Row, ...]
    figures: tuple[str, ...]
    quick: Quick

    def quickly(self) -> "Sheet":
        """The table of a quick look."""
        rows = tuple(self.rows[number] for number in self.quick.rows) or self.rows
        return self._replace(rows=rows)


def _rounds_to_target(
    task: str,
    rounds: int,
    eval_every: int,
    published: tuple[str, str, str, str, str, str],
    scaffold: str,
    cohorts: tuple[tuple[int, str], ...],
    quick: Quick,
) -> tuple[Sheet, Sheet]:
    """Tables 2 and 3 of FedSubAvg for one task: all algorithms, and FedSubAvg by K."""
    names = ("central", "fedavg", "fedprox", scaffold, "fedadam", "fedsubavg")
    labels = ("CentralSGD", "FedAvg", "FedProx, mu 0.01", "Scaffold", "FedAdam", "FedSubAvg")
    changes = {"fedprox": ("mu=0.01",)}
    rows = tuple(
        Row(label, name, (value,), changes.get(name, ()))
        for name, label, value in zip(names, labels, published, strict=True)
    )
    clients = tuple(
        Row(f"FedSubAvg, K = {count}", "fedsubavg", (value,), (f"cohort={count}",))
        for count, value in cohorts
    )
    given = (task, rounds, eval_every)
    return (
        Sheet("Table 2: rounds to the target", *given, rows, (ROUNDS,), quick),
        Sheet(
            "Table 3: rounds to the target by clients a round", *given, clients, (ROUNDS,), quick
        ),
    )


FEDSUBAVG = (
    *_rounds_to_target(
        "movielens-lr",
        1000,
        5,
        ("180", "170", "170", "180", "170", "100"),
        "scaffold",
        ((10, "100"), (30, "110"), (50, "100")),
        Quick(200, 0.25, 5),
    ),
    *_rounds_to_target(
        "sent140-lstm",
        1000,
        20,
        ("980", "1000+", "1000+", "1000+", "1000+", "260"),
        "scaffold",
        ((10, "420"), (30, "270"), (50, "260")),
        Quick(10, 0.02, 5),
    ),
    *_rounds_to_target(
        "amazon-din",
        200,
        5,
        ("20", "200+", "200+", "200+", "16", "53"),
        "scaffold-approximate",
        ((20, "95"), (60, "57"), (100, "53")),
        Quick(10, 0.1, 5),
    ),
    *_rounds_to_target(
        "taobao-din",
        5000,
        50,
        ("265", "5000+", "5000+", "5000+", "5000+", "610"),
        "scaffold-approximate",
        ((20, "3469"), (60, "1030"), (100, "610")),
        Quick(10, 0.01, 5),
    ),
)


def _next_word(words: int, published: tuple[str, ...]) -> Sheet:
    """The columns of Table 4 for one size of the vocabulary."""
    kinds: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
        ("FedRecon, 500 buckets of unknown words", (), ()),
        ("FedRecon, 1 bucket", (), ("buckets=1",)),
        ("FedRecon, no split", ("split=none",), ()),
        ("FedRecon, joint training", ("joint=yes",), ()),
    )
    rows = tuple(
        Row(
            f"{label}; {words:,} words",  # the names of their folders, too
            "fedrecon",
            (figure, ""),
            changes,
            (f"vocabulary={words}", *options),
        )
        for (label, changes, options), figure in zip(kinds, published, strict=True)
    )
    return Sheet(
        f"Table 4: accuracy on unseen users, vocabulary of {words:,} words",
        "stackoverflow-lstm",
        2500,
        500,
        rows,
        ("accuracy", "test_loss"),
        Quick(10, 0.0002, 5),
    )


FEDRECON = (
    Sheet(
        "Table 3: RMSE and accuracy, on unseen users unless said",
        "movielens-mf",
        500,
        100,
        (
            Row(
                "central, seen users",
                "central",
                ("0.923", "0.432"),
                (),
                ("local=no", "split=time"),
            ),
            Row("central, unseen users", "central", ("3.80", "0.0"), (), ("local=no",)),
            Row("central, reconstructed", "central", ("1.36", "0.408")),
            Row("FedRecon", "fedrecon", ("0.907", "0.433")),
            Row("FedRecon, no split", "fedrecon", ("0.912", "0.425"), ("split=none",)),
            Row("FedRecon, joint training", "fedrecon", ("0.915", "0.421"), ("joint=yes",)),
            Row(
                "FedRecon, Adagrad server",
                "fedrecon",
                ("0.883", "0.441"),
                ("server=adagrad", "server_rate=0.1", "server_eps=0.001", "server_accumulator=0"),
            ),
        ),
        ("rmse", "accuracy"),
        Quick(60, 0.1, 20),
    ),
    *(
        _next_word(words, figures)
        for words, figures in {
            1_000: ("0.296", "0.241", "0.288", "0.293"),
            5_000: ("0.281", "0.262", "0.281", "0.279"),
            10_000: ("0.277", "0.264", "0.277", "0.277"),
        }.items()
    ),
)


def _grid(task: str, rounds: int, eval_every: int, quick: Quick) -> Sheet:
    """FedAvg, FedAvgM and FedAdam over a joint grid of rates."""
    rates = {"fedavg": ("0.01", "0.1"), "fedavgm": ("0.01", "0.1"), "fedadam": ("0.003", "0.01")}
    rows = tuple(
        Row(
            f"{name}, client rate {client}, server rate {server}",
            name,
            (),
            (f"client_rate={client}", f"server_rate={server}"),
        )
        for name, servers in (
            ("fedavg", ("0.3", "1")),
            ("fedavgm", ("0.1", "0.3")),
            ("fedadam", ("0.001", "0.003")),
        )
        for client in rates[name]
        for server in servers
    )
    return Sheet(
        "Rates, chosen jointly", task, rounds, eval_every, rows, ("accuracy", "test_loss"), quick
    )


def _varied(
    title: str,
    task: str,
    key: str,
    values: tuple[int, ...],
    rounds: int,
    eval_every: int,
    quick: Quick,
) -> Sheet:
    rows = tuple(
        Row(f"FedAvg, {key} {value}", "fedavg", (), (f"{key}={value}",)) for value in values
    )
    return Sheet(title, task, rounds, eval_every, rows, ("accuracy", "test_loss"), quick)


# images and transformers take seconds a round and longer to compile: a quick look has the smallest
# and the largest rates of each algorithm together, and few local epochs
EDGES = (0, 3, 4, 7, 8, 11)
FIELD_GUIDE = (
    _grid("cifar10-resnet", 200, 20, Quick(3, 0.005, 3, EDGES)),
    _varied(
        "Local epochs E",
        "gld-mobilenet",
        "epochs",
        (1, 2, 4, 8, 16),
        1000,
        50,
        Quick(3, 0.02, 3, (0, 1, 2)),
    ),
    _varied(
        "Clients a round M", "gld-mobilenet", "cohort", (10, 20, 60), 1000, 50, Quick(3, 0.1, 3)
    ),
    _varied(
        "Local epochs E", "cifar10-resnet", "epochs", (1, 2, 4), 200, 20, Quick(3, 0.005, 3, (0, 2))
    ),
    _grid("stackoverflow-transformer", 2000, 100, Quick(3, 0.0002, 3, EDGES)),
)

# table 1 of FedSubAvg: clients, samples, samples a client, heat dispersion
DATA = {
    "movielens-lr": ("6,040", "1,000,209", "165", "4,331"),
    "sent140-lstm": ("1,473", "79,050", "54", "1,451"),
    "amazon-din": ("1,870", "123,147", "66", "232"),
    "taobao-din": ("49,023", "16,864,641", "344", "3,142"),
}

PAPERS = {"fedsubavg": FEDSUBAVG, "fedrecon": FEDRECON, "fieldguide": FIELD_GUIDE}
