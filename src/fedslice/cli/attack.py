"""What an attacker sees: in single messages, in their sum, and in their sum with noise.

The attacks are in :mod:`fedslice.evaluation.attack` and :mod:`fedslice.evaluation.reading`."""

import argparse
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax

from fedslice import privacy, recipes
from fedslice.cli import attack_picture, report
from fedslice.cli.printing import say
from fedslice.data import sampling
from fedslice.errors import InputError
from fedslice.evaluation import reading
from fedslice.evaluation.attack import KNOWING, Measured, Share, measure, membership, share
from fedslice.evaluation.attack import largest_advantage as bound
from fedslice.evaluation.overheard import Overheard, overheard
from fedslice.files.writing import replacing
from fedslice.heat import Heat
from fedslice.simulation.run import Run, simulate
from fedslice.tasks import movielens_lr
from fedslice.tasks.base import Task
from fedslice.types import Stage, Work

COHORTS, NOISES, PRIVATE = (10, 50, 100), (0.3, 0.5, 1.0, 2.0), 50
HEATS = {"1 client": (1, 1), "2 to 5": (2, 5), "6 to 20": (6, 20), "more": (21, 1 << 31)}
DRAWS = 2  # rounds, each with batches of its own, that messages are taken from
LATER = 20  # rounds after which single messages are read again
FIELD, TABLE, RATE, WORK = "features", "weight", 0.1, Work(steps=10, batch=5)
GENDER, AGE, FILM = 0, 1, 2  # which of an example's features


class Sums(NamedTuple):
    """What sums of messages tell: who took part, by what an attacker knows; who trained a row in
    this round, and who holds it at all, by the clients that do; and labels."""

    member: dict[str, Measured]
    trains: dict[str, Measured]
    holds: dict[str, Measured]
    label: Share


class Findings(NamedTuple):
    """All that was measured: of single messages, of sums of so many, and with so much noise."""

    messages: dict[str, Share]
    sums: dict[int, Sums]
    noisy: dict[float, Sums]
    facts: dict[str, float]


def study(task: Task, trials: int, seed: int = 0) -> Findings:
    """Every attack on the first round of FedSubAvg, ``trials`` times each, and again with noise."""
    heat = task.train.heat(task.model)
    plain = _run(task, heat, [], seed)
    read = [overheard(plain, round) for round in range(DRAWS)]
    sums = {k: _sums(plain, read, k, trials, seed, []) for k in COHORTS}
    clip = float(np.median(_norms(plain, read[0], heat)))
    noisy, filled = _noisy(task, heat, clip, trials, seed)
    facts = {
        "clients": len(plain.eligible),
        "rows": plain.model.tables[TABLE].rows,
        "trained": float(read[0].sent.sum() / read[0].held.sum()),
        "filled": filled,
        "trials": trials,
    }
    return Findings(_messages(plain, read[0]), sums, noisy, facts)


def _noisy(
    task: Task, heat: Heat, clip: float, trials: int, seed: int
) -> tuple[dict[float, Sums], float]:
    """The same with a private mean, for each amount of noise; and the share of clients whose
    updates fill the ball."""

    def stages(noise: float) -> list[Stage]:
        drawn = sampling.poisson(PRIVATE)
        return privacy.central(clip, noise, drawn, heat=privacy.heat.public(heat))

    run = _run(task, heat, stages(1.0), seed)  # clients do not know how much noise there will be
    read = [overheard(run, round) for round in range(DRAWS)]
    found = {z: _sums(run, read, PRIVATE, trials, seed, stages(z)) for z in NOISES}
    return found, float(np.mean(np.linalg.norm(read[0].values, axis=1) > 0.999))


def _run(task: Task, heat: Heat, stages: list[Stage], seed: int) -> Run:
    """FedSubAvg with the task's published rate and work, and uniform weights."""
    known = stages[0].heat if stages and stages[0].heat else heat
    method = recipes.fedsubavg(
        task.model, optax.sgd(RATE), WORK, heat=known, weights="uniform", stages=stages
    )
    return simulate(method, task.train, sampler=sampling.poisson(PRIVATE), seed=seed)


def _norms(run: Run, read: Overheard, heat: Heat) -> np.ndarray:
    """Of the updates, in the geometry in which they will be clipped."""
    factors = np.ones(read.values.shape[1])
    ids = run.spaces[run.model.space_of[TABLE]].ids
    factors[read.columns[TABLE]] = heat.coefficient(TABLE, ids, "uniform") ** 0.5
    return np.asarray(np.linalg.norm(factors * read.values, axis=1))


# -- the attacks -----------------------------------------------------------------------------------


def _messages(run: Run, read: Overheard) -> dict[str, Share]:
    """What single messages tell; ``run`` is trained on, to read them once more."""
    names = run.population.names[FIELD][run.spaces[TABLE].ids]
    rows, first = read.sent[:, read.columns[TABLE]], run.population.offsets[run.eligible]
    found = {}
    for what, begins, feature in (("gender", "gender=", GENDER), ("age group", "age=", AGE)):
        mine = np.array([name.startswith(begins) and " & " not in name for name in names])
        said = run.spaces[TABLE].ids[np.argmax(rows & mine, axis=1)]
        found[what] = share(said, run.population.columns[FIELD][first, feature])
    films = np.array([name.startswith("movie=") for name in names])
    named = rows[:, films]
    rated = np.zeros((len(run.population), run.model.tables[TABLE].rows), bool)
    rated[run.population.owners, run.population.columns[FIELD][:, FILM]] = True
    rated = rated[run.eligible][:, run.spaces[TABLE].ids[films]]
    found["films it rated"] = share(np.ones(named.sum()), rated[named])._replace(
        base=float(rated.mean())
    )
    found["its rating of a film"] = _ratings(run, read)
    run.train(LATER, progress=False)
    found[f"the same, {LATER} rounds later"] = _ratings(run, overheard(run, LATER))
    return found


def _ratings(run: Run, read: Overheard) -> Share:
    told = reading.telling(run, read, FIELD).trained(read)
    return share(told.read(read.values), told.label)


def _sums(
    run: Run, read: list[Overheard], cohort: int, trials: int, seed: int, stages: list[Stage]
) -> Sums:
    """All attacks on sums, ``trials`` of each, divided among the rounds that were ``read``."""
    each, clients = -(-trials // len(read)), np.bincount(run.spaces[TABLE].slots)
    noise = stages[-1].noise.multiplier if stages and stages[-1].noise else 0.0
    own = np.random.default_rng([seed, cohort, int(1000 * noise)])  # each attack has its own coins
    beside = np.random.default_rng([seed, cohort, int(1000 * noise), 1])
    member: list[tuple[dict[str, np.ndarray], np.ndarray]] = []
    trains: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {heat: [] for heat in HEATS}
    holds: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {heat: [] for heat in HEATS}
    label: list[tuple[np.ndarray, np.ndarray]] = []
    for one in read:
        where = one.columns[TABLE]
        member.append(membership(one.values, one.held, cohort, each, stages, _draw(own)))
        for heat, (low, high) in HEATS.items():
            columns = where.start + np.flatnonzero((low <= clients) & (clients <= high))
            given = columns, cohort, each, stages
            trains[heat].append(reading.training(one.values, one.sent, *given, _draw(own)))
            holds[heat].append(reading.training(one.values, one.held, *given, _draw(beside)))
        told = reading.telling(run, one, FIELD).trained(one)
        label.append(reading.from_sums(one.values, told, cohort, each, stages, _draw(own)))
    present = np.concatenate([truth for _, truth in member])
    scores = {name: np.concatenate([score[name] for score, _ in member]) for name in KNOWING}
    exact = {"everyone": 0.0}  # its likelihoods are the true ones, so 1 : 1 is the place to decide
    return Sums(
        {name: measure(score, present, exact.get(name)) for name, score in scores.items()},
        {heat: measure(*_joined(pairs)) for heat, pairs in trains.items()},
        {heat: measure(*_joined(pairs)) for heat, pairs in holds.items()},
        share(*_joined(label))._replace(base=told.base),
    )


def _draw(rng: np.random.Generator) -> int:
    return int(rng.integers(2**32))


def _joined(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    left, right = zip(*pairs, strict=True)
    return np.concatenate(left), np.concatenate(right)


# -- what is shown ---------------------------------------------------------------------------------


def tables(found: Findings) -> str:
    """Three tables, with what their figures are."""
    facts = found.facts
    single = [
        [name, _percent(one), f"{100 * one.base:.1f} %", f"{one.trials:,}"]
        for name, one in found.messages.items()
    ]
    plain, noisy = list(found.sums.values()), list(found.noisy.values())
    lines = [
        ("did it take part? knows everyone else's messages, too", "member", "everyone"),
        ("did it take part? knows its data", "member", "data"),
        ("did it take part? knows which rows it holds", "member", "rows"),
        *((f"does it train this row? held by {heat}", "trains", heat) for heat in HEATS),
        *((f"does it hold this row? held by {heat}", "holds", heat) for heat in HEATS),
    ]

    def block(columns: list[Sums]) -> list[list[str]]:
        rows = [
            [name, *(_gain(getattr(c, kind)[key]) for c in columns)] for name, kind, key in lines
        ]
        return [*rows, ["its rating of a film, right", *(_percent(c.label) for c in columns)]]

    limit = ["did it take part? no attacker can exceed", *(f"{bound(z):.3f}" for z in found.noisy)]
    return "\n\n".join(
        [
            f"1. One message, as the server gets it: {facts['clients']:,.0f} clients, the first"
            " round",
            report.text_table(["what is read", "right", "guessed without it", "of"], single),
            f"2. The sum of about K messages and nothing else: advantage of an attacker, from 0 (a"
            f" guess) to 1 (certain), in {facts['trials']:,.0f} rounds",
            report.text_table(["", *(f"K = {k}" for k in found.sums)], block(plain)),
            f"3. The sum of about {PRIVATE} clipped messages with noise z (central differential"
            " privacy)",
            report.text_table(["", *(f"z = {z:g}" for z in found.noisy)], [limit, *block(noisy)]),
            textwrap.fill(_notes(facts, plain[0].label.base), 100),
        ]
    )


def _notes(facts: dict[str, float], base: float) -> str:
    return (
        f"± is one standard error. Without any message {100 * base:.0f} % of the ratings are"
        f" guessed right. A client trains {100 * facts['trained']:.0f} % of its rows in a round."
        f" Before noise {100 * facts['filled']:.0f} % of the updates fill the ball that all are"
        " clipped to. The bound in 3 is for one round, and for a client that takes part or not by a"
        " fair coin. Over many rounds attackers gain, by the sampling of clients they lose: that is"
        " for an accountant. Noise on the sum protects from those who see sums; a server that sees"
        " single messages reads table 1."
    )


def _gain(one: Measured) -> str:
    return f"{one.advantage:.3f} ± {one.error:.3f}"


def _percent(one: Share) -> str:
    return f"{100 * one.right:.1f} ± {100 * one.error:.1f} %"


def _picture(found: Findings, file: Path) -> None:
    """The figures that a picture has room for."""

    def questions(sums: Sums) -> dict[str, Measured | Share]:
        return {
            "took part?\n(data known)": sums.member["data"],
            "took part?\n(rows known)": sums.member["rows"],
            "trains a row that\n2 to 5 clients hold?": sums.trains["2 to 5"],
            "its rating of a film": sums.label,
        }

    kinds = {f"sum of about {k}": questions(sums) for k, sums in found.sums.items()}
    kinds[f"sum of about {PRIVATE}, noise z = 1"] = questions(found.noisy[1.0])
    single = {name: found.messages[name] for name in list(found.messages)[:4]}
    attack_picture.draw(single, kinds, {z: s.member for z, s in found.noisy.items()}, file)


def command(options: argparse.Namespace) -> None:
    """Attack, and show what came of it."""
    if not 0 <= options.seed < 2**31:
        raise InputError(f"--seed {options.seed}: give a whole number from 0 to {2**31 - 1}")
    if options.trials < 100:
        raise InputError(f"--trials {options.trials}: too few to tell anything; take 100 or more")
    picture: Path | None = options.out / "attack.png"
    try:
        report.check_picture(options.out / "attack.png")
    except InputError as error:
        say(f"note: there will be no picture: {error}")
        picture = None
    task = movielens_lr.synthetic(options.seed, options.scale)
    if len(task.train) <= 2 * max(COHORTS):
        raise InputError(
            f"--scale {options.scale:g} makes {len(task.train)} clients, too few for cohorts of"
            f" {max(COHORTS)}: take 0.05 or more"
        )
    say(
        f"Ratings of films by {len(task.train)} clients (generated); a logistic regression is"
        " trained by FedSubAvg. Attackers at work ..."
    )
    found = study(task, options.trials, options.seed)
    text = tables(found)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    with replacing(options.out / "table.txt") as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    if picture is not None:
        _picture(found, picture)
        print(f"\npicture: {picture}")


def add_to(commands: Any) -> None:
    """The subcommand ``attack``."""
    parser = commands.add_parser(
        "attack", help="what can be read from messages, from sums, and from sums with noise"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("attack"),
        help="folder for table and picture (default: attack)",
    )
    parser.add_argument(
        "--trials", type=int, default=6000, help="rounds that each attacker plays (default: 6000)"
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=0.1,
        help="size of the data; 1 is MovieLens-1M (default: 0.1)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of data and attacks (default: 0)")
    parser.set_defaults(act=command)
