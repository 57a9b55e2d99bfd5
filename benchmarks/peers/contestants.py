"""Who takes part, and with which settings each is tried: the best of them counts."""

from itertools import product
from typing import NamedTuple


class Contestant(NamedTuple):
    """``program`` in ``environment`` ("" is fedslice's own).  ``settings`` are tried on the three
    main workloads, a good one first; on the series of cohorts that first one alone, on the series
    of tables ``large``."""

    name: str
    program: str
    environment: str
    settings: tuple[str, ...] = ("",)
    large: str = ""
    same: bool = True  # whether it must arrive at the same model


def choices(**values):
    return tuple(
        " ".join(f"{name}={value}" for name, value in zip(values, chosen, strict=True))
        for chosen in product(*values.values())
    )


ALL = (
    Contestant("fedslice", "with_fedslice.py", ""),
    Contestant(
        "bare JAX",
        "with_jax.py",
        "",
        choices(clients=("vmap", "map"), threads=(1, 2)),
        "clients=vmap threads=1",
    ),
    Contestant(
        "CentralSGD",
        "with_jax.py",
        "",
        choices(central=(1,), rows=("touched", "all")),
        "central=1 rows=touched",
        same=False,
    ),
    Contestant(
        "FedJAX", "with_fedjax.py", "fedjax", choices(backend=("jit", "pmap")), "backend=jit"
    ),
    Contestant(
        "PyTorch loop",
        "with_torch.py",
        "torch",
        choices(sparse=(0, 1), threads=(1, 2)),
        "sparse=1 threads=2",
    ),
    Contestant(
        "pfl",
        "with_pfl.py",
        "pfl",
        choices(sparse=(0, 1), processes=(2, 1)),
        "sparse=1 processes=2",
    ),
    Contestant(
        "fluke",
        "with_fluke.py",
        "fluke",
        choices(sparse=(0, 1), persist=(1, 0)),
        "sparse=1 persist=0",
    ),
    Contestant(
        "Flower", "with_flower.py", "flower", choices(sparse=(0, 1), cpus=(1, 2)), "sparse=1 cpus=1"
    ),
)


def tried(contestant, workload):
    """The settings for one workload; PyTorch cannot clip sparse gradients, which DIN needs."""
    if workload.startswith("table-"):
        return (contestant.large,)
    if workload.startswith("cohort-"):
        return contestant.settings[:1]
    return tuple(s for s in contestant.settings if not (workload == "din" and "sparse=1" in s))
