"""What a report says in sentences."""

from fedslice.report.selection import edges, over_seeds, winner
from fedslice.report.study import Study, rounds_of, target_of
from fedslice.report.words import aim, given, plus_minus, span_text, words


def findings(known: Study) -> list[str]:
    """Who is best within which budget, and who reaches the target."""
    told = []
    judge = known.judge
    names = {limit: winner(each, judge) for limit, each in known.chosen.items() if each}
    for limit, name in names.items():
        one = known.chosen[limit][name]
        mean, spread = over_seeds(one.best, judge.figure, limit)
        told.append(
            f"After {limit} rounds {name} is best: {words(judge.figure)}"
            f" {plus_minus(mean, spread, one.best)}{given(one.best)}."
        )
    if len(set(names.values())) > 1:
        told.append(
            "The winner changes with the budget: "
            + ", ".join(f"{name} at {limit}" for limit, name in names.items())
            + " rounds. Say how many rounds you can afford before you choose."
        )
    told += _targets(known)
    return told


def _targets(known: Study) -> list[str]:
    target = target_of(known)
    if target is None:
        return []
    rounds = {name: rounds_of(one.best, target) for name, one in known.final.items()}
    reached = {n: v for n, v in rounds.items() if v and None not in v}
    if not reached:
        return [f"Nobody reaches {aim(target)} with all seeds."]
    told = ", ".join(
        f"{name} in {span_text([r for r in found if r is not None])}"
        for name, found in reached.items()
    )
    return [f"{aim(target).capitalize()} is reached by {told} rounds."]


def warnings(known: Study) -> list[str]:
    """What a reader must know before believing it."""
    told = [str(edge) for edge in edges(known.cells, known.final)]
    diverged = [record for record in known.records if record.diverged]
    if diverged:
        told.append(f"{len(diverged)} of {len(known.records)} runs diverged and are left out.")
    if not known.judge.held_out:
        told.append(
            f"Cells were chosen by {words(known.judge.figure)}, for there is no validation set"
            " (--validation holds one out)."
        )
    counts = {len(one.best.runs) for one in known.final.values()}
    if counts == {1}:
        told.append("One seed: differences of this size may be chance.")
    elif len(counts) > 1:
        told.append("Algorithms have different numbers of seeds.")
    return told
