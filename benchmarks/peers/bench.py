"""fedslice beside its peers: the same work in each, in its own environment, one after the other.

    make bench-peers                                          # everything; about an hour, 10 GB
    python benchmarks/peers/bench.py --only fedslice          # fedslice anew, the others kept
    python benchmarks/peers/bench.py --only FedJAX --work lr,lstm
    python benchmarks/peers/page.py                           # docs/benchmarks.md from the results

Results are JSON files, one for each contestant, workload and setting, in FOLDER/results.  A run is
stopped after --cap seconds or --memory gigabytes and says so; in a series of growing sizes the
larger ones are then left out.  What arrives at another model did not do the same work and gets no
figure."""

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import prepare
from contestants import ALL, Contestant, tried
from environments import PINS, make
from nets_jax import loss

HERE = Path(__file__).parent
MF = (
    Contestant("fedslice", "with_mf.py", ""),
    Contestant(
        "bare JAX",
        "with_mf.py",
        "",
        ("by=gradient clients=map", "by=gradient clients=vmap", "by=hand clients=map"),
        same=False,
    ),
)
JUDGED = 10_000  # examples for the loss
CLOSE = 1e-3  # how far models may be apart, next to how far they moved: sums in other orders


# -- one run ---------------------------------------------------------------------------------------


def tree(root):
    """The process ids of a process and all that descend from it, and of what they left behind in
    its session."""
    parent, session = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parent[int(entry.name)], session[int(entry.name)] = int(fields[1]), int(fields[3])
    found = {pid for pid, its in session.items() if its == root}
    while True:
        more = {pid for pid, above in parent.items() if above in found} - found
        if not more:
            return found
        found |= more


def memory(pid):
    """(peak, present) megabytes of a process."""
    values = {}
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            values[name] = rest
    except OSError:
        return 0.0, 0.0
    peak, present = (values.get(name, "0 kB").split()[0] for name in ("VmHWM", "VmRSS"))
    return int(peak) / 1024, int(present) / 1024


def watched(command, log, cap, most):
    """Run a command; (why it was stopped or failed or None, sum of its processes' peaks in MB)."""
    with open(log, "w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=quiet()
        )
    try:
        why, peak = limited(process, cap, most)
    finally:  # also if this program is stopped
        for pid in tree(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if process.wait() and why is None:
        lines = Path(log).read_text(errors="replace").strip().splitlines() or ["no output"]
        why = f"failed: {lines[-1][:200]}"
    return why, peak


def limited(process, cap, most):
    """Wait for a process within its limits."""
    start, peaks, why = time.monotonic(), {}, None
    while process.poll() is None and why is None:
        time.sleep(0.2)
        seen = {pid: memory(pid) for pid in tree(process.pid)}
        for pid, (peak, _) in seen.items():
            peaks[pid] = max(peaks.get(pid, 0), peak)
        if time.monotonic() - start > cap:
            why = f"stopped after {cap:.0f} s"
        elif sum(present for _, present in seen.values()) > most * 1024:
            why = f"stopped at {most:.0f} GB of memory"
    return why, sum(peaks.values())


def quiet():
    """The environment of a run: no telemetry, no log of every task."""
    return os.environ | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_DEDUP_LOGS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "WANDB_MODE": "disabled",
        "JAX_PLATFORMS": "cpu",
    }


def run(contestant, workload, setting, options):
    """One contestant with one setting on one workload: the result, which is also written."""
    folder = Path(options.folder).resolve()
    words = [contestant.name, workload, *setting.split()]
    result = folder / "results" / ("--".join(words).replace(" ", "_") + ".json")
    result.parent.mkdir(parents=True, exist_ok=True)
    raw = result.with_suffix(".run")
    for old in (result, raw, result.with_suffix(".npz")):
        old.unlink(missing_ok=True)
    found = {"contestant": contestant.name, "workload": workload, "setting": setting}
    found["load"] = os.getloadavg()[0]  # what else the machine does, and the run before
    try:
        python = make(contestant.environment, options.envs) if contestant.environment else None
        command = [str(python or sys.executable), str(HERE / contestant.program)]
        command += [str(folder / "data" / workload), str(raw)]
        command += [f"--seconds={options.seconds}", *setting.split()]
        why, peak = watched(command, result.with_suffix(".log"), options.cap, options.memory)
        if raw.exists():
            found |= json.loads(raw.read_text())
            raw.unlink()
        # what fails when it closes, after all was measured, is no matter of speed
        why = None if found.get("complete") else why
        found |= {"stopped": why, "memory_mb": round(peak)}
    except RuntimeError as error:
        found |= {"stopped": f"left out: {error}"}
    found["pins"] = list(PINS.get(contestant.environment, ()))
    found["machine"] = f"{os.cpu_count()} cores, {platform.machine()}"
    found["same"] = contestant.same
    result.write_text(json.dumps(found, indent=1))
    return found


# -- all of them -----------------------------------------------------------------------------------


def judge(folder, workload):
    """Add to each result of a workload the loss of its model, and how far the model is from
    fedslice's, as a share of how far that one has moved from the first."""
    if workload == "mf":
        return
    data = folder / "data" / workload
    spec = json.loads((data / "spec.json").read_text())
    x, y = np.load(data / "x.npy"), np.load(data / "y.npy")
    if spec["kind"] == "table":
        x = np.searchsorted(np.unique(x), x)
    some = np.random.default_rng(0).permutation(len(y))[:JUDGED]
    ours = folder / "results" / f"fedslice--{workload}.npz"
    if not ours.exists():
        return  # nothing to compare with yet
    reference, start = dict(np.load(ours)), dict(np.load(data / "first.npz"))
    moved = max(float(np.abs(leaf - start.get(n, 0)).max()) for n, leaf in reference.items())
    for file in sorted((folder / "results").glob(f"*--{workload}*.json")):
        found, model = json.loads(file.read_text()), file.with_suffix(".npz")
        if found["workload"] != workload or not model.exists():
            continue
        arrays = dict(np.load(model))
        shapes = [{n: leaf.shape for n, leaf in each.items()} for each in (arrays, reference)]
        found["agrees"] = shapes[0] == shapes[1]
        if found["agrees"]:
            found["loss"] = float(loss(spec["kind"])(arrays, x[some], y[some]))
        if found["agrees"] and found["same"]:
            found["apart"] = max(
                float(np.abs(arrays[n] - leaf).max()) / moved for n, leaf in reference.items()
            )
            found["agrees"] = bool(found["apart"] < CLOSE)
        file.write_text(json.dumps(found, indent=1))


def line(found):
    ms, start_up = found.get("ms"), found.get("start_up_s") or 0
    speed = f"{ms:10.3f} ms" if ms else f"{'-':>13}"
    return (
        f"{found['contestant']:<14}{found['setting']:<26}{speed}{start_up:8.1f} s to start"
        f"{found.get('memory_mb', 0):8.0f} MB  {found.get('stopped') or ''}"
    )


def compete(options):
    folder, out = Path(options.folder).resolve(), set()
    for workload in options.work:
        prepare.write(workload, folder / "data" / workload)
        print(f"\n{workload}", flush=True)
        for contestant in MF if workload == "mf" else ALL:
            series = (contestant.name, workload.split("-")[0])
            if (options.only and contestant.name not in options.only) or series in out:
                continue
            settings = contestant.settings if workload == "mf" else tried(contestant, workload)
            for setting in settings[:1] if options.quick else settings:
                found = run(contestant, workload, setting, options)
                print(line(found), flush=True)
                if found.get("stopped") and "-" in workload:
                    out.add(series)
        judge(folder, workload)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--only", type=words, default=[], help="contestants, by commas")
    parser.add_argument("--work", type=words, default=prepare.NAMES, help="workloads, by commas")
    parser.add_argument("--quick", action="store_true", help="one setting each, not all")
    parser.add_argument("--folder", default=".peers", help="for data and results")
    parser.add_argument("--envs", default=".peers/envs", help="for the peers' environments")
    parser.add_argument("--seconds", type=float, default=10.0, help="to measure each for")
    parser.add_argument("--cap", type=float, default=60.0, help="seconds after which to stop a run")
    parser.add_argument("--memory", type=float, default=8.0, help="gigabytes at which to stop it")
    options = parser.parse_args()
    unknown = set(options.only) - {contestant.name for contestant in ALL}
    unknown |= set(options.work) - set(prepare.NAMES)
    if unknown:
        names = [contestant.name for contestant in ALL]
        parser.error(f"{sorted(unknown)} not among {names} and {list(prepare.NAMES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what it started ends, too
    compete(options)


if __name__ == "__main__":
    main()
