"""The settings of a run: what there is, how ``--set`` changes them, and how they become optimizers,
stages and reductions."""

from collections.abc import Callable, Mapping
from typing import Any

import optax

from fedslice import reduce as reductions
from fedslice import stage as stages
from fedslice.cli.optimizers import CONSTANTS, OPTIMIZERS, Rate, constants, optimizer, schedule
from fedslice.cli.text import built, parse
from fedslice.errors import InputError, nearest
from fedslice.reduce.coordinate import QUORUM
from fedslice.stage.compression import Compressor
from fedslice.types import Reduce, Stage, Work

Options = Mapping[str, tuple[Any, str]]
COMMON: Options = {
    "cohort": (50, "clients a round (Ding et al. 2022)"),
    "sampler": (
        "uniform",
        "uniform, weighted (by examples, with replacement; sets weights=uniform), poisson or full",
    ),
    "available": (
        "always",
        (
            "who can be asked: always, sometimes:CHANCE, diurnal:DAY:LOW:HIGH:ZONES (rounds a day),"
            " markov:SHARE:STREAK, or trace:FILE with columns client,start,end"
        ),
    ),
    "steps": (
        0,
        (
            "local mini-batches a round, drawn independently (0: epochs); set with epochs, the most"
            " of the passes"
        ),
    ),
    "epochs": (1, "local shuffled passes a round"),
    "batch": (32, "examples in a mini-batch"),
    "weights": ("examples", "examples or uniform"),
    "client": (
        "sgd",
        "the clients' optimizer: sgd, momentum, adagrad, adam, yogi, adamw, rmsprop, lion",
    ),
    "client_rate": (0.1, "the clients' learning rate"),
    "gradient_clip": (
        0.0,
        "bound on the L2 norm of each local gradient, before the clients' optimizer (0: none)",
    ),
    "client_schedule": (
        "constant",
        (
            "a factor on it by round: constant, linear:R, cosine:R, exponential:F:R, warmup:R,"
            " joined by +"
        ),
    ),
    "server": ("sgd", "the server's optimizer, from the same list"),
    "server_rate": (1.0, "the server's learning rate"),
    "server_schedule": ("constant", "a factor on it, as for the clients"),
    "clip": (0.0, "bound on the L2 norm of a client's update (0: none)"),
    "noise": (
        0.0,
        (
            "differential privacy: noise on the sum of clipped updates, as a multiple of clip (0:"
            " none); sets sampler=poisson (uniform for shares) and weights=uniform"
        ),
    ),
    "noise_by": (
        "server",
        (
            "with noise: who adds it, the server, clients (local privacy), or shares:LEAST of at"
            " least so many clients below a secure sum (Skellam)"
        ),
    ),
    "geometry": (0.5, "with noise and heat: clip c^a times the update, a from 0 to 1"),
    "clip_quantile": (
        0.0,
        "with noise: let clip follow this quantile of the clients' norms (0: as it is)",
    ),
    "heat_privacy": (
        "exact",
        "exact, public, response:EPSILON (of each row) or sum:NOISE:ROWS (at most, of a client)",
    ),
    "secure": (
        "no",
        (
            "a secure sum over the union of the cohort's rows: no, yes, or answers:P1:P2:P3:P4"
            " about each of them; needs clip, sets weights=uniform"
        ),
    ),
    "compress": ("none", "none, quantise:LEVELS, largest:SHARE, random:SHARE, sign, low_rank:RANK"),
    "feedback": (False, "error feedback for compress"),
    "reduce": (
        "sum",
        "sum, trimmed:SHARE:QUORUM, median:QUORUM, geometric, krum:BAD:KEEP, worst:SHARE",
    ),
    "engine": ("auto", "auto, vmap, scan, map, debug, or clients to vectorise at a time"),
    "threads": (0, "threads for map (0: one a core)"),
}

AT_LEAST_ONE = ("cohort", "steps", "epochs", "batch", "reconstruct_steps", "reconstruct_epochs")


class Settings:
    """The settings of one run, read as attributes.

    >>> Settings({"cohort": 50, "steps": 0, "epochs": 1}).change("cohort", "20").cohort
    20
    """

    def __init__(
        self, values: Mapping[str, Any], said: frozenset[str] = frozenset(), seed: int = 0
    ) -> None:
        self.values, self.said, self.seed = dict(values), said, seed

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def change(self, key: str, text: str) -> "Settings":
        """A copy with one setting changed, from text of the kind that its present value has."""
        if key not in self.values:
            raise InputError(self._missing(key))
        parsed = parse(key, text, type(self.values[key]))
        if key in AT_LEAST_ONE and parsed < 1:
            raise InputError(f"{key}={parsed} must be at least 1")
        other: dict[str, Any] = {"steps": {"epochs": 0}, "epochs": {"steps": 0}}.get(key, {})
        other = (
            {} if other.keys() & self.said else other
        )  # both were asked for: at most steps batches of the passes
        return Settings({**self.values, **other, key: parsed}, self.said | {key})

    def _missing(self, key: str) -> str:
        """Why there is no such setting, and which one may be meant."""
        side, _, constant = key.partition("_")
        if constant in CONSTANTS and side in self.values:
            having = ", ".join(name for name, (_, known) in OPTIMIZERS.items() if constant in known)
            return (
                f"{self.values[side]} has no {constant}, so {key} cannot be set; {having} have one:"
                f" set {side} too"
            )
        return f"there is no setting {key!r} here; {nearest(key, self.values)}"

    def with_weights(self) -> "Settings":
        """A copy with the weights that fit the sampler, where they were not set: clients that come
        as often as their examples say are averaged uniformly, so that size counts once."""
        if (
            self.values.get("sampler") != "weighted"
            or "weights" not in self.values
            or "weights" in self.said
        ):
            return self
        return Settings({**self.values, "weights": "uniform"}, self.said)

    def seeded(self, seed: int) -> "Settings":
        """A copy for the run of this seed, on which hangs what is drawn before it."""
        return Settings(self.values, self.said, seed)

    def with_noise(self) -> "Settings":
        """A copy with the sampler and the weights that differential privacy needs, where they were
        not set; without what belongs to noise or to heat, where there is none."""
        idle = [] if self.values.get("noise") else ["noise_by", "geometry", "clip_quantile"]
        idle += [] if self.values.get("heat") else ["heat_privacy"]
        for key in idle:
            if key in self.said:
                other = "heat=yes" if key == "heat_privacy" else "noise"
                raise InputError(f"{key} is not used here: set {other} too, or leave it out")
        if idle:
            used = {key: value for key, value in self.values.items() if key not in idle}
            return Settings(used, self.said)._drawn_for_noise()
        return self._drawn_for_noise()

    def _drawn_for_noise(self) -> "Settings":
        shared = str(self.values.get("noise_by", "")).startswith("shares")
        draws = "uniform" if shared else "poisson"
        needed = {"sampler": draws} if self.values.get("noise") else {}
        if needed or self.values.get("secure", "no") != "no":
            needed["weights"] = "uniform"
        missing = {k: v for k, v in needed.items() if k in self.values and k not in self.said}
        return Settings({**self.values, **missing}, self.said)

    def with_constants(self) -> "Settings":
        """A copy with the constants of both optimizers, where they were not set."""
        sides = [side for side in ("client", "server") if side in self.values]
        known = {
            f"{side}_{name}": value
            for side in sides
            for name, value in constants(self.values[side]).items()
        }
        missing = {key: value for key, value in known.items() if key not in self.values}
        return Settings({**self.values, **missing}, self.said)

    @property
    def work(self) -> Work:
        """Local work; with both steps and epochs at most so many batches of the passes."""
        return Work(self.steps or None, self.epochs or None, self.batch)

    def chosen(
        self, side: str, rate: Rate, first: float | None = None
    ) -> optax.GradientTransformation:
        """The optimizer of the client or the server with its constants."""
        given = {name: self.values.get(f"{side}_{name}") for name in CONSTANTS}
        return optimizer(
            self.values[side],
            rate,
            first,
            **{k: value for k, value in given.items() if value is not None},
        )

    @property
    def client_optimizer(self) -> optax.GradientTransformation:
        """The clients' optimizer; its schedule acts through the client part."""
        plain = self.chosen("client", self.client_rate)
        if self.gradient_clip < 0:
            raise InputError(f"gradient_clip={self.gradient_clip} must be positive, or 0 for none")
        return (
            optax.chain(optax.clip_by_global_norm(self.gradient_clip), plain)
            if self.gradient_clip
            else plain
        )

    @property
    def server_optimizer(self) -> optax.GradientTransformation:
        """The server's optimizer with its schedule."""
        factor = schedule(self.server_schedule)
        rate = self.server_rate
        return self.chosen(
            "server", rate if factor is None else lambda count: rate * factor(count), rate
        )

    @property
    def before_mean(self) -> list[Stage]:
        """Clipping and compression."""
        found = [stages.clip(self.clip)] if self.clip else []
        kinds: dict[str, Callable[..., Compressor]] = {
            "quantise": lambda levels="127": stages.quantise(int(levels)),
            "largest": lambda share: stages.largest(float(share)),
            "random": lambda share: stages.random(float(share)),
            "sign": stages.sign,
            "low_rank": lambda rank="2": stages.low_rank(int(rank)),
        }
        if self.feedback and self.compress == "none":
            raise InputError(
                "feedback=yes keeps what compression leaves out: set compress too, or leave"
                " feedback out"
            )
        if self.compress != "none":
            found.append(stages.compress(built("compress", self.compress, kinds), self.feedback))
        return found

    @property
    def reduction(self) -> Reduce:
        """What takes the place of the sum."""
        kinds: dict[str, Callable[..., Reduce]] = {
            "sum": reductions.total,
            "trimmed": lambda share="0.1", quorum=QUORUM: reductions.trimmed(
                float(share), int(quorum)
            ),
            "median": lambda quorum=QUORUM: reductions.median(int(quorum)),
            "geometric": reductions.geometric,
            "krum": lambda bad="0.2", keep="1": reductions.krum(float(bad), int(keep)),
            "worst": lambda share="0.5": reductions.worst(float(share)),
        }
        return built("reduce", self.reduce, kinds)


def explained() -> dict[str, str]:
    """What each shared setting means."""
    usual = {
        key: [f"{name} {known[key]:g}" for name, (_, known) in OPTIMIZERS.items() if key in known]
        for key in CONSTANTS
    }
    more = {
        f"server_{key}": f"{meaning}: {', '.join(usual[key])}; client_{key} likewise"
        for key, meaning in CONSTANTS.items()
    }
    return {key: meaning for key, (_, meaning) in COMMON.items()} | more


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The settings in which two runs differ.

    >>> differences({"mu": 1.0, "batch": 5}, {"mu": 0.01, "batch": 5, "heat": True})
    'mu=1.0 there, mu=0.01 here; heat=True here only'
    """
    found = []
    for key in dict.fromkeys([*there, *here]):
        if key not in there or key not in here:
            found.append(
                f"{key}={there[key]} there only" if key in there else f"{key}={here[key]} here only"
            )
        elif there[key] != here[key]:
            found.append(f"{key}={there[key]} there, {key}={here[key]} here")
    return "; ".join(found)
