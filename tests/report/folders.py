"""Run folders as the command line leaves them, written by hand: figures that can be worked out."""

import json
import math
from pathlib import Path

ROUNDS = (0, 10, 20, 30, 40)


def write(
    out: Path,
    algorithm: str,
    seed: int,
    validation,
    test=None,
    diverged="",
    task="toy",
    evaluation=None,
    privacy=None,
    **settings,
) -> Path:
    """A run whose validation loss at ROUNDS is ``validation``, its test loss ``test``."""
    given = "-".join(f"{key}={value}" for key, value in settings.items())
    folder = out / f"{algorithm}-{given}-seed{seed}"
    folder.mkdir(parents=True)
    known = {
        "task": task,
        "data": "made up",
        "algorithm": algorithm,
        "seed": seed,
        "eval_every": 10,
        "settings": {"cohort": 5, **settings},
    }
    (folder / "settings.json").write_text(json.dumps(known))
    lines = []
    for number, loss in zip(ROUNDS, validation, strict=False):
        lines.append(
            {
                "round": number,
                "train_loss": loss + 0.1,
                "test_loss": (test or validation)[len(lines)] + 0.5,
                "auc": 1 - loss,
                "validation_loss": loss,
                "validation_auc": 1 - loss,
                "examples": 100 * number,
                "bytes_down": 1000 * number,
                "bytes_up": 500 * number,
                **({"baseline_auc": 0.5} if number == 0 else {}),
            }
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = {"diverged": diverged} if diverged else {"rounds": lines[-1]["round"]}
    (folder / "done.json").write_text(json.dumps(done))
    if not diverged:
        (folder / "evaluation.json").write_text(json.dumps({"more": ["auc"], **(evaluation or {})}))
    if privacy:
        (folder / "privacy.json").write_text(json.dumps(privacy))
    (folder / "about.json").write_text(
        json.dumps({"command": f"fedslice run {task}", "versions": {"fedslice": "0"}})
    )
    return folder


def by_heat(losses):
    """An evaluation of groups of these losses."""
    names = ["cold", "warm", "hot"]
    groups = {
        "names": names,
        "spans": [[1, 2], [3, 9], [10, 40]],
        "examples": [5, 5, 5],
        "figures": {"loss": losses},
    }
    clients = {
        "loss": {
            "mean": 0.5,
            "worst": 0.9,
            "p10": 0.1,
            "median": 0.5,
            "p90": 0.8,
            "clients": 3,
            "percentiles": [0.01 * place for place in range(101)],
        }
    }
    sizes = {
        "names": ["small, 1 examples", "large, 2 to 9 examples"],
        "clients": [2, 1],
        "figures": {"loss": [losses[0], losses[-1]], "auc": [0.5, math.nan]},
    }
    land = {"names": ["DE", "FR"], "clients": [1, 2], "figures": {"loss": [0.25, losses[0]]}}
    heat = {"clients": 40, "dispersion": 40.0, "edges": [1, 4, 41], "rows": [7, 3]}
    target = {"metric": "validation_loss", "value": 0.55, "below": True}
    return {
        "by_heat": groups,
        "by_heat_fine": groups,
        "clients": clients,
        "by_size": sizes,
        "by_group": {"land": land},
        "heat": heat,
        "target": target,
    }
