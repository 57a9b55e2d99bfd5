"""The command line ``fedslice``: a thin layer over the library.

Exit codes: 0 done, 2 wrong usage or input, 3 diverged.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedslice import export, report
from fedslice.catalogue import ALGORITHMS, find_method, page, settings_for
from fedslice.errors import DivergedError, FedsliceError, InputError
from fedslice.experiment import Experiment, Scorer
from fedslice.frames import from_file
from fedslice.progress import show
from fedslice.registry import TASKS
from fedslice.settings import COMMON
from fedslice.tasks import logistic, ratings
from fedslice.tasks.base import Task


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    >>> main(["algorithms"])  # doctest: +ELLIPSIS
    fedavg ...
    """
    options = _parser().parse_args(arguments)
    try:
        code: int | None = options.act(options)
    except FedsliceError as error:
        _say(f"fedslice: {error}")
        return error.exit_code
    except BrokenPipeError:  # the reader of our output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(
            "fedslice: stopped; the same command with the same --out goes on from the last checkpoint", file=sys.stderr
        )
        return 130
    except OSError as error:
        _say(f"fedslice: {error.filename or 'file'}: {error.strerror or error}")
        return InputError.exit_code
    return code or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedslice", description="Federated optimisation where every client trains only its slice of the model."
    )
    parser.add_argument("--version", action="version", version=f"fedslice {version('fedslice')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="FedAvg and FedSubAvg side by side on embedded data, in a minute")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the pictures (default: demo)")
    demo.set_defaults(act=_demo)

    run = commands.add_parser("run", help="train one algorithm on a task or on your own file")
    _task_arguments(run)
    run.add_argument("--algorithm", default="fedsubavg", help=f"one of {', '.join(ALGORITHMS)} (default: fedsubavg)")
    run.add_argument("--seed", type=int, default=0, help="of sampling, batches and initial values (default: 0)")
    _training_arguments(run)
    run.set_defaults(act=_run)

    compare = commands.add_parser(
        "compare", help="several algorithms, several seeds, the same clients: table and picture"
    )
    _task_arguments(compare)
    compare.add_argument("algorithms", nargs="+", metavar="ALGORITHM", help=f"of {', '.join(ALGORITHMS)}")
    compare.add_argument("--seeds", default="1", help="how many, or a list such as 3,7,11 (default: 1)")
    _training_arguments(compare)
    compare.set_defaults(act=_compare)

    heat = commands.add_parser("heat", help="how many clients hold each row of a task or file: histogram and figures")
    _task_arguments(heat)
    heat.add_argument("--png", type=Path, help="write the histogram as a picture too")
    heat.add_argument("--json", action="store_true", help="figures as one JSON object on standard output")
    heat.set_defaults(act=_heat)

    names = commands.add_parser("tasks", help="list the tasks")
    names.set_defaults(act=lambda options: _list({name: task.summary for name, task in TASKS.items()}))
    methods = commands.add_parser("algorithms", help="list the algorithms, or show one: equation, citation, settings")
    methods.add_argument("name", nargs="?", metavar="NAME", help="the algorithm to show")
    methods.add_argument("--markdown", action="store_true", help="all of them as one Markdown page")
    methods.set_defaults(act=_algorithms)

    out = commands.add_parser("export", help="the trained tables of a run, with your names for the rows")
    out.add_argument("run", type=Path, help="the --out folder of a run")
    out.add_argument("file", type=Path, help="to write: .parquet, .npz or .safetensors")
    out.set_defaults(act=_export)
    return parser


def _task_arguments(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(TASKS)
    parser.add_argument("task", metavar="TASK", help=f"{known}; or lr with --data; heat also takes a file here")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--synthetic", action="store_true", help="generated data of the published size: no download")
    source.add_argument("--data-dir", type=Path, metavar="DIR", help="folder (or zip) with the task's official files")
    source.add_argument("--data", type=Path, metavar="FILE", help="your own CSV or Parquet file, for the task lr")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the generated data (default: 1)")
    parser.add_argument("--client", help="column of --data that names the client")
    parser.add_argument("--label", help="column of --data to predict, 0 or 1")
    parser.add_argument("--features", help="columns of --data, separated by commas, whose values have weights")


def _training_arguments(parser: argparse.ArgumentParser) -> None:
    settings = "\n".join(f"  {key:<16} {meaning}" for key, (_, meaning) in COMMON.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        f"settings for --set (defaults: what the task's paper used):\n{settings}\n\n"
        "and those of the algorithm: fedslice algorithms NAME"
    )
    parser.add_argument("--rounds", type=int, default=200, help="rounds in all (default: 200)")
    parser.add_argument("--eval-every", type=int, default=10, metavar="E", help="measure every E rounds (default: 10)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder; an unfinished run in it goes on")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, as often as needed; see below",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")


def _algorithms(options: argparse.Namespace) -> None:
    if options.markdown:
        print(page(), end="")
    elif options.name:
        print(find_method(options.name).text(options.name))
        print("Settings that all share: fedslice run --help.")
    else:
        _list({name: method.summary for name, method in ALGORITHMS.items()})


def _list(summaries: dict[str, str]) -> None:
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        print(f"{name:<{width}}  {summary}")


def _task(options: argparse.Namespace) -> Task:
    """The task that the options ask for."""
    if options.task == "lr" or options.data is not None:
        return _own(options)
    if options.task not in TASKS:
        raise InputError(f"there is no task {options.task!r}; there are {', '.join(TASKS)}, and lr for your own --data")
    workload = TASKS[options.task]
    if options.synthetic or workload.load is None:
        if not 0 < options.scale <= 100:
            raise InputError(f"--scale {options.scale}: give a number above 0, up to 100")
        return workload.synthetic(scale=options.scale)
    if options.data_dir is not None:
        return workload.load(options.data_dir)
    home = Path(os.environ.get("FEDSLICE_DATA", Path.home() / ".cache" / "fedslice"))
    _say(f"looking for the data in {home} (set FEDSLICE_DATA to change this)")
    return workload.load(ratings.fetch_ml1m(home))


def _own(options: argparse.Namespace) -> Task:
    missing = [f"--{name}" for name in ("data", "client", "label", "features") if getattr(options, name) is None]
    if options.task != "lr" or missing:
        raise InputError(
            "your own data go with the task lr: fedslice run lr --data clicks.parquet --client user --label clicked "
            f"--features item,category (missing here: {', '.join(missing) or 'the task name lr'})"
        )
    fields = _names(options.features)
    people = from_file(options.data, client=options.client, label=options.label, features=fields)
    return logistic.from_population(people, fields, options.label)


def _experiment(options: argparse.Namespace, task: Task, algorithm: str, seed: int, **more: Any) -> Experiment:
    method = find_method(algorithm)
    for key in {change.partition("=")[0].strip() for change in options.set} & set(method.unused):
        _say(f"note: {algorithm} does not use {key}")
    several = "algorithms" in options
    return Experiment(
        task,
        algorithm,
        settings_for(task, algorithm, options.set, others=several),
        options.rounds,
        seed,
        options.eval_every,
        progress=sys.stderr.isatty(),
        tell=_say,
        **more,
    )


def _run(options: argparse.Namespace) -> None:
    find_method(options.algorithm)
    task = _task(options)
    out = options.out or _free(Path("runs"), f"{task.name}-{options.algorithm}")
    emit = _print_json if options.json else _print_line
    experiment = _experiment(options, task, options.algorithm, options.seed, out=out, emit=emit)
    _say(f"{task.name} on {task.source}: {len(task.train):,} clients, {task.train.examples:,} training examples")
    done = experiment.execute()
    if not options.json:
        print(_closing(experiment, done))


def _compare(options: argparse.Namespace) -> int:
    for name in options.algorithms:
        find_method(name)
    if len(set(options.algorithms)) < len(options.algorithms):
        raise InputError("an algorithm is named twice")
    seeds = _seeds(options.seeds)
    task = _task(options)
    out = options.out or _free(Path("runs"), f"{task.name}-compare")
    scorer = Scorer(task)
    groups: dict[str, list[Experiment]] = {}
    failures: list[str] = []
    for name in options.algorithms:
        for seed in seeds:
            run = _experiment(options, task, name, seed, out=out / f"{name}-seed{seed}", scorer=scorer)
            try:
                done = run.execute()
            except DivergedError as error:
                failures.append(f"{name} seed {seed}: {error}")
                _say(failures[-1])
                continue
            groups.setdefault(name, []).append(run)
            if options.json:
                _print_json({"algorithm": name, "seed": seed, **run.lines[-1], **done})
            else:
                _say(f"{name} seed {seed}: {_figures(run.lines[-1])}")
    if groups:
        _show(groups, out, task, options.json)
    return DivergedError.exit_code if failures else 0


def _show(groups: dict[str, list[Experiment]], out: Path, task: Task, as_json: bool) -> None:
    table = report.comparison(groups)
    (out / "table.txt").write_text(table + "\n", encoding="utf-8")
    stream = sys.stderr if as_json else sys.stdout
    print(f"\n{table}\n\ntable: {out / 'table.txt'}", file=stream)
    print(f"curves: {report.curves(groups, out / 'curves.png', f'{task.name}: {task.source}')}", file=stream)


def _demo(options: argparse.Namespace) -> None:
    _say(
        "MovieLens-like ratings, a quarter of the real size: every client holds a few of the rows of one weight table."
    )
    task = TASKS["movielens-lr"].synthetic(scale=0.25)
    heat = task.train.heat(task.model)
    print(report.text_histogram(heat))
    print(f"heat dispersion {heat.dispersion:,.0f}: the hottest row has so many times the clients of the coldest\n")
    groups: dict[str, list[Experiment]] = {}
    models = {}
    scorer = Scorer(task)
    for name in ("fedavg", "fedsubavg"):
        run = Experiment(
            task, name, settings_for(task, name, []), 200, 0, 10, None, scorer, progress=sys.stderr.isatty()
        )
        live = run.start()
        run.execute(live)
        groups[name] = [run]
        models[name] = export.model_of(live)
    options.out.mkdir(parents=True, exist_ok=True)
    _show(groups, options.out, task, as_json=False)
    picture = options.out / "cold-rows.png"
    print(f"\n{report.learned_by_heat(models, 'weight', picture)}\n\npicture: {picture}")


def _heat(options: argparse.Namespace) -> None:
    if options.task not in TASKS and Path(options.task).suffix:
        options.data, options.task = Path(options.task), "lr"
    task = _unlabelled(options) if options.data is not None else _task(options)
    heat, figures = task.train.heat(task.model), task.train.summary(task.model)
    if options.json:
        edges, rows = heat.histogram()
        _print_json({**figures, "histogram": {"edges": edges.tolist(), "rows": rows.tolist()}})
    else:
        print(report.text_histogram(heat) + "\n")
        cells = [[key, f"{value:,.4g}" if value < 1 else f"{value:,.0f}"] for key, value in figures.items()]
        print(report.text_table(["", ""], cells))
    if options.png:
        print(f"picture: {report.heat_picture(heat, options.png, task.name)}", file=sys.stderr)


def _unlabelled(options: argparse.Namespace) -> Task:
    """Heat needs no label and no split."""
    if options.client is None or options.features is None:
        raise InputError(
            "the heat of a file needs its columns: fedslice heat FILE --client user --features item,category"
        )
    fields = _names(options.features)
    people = from_file(options.data, client=options.client, features=fields)
    return logistic.whole(people, fields)


def _export(options: argparse.Namespace) -> None:
    for file in export.export(export.read_model(options.run), options.file):
        print(f"written: {file}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _seeds(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds {text}: give a number of seeds, or seeds separated by commas") from None
    if len(numbers) == 1 and numbers[0] < 1:
        raise InputError("--seeds must be at least 1")
    return list(range(numbers[0])) if len(numbers) == 1 else numbers


def _free(folder: Path, name: str) -> Path:
    """The first of name-1, name-2 ... that is not there yet."""
    number = 1
    while (folder / f"{name}-{number}").exists():
        number += 1
    return folder / f"{name}-{number}"


def _figures(line: dict[str, Any]) -> str:
    figures = ", ".join(f"{key.replace('_', ' ')} {value:.4f}" for key, value in Experiment.figures(line).items())
    return f"round {line['round']}: {figures}"


def _closing(experiment: Experiment, done: dict[str, Any]) -> str:
    target, speed = experiment.task.target, done["ms_per_round"]
    reached = f"{target.metric} {target.value:g} reached in round {done['rounds_to_target']}" if target else ""
    if target and done["rounds_to_target"] is None:
        reached = f"{target.metric} {target.value:g} not reached in {done['rounds']} rounds"
    pace = f"{speed:.2f} ms a round" if speed is not None else ""
    return "\n".join(filter(None, [reached, pace, f"run folder: {done['out']}"]))


def _print_line(line: dict[str, Any]) -> None:
    if "done" not in line:
        show(_figures(line), sys.stdout)


def _print_json(line: dict[str, Any]) -> None:
    strict = {key: None if isinstance(value, float) and value != value else value for key, value in line.items()}
    show(json.dumps(strict), sys.stdout)


def _say(text: str) -> None:
    show(text, sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
