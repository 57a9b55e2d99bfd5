"""Settings as text: what ``--set key=value`` means, and how it becomes optimizers, stages and reductions."""

from collections.abc import Callable, Mapping
from typing import Any

import optax

from fedslice import reduce as reductions
from fedslice import stage as stages
from fedslice.client.local import Schedule
from fedslice.errors import InputError
from fedslice.reduce.coordinate import QUORUM
from fedslice.types import Reduce, Stage

COMMON: dict[str, tuple[Any, str]] = {
    "cohort": (50, "clients a round (Ding et al. 2022)"),
    "sampler": ("uniform", "uniform, weighted (by examples, with replacement; sets weights=uniform), poisson or full"),
    "steps": (
        0,
        "local mini-batches a round, drawn independently (0: epochs); set with epochs, the most of the passes",
    ),
    "epochs": (1, "local shuffled passes a round"),
    "batch": (32, "examples in a mini-batch"),
    "weights": ("examples", "examples or uniform"),
    "client": ("sgd", "the clients' optimizer: sgd, momentum, adagrad, adam, yogi, adamw, rmsprop, lion"),
    "client_rate": (0.1, "the clients' learning rate"),
    "gradient_clip": (0.0, "bound on the L2 norm of each local gradient, before the clients' optimizer (0: none)"),
    "client_schedule": ("constant", "a factor on it by round: constant, linear:R, cosine:R, warmup:R, or joined by +"),
    "server": (
        "sgd",
        "the server's optimizer, from the same list (adam, yogi: b1 0.9, b2 0.99, eps 1e-3 of the Field Guide)",
    ),
    "server_rate": (1.0, "the server's learning rate"),
    "server_schedule": ("constant", "a factor on it, as for the clients"),
    "clip": (0.0, "bound on the L2 norm of a client's update (0: none)"),
    "compress": ("none", "none, quantise:LEVELS, largest:SHARE, random:SHARE, sign, low_rank:RANK"),
    "feedback": (False, "error feedback for compress"),
    "reduce": ("sum", "sum, trimmed:SHARE:QUORUM, median:QUORUM, geometric, krum:BAD:KEEP, worst:SHARE"),
    "engine": ("auto", "auto, vmap, map, debug, or clients to vectorise at a time"),
    "threads": (0, "threads for map (0: one a core)"),
}

OPTIMIZERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "adagrad": optax.adagrad,
    "adam": lambda rate: optax.adam(rate, b1=0.9, b2=0.99, eps=1e-3),
    "yogi": lambda rate: optax.yogi(rate, b1=0.9, b2=0.99, eps=1e-3),
    "adamw": optax.adamw,
    "rmsprop": optax.rmsprop,
    "lion": optax.lion,
}


AT_LEAST_ONE = ("cohort", "steps", "epochs", "batch", "reconstruct_steps", "reconstruct_epochs")


class Settings:
    """The settings of one run, read as attributes.

    >>> Settings({"cohort": 50, "steps": 0, "epochs": 1}).change("cohort", "20").cohort
    20
    """

    def __init__(self, values: Mapping[str, Any], said: frozenset[str] = frozenset()) -> None:
        self.values, self.said = dict(values), said

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def change(self, key: str, text: str) -> "Settings":
        """A copy with one setting changed, from text of the kind that its present value has."""
        if key not in self.values:
            raise InputError(f"there is no setting {key!r} here; there are {', '.join(self.values)}")
        parsed = parse(key, text, type(self.values[key]))
        if key in AT_LEAST_ONE and parsed < 1:
            raise InputError(f"{key}={parsed} must be at least 1")
        other: dict[str, Any] = {"steps": {"epochs": 0}, "epochs": {"steps": 0}}.get(key, {})
        other = {} if other.keys() & self.said else other  # both were asked for: at most steps batches of the passes
        if (key, parsed) == ("sampler", "weighted") and "weights" in self.values:
            other = {"weights": "uniform"}  # clients come as often as their examples say: size counts once
        return Settings({**self.values, **other, key: parsed}, self.said | {key})

    @property
    def work(self) -> dict[str, int]:
        """Local work, for recipes."""
        chosen = {name: self.values[name] for name in ("steps", "epochs") if self.values[name]}
        return {**chosen, "batch": self.batch}

    @property
    def client_optimizer(self) -> optax.GradientTransformation:
        """The clients' optimizer; its schedule acts through the client part."""
        plain = optimizer(self.client, self.client_rate)
        if self.gradient_clip < 0:
            raise InputError(f"gradient_clip={self.gradient_clip} must be positive, or 0 for none")
        return optax.chain(optax.clip_by_global_norm(self.gradient_clip), plain) if self.gradient_clip else plain

    @property
    def server_optimizer(self) -> optax.GradientTransformation:
        """The server's optimizer with its schedule."""
        factor = schedule(self.server_schedule)
        rate = self.server_rate
        return optimizer(self.server, rate if factor is None else lambda count: rate * factor(count), rate)

    @property
    def before_mean(self) -> list[Stage]:
        """Clipping and compression."""
        found = [stages.clip(self.clip)] if self.clip else []
        kinds: dict[str, Callable[..., Any]] = {
            "quantise": lambda levels="127": stages.quantise(int(levels)),
            "largest": lambda share: stages.largest(float(share)),
            "random": lambda share: stages.random(float(share)),
            "sign": stages.sign,
            "low_rank": lambda rank="2": stages.low_rank(int(rank)),
        }
        if self.compress != "none":
            found.append(stages.compress(_build("compress", self.compress, kinds), self.feedback))
        return found

    @property
    def reduction(self) -> Reduce:
        """What takes the place of the sum."""
        kinds: dict[str, Callable[..., Any]] = {
            "sum": reductions.total,
            "trimmed": lambda share="0.1", quorum=QUORUM: reductions.trimmed(float(share), int(quorum)),
            "median": lambda quorum=QUORUM: reductions.median(int(quorum)),
            "geometric": reductions.geometric,
            "krum": lambda bad="0.2", keep="1": reductions.krum(float(bad), int(keep)),
            "worst": lambda share="0.5": reductions.worst(float(share)),
        }
        reduction: Reduce = _build("reduce", self.reduce, kinds)
        return reduction


def parse(key: str, text: str, kind: type) -> Any:
    """The value that a user wrote as text.

    >>> parse("local", "no", bool), parse("buckets", "500", int)
    (False, 500)
    """
    try:
        return _flag(text) if kind is bool else kind(text)
    except ValueError:
        wanted = {bool: "yes or no", int: "a whole number", float: "a number"}[kind]
        raise InputError(f"{key}={text!r}: this must be {wanted}") from None


def optimizer(name: str, rate: Any, first: float | None = None) -> optax.GradientTransformation:
    """An optax optimizer by name; momentum is 0.9, adam and yogi have the Field Guide's b2 and epsilon.

    >>> _ = optimizer("yogi", 0.01)
    """
    if not (rate if first is None else first) > 0:
        raise InputError(
            f"a learning rate of {rate if first is None else first} is not possible: give a positive number"
        )
    if name not in OPTIMIZERS:
        raise InputError(f"there is no optimizer {name!r}; there are {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name](rate)


def schedule(text: str) -> Schedule | None:
    """A factor on a rate by round: ``linear:R`` and ``cosine:R`` fall to zero in R rounds, ``warmup:R`` rises in R.

    >>> float(schedule("warmup:10")(4))
    0.5
    """
    kinds: dict[str, Callable[..., Any]] = {
        "linear": lambda rounds: optax.linear_schedule(1.0, 0.0, int(rounds)),
        "cosine": lambda rounds: optax.cosine_decay_schedule(1.0, int(rounds)),
        "warmup": lambda rounds: lambda count: optax.linear_schedule(0.0, 1.0, int(rounds))(count + 1),
        "constant": lambda: optax.constant_schedule(1.0),
    }
    factors = [_build("schedule", part, kinds) for part in text.split("+")]
    if text == "constant":
        return None

    def factor(count: Any) -> Any:
        result = 1.0
        for one in factors:
            result = result * one(count)
        return result

    return factor


def _build(what: str, text: str, kinds: Mapping[str, Callable[..., Any]]) -> Any:
    """``name:argument:argument`` through a table of builders."""
    name, *arguments = text.split(":")
    if name not in kinds:
        raise InputError(f"{what}={text!r} is not known; there are {', '.join(kinds)}")
    try:
        return kinds[name](*arguments)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what}={text!r}: its arguments do not fit ({error})") from None


def _flag(text: str) -> bool:
    if text.lower() in ("yes", "true", "1", "on"):
        return True
    if text.lower() in ("no", "false", "0", "off"):
        return False
    raise ValueError(text)
