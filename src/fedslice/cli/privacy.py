"""How private a training would be, before anybody trains: ``fedslice privacy``."""

import argparse
import math
import warnings
from dataclasses import replace
from typing import Any

from fedslice.cli.helpful import one_of
from fedslice.cli.printing import say
from fedslice.errors import InputError
from fedslice.files.strict import as_json
from fedslice.privacy.accounting.account import Guarantee, guarantee, parts_of, shown
from fedslice.privacy.accounting.budget import noise_for, rounds_for
from fedslice.privacy.accounting.composition import pld_epsilon
from fedslice.privacy.accounting.mechanism import ADD_OR_REMOVE, Central, Mechanism
from fedslice.privacy.accounting.release import HeatCounts

NOISES = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
SHARES = (0.25, 0.5, 1, 2, 4)  # of the rounds, for the table
GRID = 3e-4  # of the table's privacy losses: three digits

NOTES = """\
Noise is given as a multiplier z: the sum of the cohort's updates, each clipped
to length C, gets Gaussian noise of standard deviation z C. The unit is a client
with all its data. Cohorts of fixed size (--sampler uniform) need about twice
the noise of those drawn client by client (poisson). docs/privacy-accounting.md
explains."""


def command(options: argparse.Namespace) -> None:
    """Answer, as text or as one JSON object."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        training, others, found = _answer(options)
    for each in {str(each.message): None for each in caught}:
        say(f"careful: {each}")
    checks = _second_opinions(training, others, found.delta)
    tables = _tables(training, others, found)
    if options.json:
        print(
            as_json(
                {
                    "noise": training.noise,
                    "rounds": training.rounds,
                    "guarantee": found.as_dict(),
                    "others": [
                        {
                            key: each.as_dict()[key]
                            for key in ("accountant", "neighbours", "epsilon")
                        }
                        for each in checks
                    ],
                    **{name: [list(pair) for pair in pairs] for name, pairs in tables.items()},
                    "std_of_mean_over_clip": training.noise / training.cohort,
                }
            )
        )
    else:
        print("\n".join(_text(options, training, found, checks, tables)))


def _answer(
    options: argparse.Namespace,
) -> tuple[Central, tuple[Mechanism, ...], Guarantee]:
    """The training that is asked about, what else is released, and what they give."""
    _said(options, "clients")
    others = _heat(options)
    cohort = options.cohort
    if cohort is None and options.sampler == "full":
        cohort = options.clients
    if cohort is None:
        raise InputError("--cohort is missing: how many clients take part in a round")
    if options.noise is None and options.epsilon is None:
        raise InputError("give --noise, or --epsilon to have the noise found")
    asked = options.noise is not None and options.epsilon is not None
    if asked and options.rounds is not None:
        raise InputError(
            "--epsilon, --noise and --rounds are all given: leave out the one to be found"
        )
    training = Central(
        options.clients,
        cohort,
        1.0 if options.noise is None else options.noise,
        200 if options.rounds is None else options.rounds,
        options.sampler,
    )
    if asked:
        most = rounds_for(options.epsilon, training, *others, delta=options.delta)
        training = replace(training, rounds=most)
    elif options.epsilon is not None:
        least = noise_for(options.epsilon, training, *others, delta=options.delta)
        training = replace(training, noise=least)
    return training, others, guarantee(training, *others, delta=options.delta)


def _heat(options: argparse.Namespace) -> tuple[Mechanism, ...]:
    if options.heat_std is None and options.heat_rows is None:
        return ()
    _said(options, "heat_std", "heat_rows")
    return (HeatCounts(options.heat_std, options.heat_rows),)


def _said(options: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(options, name) is None:
            raise InputError(f"--{name.replace('_', '-')} is missing: see fedslice privacy --help")


def _second_opinions(
    training: Central, others: tuple[Mechanism, ...], delta: float
) -> list[Guarantee]:
    """Other accountants that hold too."""
    if training.sampling == "uniform":
        ask = {"accountant": "pld", "neighbours": ADD_OR_REMOVE}
    else:
        ask = {"accountant": "rdp"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [guarantee(training, *others, delta=delta, **ask)]


def _tables(
    training: Central, others: tuple[Mechanism, ...], found: Guarantee
) -> dict[str, list[tuple[float, float]]]:
    """Epsilon for other noise and for other rounds."""

    def epsilon(other: Central) -> float:
        if found.accountant.startswith("PLD"):
            return pld_epsilon(parts_of((other, *others), found.neighbours), found.delta, GRID)
        return guarantee(other, *others, delta=found.delta).epsilon

    noises = sorted({*NOISES, training.noise})
    rounds = sorted({max(1, round(share * training.rounds)) for share in SHARES})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return {
            "by_noise": [(noise, epsilon(replace(training, noise=noise))) for noise in noises],
            "by_rounds": [(count, epsilon(replace(training, rounds=count))) for count in rounds],
        }


def _text(
    options: argparse.Namespace,
    training: Central,
    found: Guarantee,
    checks: list[Guarantee],
    tables: dict[str, list[tuple[float, float]]],
) -> list[str]:
    lines = []
    if options.epsilon is not None and options.noise is None:
        lines += [
            f"Noise multiplier {training.noise:g} keeps epsilon within {options.epsilon:g}.",
            "",
        ]
    elif options.epsilon is not None:
        lines += [f"{training.rounds} rounds keep epsilon within {options.epsilon:g}.", ""]
    lines += [str(found), ""]
    lines += [
        f"The same by {each.accountant.split(' (')[0]} under {each.neighbours}: epsilon ="
        f" {shown(each.epsilon)}"
        for each in checks
    ]
    for name, title in (("by_noise", "noise"), ("by_rounds", "rounds")):
        lines += ["", *_columns(title, tables[name])]
    share = training.noise / training.cohort
    lines += [
        "",
        f"Each number of the mean update gets noise of standard deviation {share:.3g} C, where C is"
        f" the clipping bound. From {math.ceil(share**-2):,} numbers in the model on, the noise is"
        " longer than the longest update: more clients in a round help.",
    ]
    return lines


def _columns(title: str, pairs: list[tuple[float, float]]) -> list[str]:
    heads, cells = [f"{at:g}" for at, _ in pairs], [f"{eps:.3g}" for _, eps in pairs]
    widths = [max(len(head), len(cell)) for head, cell in zip(heads, cells, strict=True)]
    return [
        f"{label:<8}"
        + "".join(f"  {text:>{width}}" for text, width in zip(row, widths, strict=True))
        for label, row in ((title, heads), ("epsilon", cells))
    ]


def add_to(commands: Any) -> argparse.ArgumentParser:
    """The subcommand ``privacy``; what it returns takes subcommands of its own."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "privacy",
        help="how private a training with noise would be, or the noise that it needs",
        description="How much a training with noise tells about any one client: epsilon and delta.",
        notes=NOTES,
    )
    add = parser.add_argument
    add("--clients", type=int, metavar="N", help="how many there are")
    add("--cohort", type=float, metavar="K", help="how many take part in a round, on average")
    add("--noise", type=float, metavar="Z", help="noise on the sum, over the clipping bound")
    add("--rounds", type=int, metavar="T", help="of training (default: 200)")
    add(
        "--epsilon", type=float, metavar="E",
        help="find the least noise for it or, with --noise, the most rounds",
    )  # fmt: skip
    add(
        "--delta", type=float, metavar="D",
        help="(default: 1e-5, or 1/(N ln N) if that is less)",
    )  # fmt: skip
    add(
        "--sampler", type=one_of(["poisson", "uniform", "full"]), default="poisson", metavar="WAY",
        help="how clients are drawn: each by itself, so many without replacement, or all"
        " (default: poisson)",
    )  # fmt: skip
    add(
        "--heat-std", type=float, metavar="S",
        help="counts of the rows' holders are released once, with noise of this deviation",
    )  # fmt: skip
    add("--heat-rows", type=int, metavar="B", help="the most rows that a client holds, for it")
    add("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(act=command)
    return parser
