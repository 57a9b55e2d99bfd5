"""What is chosen among cells, against choices worked out by hand."""

import json
import math

import pytest
from report.folders import write

from fedslice.errors import InputError, MissingDataError
from fedslice.report import figures
from fedslice.report.findings import findings, warnings
from fedslice.report.records import Cell, Record, cells, find, frame, read
from fedslice.report.selection import Chosen, Judge, budgets, edges, over_seeds, rounds_to, winner
from fedslice.report.study import study


@pytest.fixture
def folder(tmp_path):
    """Early on rate 1 is better for fedavg, in the end rate 0.1; fedsubavg overtakes it."""
    for seed, shift in ((0, -0.01), (1, 0.01)):
        for algorithm, rate, losses in (
            ("fedavg", 0.1, [0.9, 0.8, 0.7, 0.6, 0.5]),
            ("fedavg", 1.0, [0.9, 0.6, 0.59, 0.58, 0.57]),
            ("fedsubavg", 0.1, [0.9, 0.7, 0.65, 0.45, 0.4]),
            ("fedsubavg", 1.0, [0.9, 0.95, 0.95, 0.95, 0.95]),
        ):
            write(tmp_path, algorithm, seed, [loss + shift for loss in losses], client_rate=rate)
    return tmp_path


def test_for_every_budget_the_cell_with_the_best_mean_validation_is_chosen(folder):
    known = study(find([folder]))
    assert known.budgets == [10, 20, 40]
    chosen = {
        budget: {name: one.best.varied["client_rate"] for name, one in each.items()}
        for budget, each in known.chosen.items()
    }
    assert chosen == {
        10: {"fedavg": 1.0, "fedsubavg": 0.1},
        20: {"fedavg": 1.0, "fedsubavg": 0.1},
        40: {"fedavg": 0.1, "fedsubavg": 0.1},
    }
    assert known.final["fedavg"].second.varied == {"client_rate": 1.0}
    assert [winner(known.chosen[b], known.judge) for b in (10, 20, 40)] == [
        "fedavg",
        "fedavg",
        "fedsubavg",
    ]


def test_figures_are_means_and_deviations_over_seeds(folder):
    known = study(find([folder]))
    mean, spread = over_seeds(known.final["fedavg"].best, "validation_loss", 40)
    assert mean == pytest.approx(0.5)
    assert spread == pytest.approx(math.sqrt(2) * 0.01)  # of 0.49 and 0.51, by n - 1
    assert over_seeds(known.final["fedavg"].best, "test_loss", 40)[0] == pytest.approx(1.0)


def test_a_change_of_winner_and_the_edge_of_the_grid_are_said(folder):
    known = study(find([folder]))
    told = " ".join(findings(known))
    assert "The winner changes with the budget: fedavg at 10, fedavg at 20, fedsubavg at 40" in told
    found = edges(known.cells, known.final)
    assert [(edge.algorithm, edge.value, edge.lowest) for edge in found] == [
        ("fedavg", 0.1, True),
        ("fedsubavg", 0.1, True),
    ]
    assert sum("--extend" in line for line in warnings(known)) == 2


def test_an_optimum_inside_the_grid_is_no_edge(tmp_path):
    for rate, loss in ((0.1, 0.6), (1.0, 0.5), (10.0, 0.7)):
        write(tmp_path, "fedavg", 0, [0.9, loss], client_rate=rate)
    known = study(find([tmp_path]))
    assert edges(known.cells, known.final) == []
    assert "One seed: differences of this size may be chance." in warnings(known)


def test_a_cell_of_which_a_run_diverged_is_not_chosen(tmp_path):
    write(tmp_path, "fedavg", 0, [0.9, 0.1, 0.1, 0.1, 0.1], client_rate=1.0)
    write(tmp_path, "fedavg", 1, [0.9, 0.1], diverged="to infinity", client_rate=1.0)
    for seed in (0, 1):
        write(tmp_path, "fedavg", seed, [0.9, 0.8, 0.7, 0.6, 0.5], client_rate=0.1)
    known = study(find([tmp_path]))
    assert known.final["fedavg"].best.varied == {"client_rate": 0.1}
    # within its life it counts
    assert known.chosen[10]["fedavg"].best.varied == {"client_rate": 1.0}
    assert "1 of 4 runs diverged and are left out." in warnings(known)


def test_a_figure_that_rises_is_chosen_at_its_largest(folder):
    known = study(find([folder]), "validation_auc")
    assert known.judge == Judge("validation_auc", True)
    assert known.chosen[10]["fedavg"].best.varied == {"client_rate": 1.0}
    with pytest.raises(InputError, match="no run has the figure 'speed'"):
        study(find([folder]), "speed")


def test_nothing_is_chosen_on_the_test_set(tmp_path):
    """Without validation the training loss decides, and that is said."""
    good, bad = [0.9, 0.5], [0.9, 0.6]
    for rate, validation, test in ((0.1, good, bad), (1.0, bad, good)):
        folder = write(tmp_path, "fedavg", 0, validation, test, client_rate=rate)
        file = folder / "metrics.jsonl"
        file.write_text(file.read_text().replace("validation_", "unused_"))
    known = study(find([tmp_path]))
    assert known.judge.figure == "train_loss"
    assert known.final["fedavg"].best.varied == {"client_rate": 0.1}
    assert any("there is no validation set" in line for line in warnings(known))


def test_rounds_to_a_target(folder):
    run = next(r for r in find([folder]) if r.algorithm == "fedavg" and r.seed == 0)
    assert rounds_to(run, "validation_loss", 0.69, below=True) == 20
    assert rounds_to(run, "auc", 0.49, below=False) == 40
    assert rounds_to(run, "auc", 0.99, below=False) is None


def test_cells_are_runs_that_differ_by_seed_alone(folder):
    found = cells(find([folder]))
    assert [len(cell.runs) for cell in found] == [2, 2, 2, 2]
    assert found[0].name == "fedavg client_rate 0.1"


def test_runs_are_a_frame(folder):
    table = frame([folder])
    assert len(table) == 8 * 5
    last = table[(table["round"] == 40) & (table["client_rate"] == 0.1)]
    means = last.groupby("algorithm")["validation_loss"].mean()
    assert means["fedavg"] == pytest.approx(0.5)
    assert means["fedsubavg"] == pytest.approx(0.4)


def test_unfit_folders_are_named(tmp_path):
    with pytest.raises(MissingDataError, match="there is no folder"):
        find([tmp_path / "none"])
    with pytest.raises(InputError, match="holds no run"):
        find([tmp_path])
    folder = write(tmp_path / "a", "fedavg", 0, [0.9, 0.8])
    write(tmp_path / "b", "fedavg", 0, [0.9, 0.8], task="other")
    with pytest.raises(InputError, match="one task on the same data"):
        study(find([tmp_path]))
    (folder / "metrics.jsonl").write_text('{"round": 0}\n{"rou')
    with pytest.raises(InputError, match="line 2 is damaged"):
        read(folder)
    (folder / "metrics.jsonl").write_text('{"round": 0, "train_loss": null}\n')
    with pytest.raises(InputError, match="have no figures yet"):
        budgets([read(folder)])
    (folder / "settings.json").write_text("{}")
    with pytest.raises(InputError, match="has no algorithm"):
        read(folder)


def test_a_run_that_has_not_come_so_far_does_not_count_for_the_budget(tmp_path):
    write(tmp_path, "fedavg", 0, [0.7, 0.6, 0.5, 0.45, 0.4])
    write(tmp_path, "fedadam", 0, [0.7, 0.1, 0.1])
    known = study(find([tmp_path]))
    assert list(known.final) == ["fedavg"]
    assert set(known.chosen[20]) == {"fedavg", "fedadam"}
    assert any("1 of 2 runs have not come to round 40" in line for line in warnings(known))


def test_a_run_that_stopped_for_want_of_patience_counts_with_its_last_line(tmp_path):
    folder = write(tmp_path, "fedavg", 0, [0.7, 0.3, 0.31])
    (folder / "done.json").write_text(json.dumps({"rounds": 20, "stopped": "no better loss"}))
    write(tmp_path, "fedadam", 0, [0.7, 0.6, 0.5, 0.45, 0.4])
    assert set(study(find([tmp_path])).final) == {"fedavg", "fedadam"}


def test_who_is_within_the_spread_over_seeds_is_said(tmp_path):
    """Standard deviations over two seeds at x - d and x + d are d times the root of two."""
    for algorithm, loss in (("fedavg", 0.5), ("fedprox", 0.51), ("fedadam", 0.6)):
        for seed, shift in ((0, -0.01), (1, 0.01)):
            write(tmp_path, algorithm, seed, [0.9, *[loss + shift] * 4])
    told = findings(study(find([tmp_path])))
    assert "0.5000 ± 0.0141; fedprox within the spread over seeds." in told[-1]
    assert "fedadam" not in told[-1]


def test_a_change_of_winner_within_the_spread_is_no_advice(tmp_path):
    for seed, shift in ((0, -0.05), (1, 0.05)):
        write(tmp_path, "fedavg", seed, [0.9, *[x + shift for x in (0.60, 0.60, 0.50, 0.50)]])
        write(tmp_path, "fedprox", seed, [0.9, *[x + shift for x in (0.61, 0.61, 0.49, 0.49)]])
    told = [line for line in findings(study(find([tmp_path]))) if "winner changes" in line]
    assert told[0].endswith("within the spread over seeds: run more of them.")


def test_an_algorithm_has_one_colour_on_every_axis(tmp_path):
    """Also where another one, which has no such figure, is left out."""
    matplotlib = pytest.importorskip("matplotlib.pyplot")
    lines = {
        "central": [{"round": n, "loss": 1.0 - n / 100} for n in (0, 10)],
        "fedavg": [{"round": n, "loss": 1.0 - n / 50, "seconds": 60.0 * n} for n in (0, 10)],
    }
    chosen = {
        name: Chosen(name, 0, Cell(name, {}, [Record(tmp_path, {}, known, {}, {}, {}, {})]), None)
        for name, known in lines.items()
    }
    colours = []
    for axis in ("rounds", "time"):
        figure, axes = matplotlib.subplots()
        figures.curves(chosen, "loss", axis, axis).draw(axes)
        colours.append({line.get_label(): line.get_color() for line in axes.get_lines()})
        matplotlib.close(figure)
    assert list(colours[0]) == ["central", "fedavg"]
    assert colours[1] == {"fedavg": colours[0]["fedavg"]}
