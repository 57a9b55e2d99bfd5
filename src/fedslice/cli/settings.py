"""Settings as text: what ``--set key=value`` means, and how it becomes optimizers, stages and
reductions."""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedslice import reduce as reductions
from fedslice import stage as stages
from fedslice.client.local import Schedule
from fedslice.errors import InputError
from fedslice.reduce.coordinate import QUORUM
from fedslice.types import Reduce, Stage

COMMON: dict[str, tuple[Any, str]] = {
    "cohort": (50, "clients a round (Ding et al. 2022)"),
    "sampler": (
        "uniform",
        "uniform, weighted (by examples, with replacement; sets weights=uniform), poisson or full",
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
    "compress": ("none", "none, quantise:LEVELS, largest:SHARE, random:SHARE, sign, low_rank:RANK"),
    "feedback": (False, "error feedback for compress"),
    "reduce": (
        "sum",
        "sum, trimmed:SHARE:QUORUM, median:QUORUM, geometric, krum:BAD:KEEP, worst:SHARE",
    ),
    "engine": ("auto", "auto, vmap, map, debug, or clients to vectorise at a time"),
    "threads": (0, "threads for map (0: one a core)"),
}

# With each optimizer its constants, which are settings too: client_b1, server_eps and so on.  Adam
# and Yogi have those of the Field Guide, the others optax's own.
MOMENTS = {"b1": 0.9, "b2": 0.99, "eps": 1e-3}
OPTIMIZERS: dict[str, tuple[Callable[..., optax.GradientTransformation], dict[str, float]]] = {
    "sgd": (optax.sgd, {}),
    "momentum": (lambda rate, b1: optax.sgd(rate, momentum=b1), {"b1": 0.9}),
    "adagrad": (
        lambda rate, eps, accumulator: optax.adagrad(
            rate, initial_accumulator_value=accumulator, eps=eps
        ),
        {"eps": 1e-7, "accumulator": 0.1},
    ),
    "adam": (optax.adam, MOMENTS),
    "yogi": (lambda rate, **given: yogi(rate, **given), {**MOMENTS, "accumulator": 1e-6}),
    "adamw": (optax.adamw, {"b1": 0.9, "b2": 0.999, "eps": 1e-8}),
    "rmsprop": (
        lambda rate, b2, eps, accumulator: optax.rmsprop(
            rate, decay=b2, eps=eps, initial_scale=accumulator
        ),
        {"b2": 0.9, "eps": 1e-8, "accumulator": 0.0},
    ),
    "lion": (optax.lion, {"b1": 0.9, "b2": 0.99}),
}
CONSTANTS = {
    "b1": "decay of the first moment (momentum: of the momentum)",
    "b2": "decay of the second moment",
    "eps": "added to the root of the second moment (adagrad, rmsprop: under it)",
    "accumulator": "what the second moment starts from",
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
    def work(self) -> dict[str, int]:
        """Local work, for recipes; with both steps and epochs at most so many batches of the
        passes."""
        return {
            name: self.values[name]
            for name in ("steps", "epochs", "batch")
            if self.values.get(name)
        }

    def chosen(
        self, side: str, rate: Any, first: float | None = None
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
        kinds: dict[str, Callable[..., Any]] = {
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
            found.append(stages.compress(_build("compress", self.compress, kinds), self.feedback))
        return found

    @property
    def reduction(self) -> Reduce:
        """What takes the place of the sum."""
        kinds: dict[str, Callable[..., Any]] = {
            "sum": reductions.total,
            "trimmed": lambda share="0.1", quorum=QUORUM: reductions.trimmed(
                float(share), int(quorum)
            ),
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


def optimizer(
    name: str, rate: Any, first: float | None = None, **given: float
) -> optax.GradientTransformation:
    """An optax optimizer by name, with constants other than its usual ones if ``given``.

    >>> _ = optimizer("yogi", 0.01), optimizer("adagrad", 0.1, accumulator=0.0, eps=1e-3)
    """
    if not (rate if first is None else first) > 0:
        raise InputError(
            f"a learning rate of {rate if first is None else first} is not possible: give a"
            " positive number"
        )
    for key, value in given.items():
        if not (0 <= value < 1 if key in ("b1", "b2") else value >= 0):
            raise InputError(
                f"{key}={value} is not possible:"
                f" {'from 0 to below 1' if key[0] == 'b' else 'at least 0'}"
            )
    return OPTIMIZERS[name][0](rate, **{**constants(name), **given})


def yogi(
    rate: Any, b1: float, b2: float, eps: float, accumulator: float
) -> optax.GradientTransformation:
    """optax's Yogi with a first moment that starts at zero; its own starts at ``accumulator`` too,
    and so moves weights that have no gradient.

    >>> import jax.numpy as jnp
    >>> x = {"w": jnp.zeros(1)}
    >>> rule = yogi(0.1, 0.9, 0.99, 1e-3, accumulator=0.1)
    >>> float(rule.update(x, rule.init(x))[0]["w"][0])
    -0.0
    """
    inner = optax.scale_by_yogi(b1, b2, eps, initial_accumulator_value=accumulator)

    def init(params: Any) -> Any:
        state = inner.init(params)
        return state._replace(mu=jax.tree.map(jnp.zeros_like, state.mu))

    return optax.chain(
        optax.GradientTransformation(init, inner.update), optax.scale_by_learning_rate(rate)
    )


def constants(name: str) -> dict[str, float]:
    """The constants of an optimizer and what they are where nobody says otherwise.

    >>> constants("adagrad")
    {'eps': 1e-07, 'accumulator': 0.1}
    """
    if name not in OPTIMIZERS:
        raise InputError(f"there is no optimizer {name!r}; there are {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name][1]


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


def nearest(key: str, known: Iterable[str]) -> str:
    """The setting that was perhaps meant, or all that there are.

    >>> nearest("chort", ["cohort", "steps"]), nearest("colour", ["cohort", "steps"])
    ("do you mean 'cohort'?", 'there are cohort, steps')
    """
    names = list(known)
    close = difflib.get_close_matches(key, names, 1, 0.7)
    return f"do you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"


def change_of(text: str) -> tuple[str, str, str]:
    """Algorithm (or nothing), key and value of one ``--set``.

    >>> change_of("fedprox:mu=1"), change_of("reduce=trimmed:0.1")
    (('fedprox', 'mu', '1'), ('', 'reduce', 'trimmed:0.1'))
    """
    key, sign, value = (part.strip() for part in text.partition("="))
    if not sign:
        raise InputError(f"--set {text}: write key=value, or ALGORITHM:key=value")
    name, colon, own = key.rpartition(":")
    if colon and not name:
        raise InputError(
            f"--set {text}: name the algorithm before the colon, or leave the colon out"
        )
    return name, own, value


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


def schedule(text: str) -> Schedule | None:
    """A factor on a rate by round: ``linear:R`` and ``cosine:R`` fall to zero in R rounds,
    ``exponential:F:R`` to the share F in every R, ``warmup:R`` rises in R.

    >>> float(schedule("warmup:10")(4)), float(schedule("exponential:0.25:10")(5))
    (0.5, 0.5)
    """
    kinds: dict[str, Callable[..., Any]] = {
        "linear": lambda rounds: optax.linear_schedule(1.0, 0.0, int(rounds)),
        "cosine": lambda rounds: optax.cosine_decay_schedule(1.0, int(rounds)),
        "exponential": lambda factor, rounds: optax.exponential_decay(
            1.0, int(rounds), _positive(factor)
        ),
        "warmup": lambda rounds: (
            lambda count: optax.linear_schedule(0.0, 1.0, int(rounds))(count + 1)
        ),
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
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{what}={text!r}: its arguments do not fit ({error})") from None
    except TypeError:
        wanted = ":".join(map(str.upper, inspect.signature(kinds[name]).parameters)) or "nothing"
        raise InputError(f"{what}={text!r}: after {name} comes {wanted}") from None


def _positive(text: str) -> float:
    if not float(text) > 0:
        raise ValueError(f"{text} must be positive")
    return float(text)


def _flag(text: str) -> bool:
    if text.lower() in ("yes", "true", "1", "on"):
        return True
    if text.lower() in ("no", "false", "0", "off"):
        return False
    raise ValueError(text)
