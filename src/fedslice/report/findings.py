"""What a report says in sentences."""

from fedslice.report.selection import edges, over_seeds, winner
from fedslice.report.study import Study, rounds_of, target_of
from fedslice.report.words import aim, given, plus_minus, span_text, words


def findings(known: Study) -> list[str]:
    """Who is best within which budget, who is as good, and who reaches the target."""
    told = []
    names = {limit: winner(each, known.judge) for limit, each in known.chosen.items() if each}
    for limit, name in names.items():
        one = known.chosen[limit][name]
        mean, spread = over_seeds(one.best, known.judge.figure, limit)
        equal = _level(known, limit, name)
        others = f"; {' and '.join(equal)} within the spread over seeds" if equal else ""
        told.append(
            f"After {limit} rounds {name} is best: {words(known.judge.figure)}"
            f" {plus_minus(mean, spread, one.best)}{given(one.best)}{others}."
        )
    if len(set(names.values())) > 1:
        unsure = all(
            set(names.values()) - {name} <= set(_level(known, limit, name))
            for limit, name in names.items()
        )
        advice = (
            "The differences are within the spread over seeds: run more of them."
            if unsure
            else "Say how many rounds you can afford before you choose."
        )
        told.append(
            "The winner changes with the budget: "
            + ", ".join(f"{name} at {limit}" for limit, name in names.items())
            + f" rounds. {advice}"
        )
    told += _targets(known)
    return told


def _level(known: Study, limit: int, best: str) -> list[str]:
    """The algorithms whose mean is no further from the best one's than either spread over seeds."""
    figure = known.judge.figure
    each = {n: over_seeds(one.best, figure, limit) for n, one in known.chosen[limit].items()}
    mean, spread = each.pop(best)
    seeds = len(known.chosen[limit][best].best.runs)
    if seeds < 2:
        return []
    return [name for name, (m, s) in each.items() if abs(m - mean) <= max(s, spread)]


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
    limit = known.budgets[-1]
    short = [record for record in known.records if record.at(limit) is None and not record.diverged]
    if short:
        told.append(
            f"{len(short)} of {len(known.records)} runs have not come to round {limit}: their cells"
            " count for smaller budgets alone."
        )
    told += _uneven(known)
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


def _uneven(known: Study) -> list[str]:
    """Who took part, where clients could not all be asked alike."""
    each = [record.evaluation.get("participation") for record in known.records]
    found = [one for one in each if one]
    if not found:
        return []
    never, gini = (sum(one[key] for one in found) / len(found) for key in ("never", "gini"))
    return [
        f"Clients were not there alike: {never:.0%} never took part, the Gini coefficient of turns"
        f" is {gini:.2f}. The model is more of those who came more often."
    ]
