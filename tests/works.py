"""Local work in short: steps, epochs and batch among a recipe's settings."""

from typing import Any

import fedslice as fs


def works(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with ``steps``, ``epochs`` and ``batch`` as ``work``; with ``reconstruct_`` before
    them as ``recover``, with ``personal_`` as ``personal_work``, in batches of the same size."""
    names = {"": "work", "reconstruct_": "recover", "personal_": "personal_work"}
    batch = {"batch": settings["batch"]} if "batch" in settings else {}
    found: dict[str, Any] = {}
    taken = {"batch"}
    for before, name in names.items():
        keys = {key: before + key for key in ("steps", "epochs") if before + key in settings}
        taken |= set(keys.values())
        if keys or (name == "work" and batch):
            given = {key: settings[long] for key, long in keys.items()}
            found[name] = fs.Work(**given, **batch)
    return {**{key: value for key, value in settings.items() if key not in taken}, **found}
