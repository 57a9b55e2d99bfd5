"""What the subcommands of ``fedslice`` do."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from fedslice.cli import export, report, study
from fedslice.cli import recommend as recommender
from fedslice.cli.catalogue import ALGORITHMS, find_method, settings_for, settings_of_all
from fedslice.cli.clock import shares
from fedslice.cli.experiment import BEST, Experiment
from fedslice.cli.folder import Line, as_json
from fedslice.cli.reference import page
from fedslice.cli.scorer import Scorer
from fedslice.cli.settings import Settings
from fedslice.cli.trackers import open_tracker
from fedslice.cli.workloads import (
    TASKS,
    find_task,
    make_task,
    obtain,
    present,
    sections,
    task_page,
)
from fedslice.cluster.crew import Crew
from fedslice.cluster.rays import ray
from fedslice.compose import check_sampler
from fedslice.data.devices import Devices
from fedslice.data.loading import from_file
from fedslice.errors import DivergedError, InputError
from fedslice.files.writing import writing
from fedslice.report import figures, records
from fedslice.report.sections import heat_table
from fedslice.simulation.progress import show
from fedslice.simulation.run import Run
from fedslice.tasks import logistic
from fedslice.tasks.base import OBSERVED, Task, Workload
from fedslice.tasks.readers.files import data_home


def algorithms(options: argparse.Namespace) -> None:
    """List the algorithms, or show one."""
    if options.markdown:
        print(page(), end="")
    elif options.name:
        print(find_method(options.name).text(options.name))
        print("Settings that all share: fedslice run --help.")
    else:
        listing({name: method.page.summary for name, method in ALGORITHMS.items()})


def listing(summaries: dict[str, str]) -> None:
    """Names with one line about each."""
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        print(f"{name:<{width}}  {summary}")


def tasks(options: argparse.Namespace) -> None:
    """List the tasks, or show one: sizes, settings, published results, and what data are here."""
    if options.markdown:
        print(task_page(), end="")
        return
    if options.name is None:
        listing({name: workload.summary for name, workload in TASKS.items()})
        return
    workload = find_task(options.name)
    parts = {**sections(workload), "data": _whereabouts(workload, options.data_dir or data_home())}
    if options.json:
        _print_json({"name": workload.name, "summary": workload.summary, **parts})
        return
    print(f"{workload.name}: {workload.summary}")
    for title, cells in parts.items():
        width = max(map(len, cells))
        print(
            f"\n{title}\n" + "\n".join(f"  {key:<{width}}  {value}" for key, value in cells.items())
        )


def _whereabouts(workload: Workload, place: Path) -> dict[str, str]:
    scale = f", scale {workload.scale:g} unless you say --scale" if workload.scale != 1 else ""
    made = {"--synthetic": f"generated, nothing to download{scale}"}
    if workload.load is None:
        return made
    found = (
        ", ".join(present(workload, place))
        or f"nothing; fedslice data {workload.name} fetches or explains"
    )
    return {f"in {place}": found, "needed": workload.needs, **made}


def data(options: argparse.Namespace) -> None:
    """Fetch a task's data, or say where to get them."""
    workload = find_task(options.name)
    if workload.load is None:
        say(f"{workload.name} needs no data: it is generated")
        return
    place = obtain(workload, options.dir)
    print(f"{workload.name}: {', '.join(present(workload, place))} in {place}")
    where = f" --data-dir {place}" if options.dir else ""
    print(f"try: fedslice run {workload.name}{where}")


def task_of(options: argparse.Namespace) -> Task:
    """The task that the options ask for."""
    if options.task == "lr" or options.data is not None:
        return _own(options)
    return named_task(options)


def named_task(options: argparse.Namespace) -> Task:
    """A task by its name, with generated or real data."""
    workload = find_task(options.task)
    if options.synthetic or workload.load is None:
        scale = workload.scale if options.scale is None else options.scale
        if not 0 < scale <= 100:
            raise InputError(f"--scale {scale}: give a number above 0, up to 100")
        if scale != 1 and options.scale is None:
            say(
                f"generating {workload.name} at scale {scale:g} of the published size (--scale 1"
                " for all of it)"
            )
        return make_task(workload, None, scale, options.option)
    if options.data_dir is None:
        say(f"looking for the data in {data_home()} (set FEDSLICE_DATA to change this)")
    return make_task(workload, options.data_dir or obtain(workload), 1.0, options.option)


def _own(options: argparse.Namespace) -> Task:
    missing = [
        f"--{name}"
        for name in ("data", "client", "label", "features")
        if getattr(options, name) is None
    ]
    if options.task != "lr" or missing:
        raise InputError(
            "your own data go with the task lr: fedslice run lr --data clicks.parquet --client"
            " user --label clicked --features item,category (missing here:"
            f" {', '.join(missing) or 'the task name lr'})"
        )
    if options.option:
        raise InputError(f"--option {options.option[0]}: the task lr has no options")
    fields = _names(options.features)
    text = _names(options.text)
    people = from_file(
        options.data, client=options.client, label=options.label, features=fields, text=text
    )
    for line in logistic.values(people, fields):
        say(line)
    return logistic.from_population(people, fields, options.label)


def _experiment(
    options: argparse.Namespace,
    task: Task,
    algorithm: str,
    settings: Settings,
    seed: int,
    **more: Any,
) -> Experiment:
    return Experiment(
        task,
        algorithm,
        settings,
        options.rounds,
        seed,
        options.eval_every,
        progress=sys.stderr.isatty(),
        tell=say,
        store=options.store,
        stop=options.stop,
        patience=options.patience,
        devices=devices_of(options),
        **more,
    )


def devices_of(options: argparse.Namespace) -> Devices | None:
    """The devices whose time is estimated, if the user has some of their own."""
    return None if options.devices is None else Devices.read(options.devices)


@contextmanager
def _crew(options: argparse.Namespace, threads: int) -> Iterator[Crew | None]:
    """The cluster that was asked for, while it is needed."""
    if options.ray is None:
        if options.workers is not None:
            raise InputError("--workers is of a cluster: say --ray auto, too")
        yield None
        return
    crew = ray(options.ray, workers=options.workers, threads=max(1, threads))
    say(f"Ray: {crew.workers} workers train, {crew.shards} shards have the tables")
    try:
        yield crew
    finally:
        crew.close()


def run_task(options: argparse.Namespace) -> None:
    """Train one algorithm."""
    algorithm = options.algorithm or (
        TASKS[options.task].algorithm if options.task in TASKS else "fedsubavg"
    )
    find_method(algorithm)
    task = task_of(options)
    if options.validation:
        task = task.validated(options.validation)
    emit = _print_json if options.json else _print_line
    settings = settings_for(task, algorithm, options.set)
    experiment = _experiment(options, task, algorithm, settings, options.seed, emit=emit)
    say(
        f"{task.name} on {task.source}: {len(task.train):,} clients, {task.train.examples:,}"
        " training examples"
    )
    with _crew(options, settings.threads) as experiment.crew:
        run = experiment.start()
        experiment.out = options.out or free_folder(
            Path("runs"), f"{task.name}-{algorithm}"
        )  # not before all else is right
        done = _tracked(experiment, run, options.track)
    if not options.json:
        print(_closing(experiment, done))


def _tracked(experiment: Experiment, run: Run, kinds: Sequence[str]) -> Line:
    """Train, and tell those who watch."""
    assert experiment.out is not None
    name, settings = experiment.out.name, experiment.settings.values
    plain = experiment.emit
    trackers = [open_tracker(kind, experiment.out, name, settings) for kind in kinds]

    def emit(line: Line) -> None:
        plain(line)
        for each in trackers:
            each.emit(line)

    experiment.emit = emit
    try:
        return experiment.execute(run)
    finally:
        for each in trackers:
            each.close()


def compare(options: argparse.Namespace) -> int:
    """Train several with several seeds; table and picture."""
    for name in options.algorithms:
        find_method(name)
    if len(set(options.algorithms)) < len(options.algorithms):
        raise InputError("an algorithm is named twice")
    seeds = seeds_of(options.seeds)
    drawn = _can_draw()
    task = task_of(options)
    if options.validation:
        task = task.validated(options.validation)
    settings, notes = settings_of_all(task, options.algorithms, options.set)
    for note in notes:
        say(note)
    for name in options.algorithms:  # what cannot work is refused before anything is trained
        method = find_method(name)
        check_sampler(method.build(task, settings[name]), method.sampler(settings[name], task))
    out = options.out or free_folder(Path("runs"), f"{task.name}-compare")
    scorer = Scorer(task)
    groups: study.Groups = {}
    failures: list[str] = []
    for name in options.algorithms:
        for seed in seeds:
            folder = out / f"{name}-seed{seed}"
            run = _experiment(options, task, name, settings[name], seed, out=folder, scorer=scorer)
            try:
                done = run.execute()
            except DivergedError as error:
                failures.append(f"{name} seed {seed}: {error}")
                say(failures[-1])
                continue
            groups.setdefault(name, []).append(run)
            if options.json:
                _print_json({"algorithm": name, "seed": seed, **run.lines[-1], **done})
            else:
                say(f"{name} seed {seed}: {_figures(run.lines[-1])}")
    here = [out / f"{name}-seed{seed}" for name in options.algorithms for seed in seeds]
    for note in study.read_back(out, task, options.rounds, groups, here):
        say(note)
    if groups:
        stream = sys.stderr if options.json else sys.stdout
        _show(groups, out, task, stream, drawn)
        print(f"one page about all of it: fedslice report {out}", file=stream)
    return DivergedError.exit_code if failures else 0


def _can_draw() -> bool:
    """Whether pictures can be made; says so before any training, not after it."""
    try:
        report.check_picture(Path("curves.png"))
    except InputError as error:
        say(f"note: there will be no picture: {error}")
        return False
    return True


def _show(groups: study.Groups, out: Path, task: Task, stream: TextIO, drawn: bool) -> None:
    parts = [report.comparison(groups)]
    measured = {
        name: [
            found["by_heat"]
            for run in runs
            if run.out and (found := records.read(run.out).evaluation).get("by_heat")
        ]
        for name, runs in groups.items()
    }
    if any(measured.values()):
        table = heat_table(measured)
        parts.append(f"{table.title}\n{table.text()}")
    parts.append(
        report.lines_of(
            "ran with", {name: [words] for name, words in study.ran_with(groups).items()}
        )
    )
    told = {name: runs[0].privacy.replace("\n", " ") for name, runs in groups.items()}
    if any(told.values()):
        words = {name: [text or "not private"] for name, text in told.items()}
        parts.append(report.lines_of("privacy", words))
    if known := study.beside(task):
        parts.append(report.lines_of(f"{task.name}: published, and {OBSERVED}", known))
    text = "\n\n".join(parts)
    with writing(out / "table.txt"):
        (out / "table.txt").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}\n\ntable: {out / 'table.txt'}", file=stream)
    if drawn:
        print(
            f"curves: {report.curves(groups, out / 'curves.png', f'{task.name}: {task.source}')}",
            file=stream,
        )


def demo(options: argparse.Namespace) -> None:
    """FedAvg and FedSubAvg side by side."""
    say(
        "MovieLens-like ratings, a quarter of the real size: every client holds a few of the rows"
        " of one weight table."
    )
    drawn = _can_draw()
    task = TASKS["movielens-lr"].synthetic(scale=0.25)
    heat = task.train.heat(task.model)
    print(report.text_histogram(heat))
    print(
        f"heat dispersion {heat.dispersion:,.0f}: the hottest row has so many times the clients of"
        " the coldest\n"
    )
    groups: study.Groups = {}
    measured = {}
    scorer = Scorer(task)
    for name in ("fedavg", "fedsubavg"):
        settings, visible = settings_for(task, name, []), sys.stderr.isatty()
        run = Experiment(
            task, name, settings, 200, 0, 10, None, scorer, progress=visible, stop=options.stop
        )
        live = run.start()
        run.execute(live)
        groups[name], measured[name] = [run], scorer.details(live)
    options.out.mkdir(parents=True, exist_ok=True)
    _show(groups, options.out, task, sys.stdout, drawn)
    table = heat_table({name: [each["by_heat"]] for name, each in measured.items()})
    print(f"\nDo cold rows learn?\n{table.text()}")
    picture = figures.by_heat({name: [each["by_heat_fine"]] for name, each in measured.items()})
    if drawn and picture is not None:
        print(f"\npicture: {picture.save(options.out, 'png')}")


def heat(options: argparse.Namespace) -> None:
    """Heat of a task or a file."""
    if options.png:
        report.check_picture(options.png)
    if options.task not in TASKS and Path(options.task).suffix:
        options.data, options.task = Path(options.task), "lr"
    task = _unlabelled(options) if options.data is not None else task_of(options)
    heat, figures = task.train.heat(task.model), task.train.summary(task.model)
    if options.json:
        edges, rows = heat.histogram()
        _print_json({**figures, "histogram": {"edges": edges.tolist(), "rows": rows.tolist()}})
    else:
        print(report.text_histogram(heat) + "\n")
        meaning = {
            "sparsity": (
                "sparsity: mean share of the clients that hold a parameter (larger is denser)"
            )
        }
        cells = [
            [meaning.get(key, key), f"{value:,.4g}" if value < 1 else f"{value:,.0f}"]
            for key, value in figures.items()
        ]
        print(report.text_table(["", ""], cells))
    if options.png:
        print(f"picture: {report.heat_picture(heat, options.png, task.name)}", file=sys.stderr)


def _unlabelled(options: argparse.Namespace) -> Task:
    """Heat needs no label and no split."""
    if options.client is None or options.features is None:
        raise InputError(
            "the heat of a file needs its columns: fedslice heat FILE --client user --features"
            " item,category"
        )
    if options.option:
        raise InputError(f"--option {options.option[0]}: the task lr has no options")
    fields = _names(options.features)
    people = from_file(
        options.data, client=options.client, features=fields, text=_names(options.text)
    )
    return logistic.whole(people, fields)


def recommend(options: argparse.Namespace) -> None:
    """A new user's best items."""
    model, ways = recommender.trained(options.model)
    given = {"steps": options.steps, "rate": options.rate}
    ways |= {name: value for name, value in given.items() if value is not None}
    ratings = recommender.read_ratings(options.user)
    found = recommender.recommend(model, ratings, top=options.top, fewest=options.fewest, **ways)
    if options.json:
        for each in found:
            _print_json(each._asdict())
        return
    cells = [
        [str(place), f"{each.score:.2f}", each.name, f"{each.heat:,}"]
        for place, each in enumerate(found, 1)
    ]
    print(report.text_table(["", "score", "item", "clients"], cells))


def export_run(options: argparse.Namespace) -> None:
    """The trained rows under their names."""
    model = export.read_model(options.run)
    with writing(options.file):
        files = export.export(model, options.file)
    for file in files:
        print(f"written: {file}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def seeds_of(text: str) -> list[int]:
    """The seeds that ``--seeds`` names: so many, or these."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"--seeds {text}: give a number of seeds, or seeds separated by commas"
        ) from None
    if len(numbers) == 1 and numbers[0] < 1:
        raise InputError("--seeds must be at least 1")
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--seeds {text}: a seed is named twice, and would count as two runs")
    return list(range(numbers[0])) if len(numbers) == 1 else numbers


def free_folder(folder: Path, name: str) -> Path:
    """Make the first of name-1, name-2 ... that is not there yet, also if others do the same at
    this moment."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        mine = folder / f"{name}-{number}"
        with suppress(FileExistsError):
            mine.mkdir()
            break
    return mine


def _figures(line: dict[str, Any]) -> str:
    figures = ", ".join(
        f"{key.replace('_', ' ')} {value:.4f}" for key, value in Experiment.figures(line).items()
    )
    return f"round {line['round']}: {figures}"


def _closing(experiment: Experiment, done: dict[str, Any]) -> str:
    target, speed = experiment.task.target, done["ms_per_round"]
    reached = (
        f"{target.metric} {target.value:g} reached in round {done['rounds_to_target']}"
        if target
        else ""
    )
    if target and done["rounds_to_target"] is None:
        reached = f"{target.metric} {target.value:g} not reached in {done['rounds']} rounds"
    pace = f"{speed:.2f} ms a round" if speed is not None else ""
    if "best_round" in done:
        best = f"best on validation in round {done['best_round']}: {Path(done['out']) / BEST}"
        reached = "\n".join(filter(None, [done.get("stopped", ""), best, reached]))
    spent = f"time: {shares(experiment.time)}"
    words = [reached, experiment.privacy, pace, spent, f"run folder: {done['out']}"]
    return "\n".join(filter(None, words))


def _print_line(line: dict[str, Any]) -> None:
    if "done" not in line:
        show(_figures(line), sys.stdout)


def _print_json(line: dict[str, Any]) -> None:
    show(as_json(line), sys.stdout)


def say(text: str) -> None:
    """A line for the person, on standard error."""
    show(text, sys.stderr)
