"""FedRecon with local vectors of unknown words (Singhal et al. 2021, Table 4), next to FedAvg,
which sends them.

    python benchmarks/buckets.py --data-dir shakespeare.txt.zip
    python benchmarks/buckets.py --task stackoverflow-lstm          # generated text

Unseen clients, judged on the later half of their sentences; "without" has local vectors as drawn.
The kB are what a client receives and sends in a round, in the mean.  Settings are the task's own.
"""

import argparse
from pathlib import Path

import optax

import fedslice as fs
from fedslice.cli.optimizers import optimizer
from fedslice.client import reconstruction
from fedslice.evaluation.gain import Personal

TASKS = {
    "shakespeare-words": fs.tasks.shakespeare_words,
    "stackoverflow-lstm": fs.tasks.stackoverflow_lstm,
}
LINES = {
    "FedAvg, 500 global buckets": (500, None),
    "FedRecon, 1 bucket": (1, {}),
    "FedRecon, 500 buckets": (500, {}),
    "FedRecon, 500, no split": (500, {"split": "none"}),
    "FedRecon, 500, joint": (500, {"joint": True}),
}


def make(options, buckets, local):
    module = TASKS[options.task]
    how = {"buckets": buckets, "local": local}
    if options.data_dir:
        return module.load(options.data_dir, **how)
    return module.synthetic(0, module.WORKLOAD.scale, **how)


def method_of(task, variant):
    s = task.settings
    client = optimizer(s.get("client", "sgd"), task.learning_rates[""])
    both = {
        "server": optimizer(s.get("server", "sgd"), s.get("server_rate", 1.0)),
        "weights": "examples",
    }
    if variant is None:
        return fs.recipes.fedavg(
            task.model, client, fs.Work(epochs=s["epochs"], batch=s["batch"]), **both
        )
    return fs.recipes.fedrecon(
        task.model,
        client,
        fs.Work(epochs=s["epochs"], batch=s["batch"]),
        reconstruction=optax.sgd(s["reconstruct_rate"]),
        recover=rebuilding(s),
        split=s["split"],
        **both,
        **variant,
    )


def rebuilding(s):
    return fs.Work(s["reconstruct_steps"], s.get("reconstruct_epochs", 5), s["batch"])


def judge_of(task):
    """Every line is judged alike: on the later half, after rebuilding what is local on the earlier
    one."""
    s = task.settings
    rate = optax.sgd(s["reconstruct_rate"])
    how = reconstruction(task.model, rate, rebuilding(s), split=s["split"])
    return Personal(task.test, how)


def line(options, name):
    buckets, variant = LINES[name]
    found = []
    for seed in range(options.seeds):
        task = make(options, buckets, variant is not None)
        cohort = task.settings["cohort"]
        run = fs.simulate(
            method_of(task, variant), task.train, sampler=fs.sampling.uniform(cohort), seed=seed
        )
        run.train(options.rounds, progress=False)
        judge = judge_of(task)
        gain = judge(run.params(judge.ids()))
        sent = [run.totals[key] / run.round / cohort / 1e3 for key in ("bytes_down", "bytes_up")]
        spread = gain.spread("loss")
        accuracy = [when.pooled["accuracy"] for when in gain]
        found.append([*accuracy, gain.after.pooled["loss"], spread["mean"], spread["share"], *sent])
    means = [sum(values) / len(values) for values in zip(*found, strict=True)]
    print(
        f"{name:<28}" + "{:>9.2%}{:>9.2%}{:>8.3f}{:>9.4f}{:>8.0%}{:>9.0f}{:>8.0f}".format(*means),
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, default="shakespeare-words")
    parser.add_argument("--data-dir", type=Path, help="the real data; default: generated")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    print(f"{'':<28}{'accuracy':>18}{'loss':>8}{'its gain':>17}{'kB':>13}")
    print(
        f"{'':<28}{'without':>9}{'rebuilt':>9}{'':>8}{'mean':>9}{'share':>8}{'down':>9}{'up':>8}",
        flush=True,
    )
    for name in LINES:
        line(options, name)


if __name__ == "__main__":
    main()
