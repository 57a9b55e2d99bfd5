"""How long a round would take on real devices (Wang et al., A Field Guide to Federated
Optimization, 2021, section 5.4).

    T_round  = max over clients j of  T_j  +  T_server
    T_j      = S_down,j / B_down + S_up,j / B_up + R_comp T_sim,j + C_comp
    T_sim,j  = seconds for an example x examples that j goes through

The paper's T_comm is of one size for all clients, and so leaves the maximum; here every client has
the bytes of its own slice.  Its constants, from a production system, are the defaults: 0.75 MB/s
down, 0.25 MB/s up, devices 7 times slower than a simulation, 10 s for everything else.  Beyond the
paper: devices that differ (each client's bandwidth and speed are lognormal about these, and stay
its own), stragglers, a deadline, and more clients asked than needed.
"""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedslice.data.hashing import uniform
from fedslice.errors import InputError, MissingDataError

BANDWIDTH, SPEED, STRAGGLE = 1, 2, 3  # what a client's random numbers are for


class Devices(NamedTuple):
    """What devices are like: bytes per second ``down`` and ``up``; ``slowdown``, R_comp, and
    ``overhead``, C_comp, in seconds; ``server`` seconds a round; ``example`` seconds of simulation
    for one example.

    ``bandwidth_spread`` and ``speed_spread`` are standard deviations of the logarithm: with 0.7 a
    device in six is more than twice as slow as the median.  In a round a client straggles, and
    takes ``straggling`` times as long, with the chance ``stragglers``.

    >>> Devices().seconds(down=np.array([750_000]), up=np.array([250_000]), examples=np.array([50]))
    array([12.35])
    """

    down: float = 0.75e6
    up: float = 0.25e6
    slowdown: float = 7.0
    overhead: float = 10.0
    server: float = 0.0
    example: float = 1e-3
    bandwidth_spread: float = 0.0
    speed_spread: float = 0.0
    stragglers: float = 0.0
    straggling: float = 5.0

    def checked(self) -> "Devices":
        """The same, if there can be such devices."""
        for name, value in self._asdict().items():
            positive = name in ("down", "up")
            if not (np.isfinite(value) and (value > 0 if positive else value >= 0)):
                raise InputError(
                    f"devices: {name}={value} must be {'above' if positive else 'at least'} 0"
                )
        if self.stragglers > 1 or self.straggling < 1:
            raise InputError(
                f"devices: stragglers={self.stragglers} is a chance, up to 1, and who straggles"
                f" takes at least as long as otherwise (straggling={self.straggling})"
            )
        return self

    def seconds(
        self,
        down: np.ndarray,
        up: np.ndarray,
        examples: np.ndarray,
        numbers: np.ndarray | None = None,
        round: int = 0,
        seed: int = 0,
    ) -> np.ndarray:
        """T_j of clients with these bytes and examples.  ``numbers`` say which devices they are
        (default: their places)."""
        who = np.arange(len(down)) if numbers is None else np.asarray(numbers)
        moved = down / self.down + up / self.up
        computed = self.slowdown * self.example * examples
        # without a spread all are alike, and nothing has to be drawn for every client and round
        if self.bandwidth_spread:
            moved = moved / np.exp(-self.bandwidth_spread * _normal(seed, BANDWIDTH, 0, who))
        if self.speed_spread:
            computed = computed / np.exp(-self.speed_spread * _normal(seed, SPEED, 0, who))
        each = moved + computed + self.overhead
        if not self.stragglers:
            return np.asarray(each)
        late = uniform(who, seed, STRAGGLE, round) < self.stragglers
        return each * np.where(late, self.straggling, 1.0)

    @classmethod
    def read(cls, path: str | Path) -> "Devices":
        """From a TOML file with any of the fields; the others are the published ones."""
        file = Path(path)
        if not file.exists():
            raise MissingDataError(f"there is no file {file}: check the path")
        try:
            given = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{file} is no TOML file: {error}") from error
        return cls.of(given, str(file))

    @classmethod
    def of(cls, given: dict[str, Any], source: str = "devices") -> "Devices":
        """From named numbers.

        >>> Devices.of({"up": 1e6}).up
        1000000.0
        """
        if unknown := sorted(set(given) - set(cls._fields)):
            raise InputError(
                f"{source}: devices have no {', '.join(unknown)}, only {', '.join(cls._fields)}"
            )
        wrong = [
            k for k, v in given.items() if isinstance(v, bool) or not isinstance(v, int | float)
        ]
        if wrong:
            raise InputError(f"{source}: {', '.join(wrong)} must be a number")
        return cls(**{name: float(value) for name, value in given.items()}).checked()


class Ended(NamedTuple):
    """How a round ends: ``seconds`` it lasts, and which of those asked ``counted``."""

    seconds: float
    counted: np.ndarray


def ending(
    devices: Devices,
    seconds: np.ndarray,
    wanted: int | None = None,
    deadline: float | None = None,
) -> Ended:
    """The end of a round in which clients take these ``seconds``: when the first ``wanted`` have
    answered (default: all), or at the ``deadline``, whichever comes first; the others are dropped.

    >>> ending(Devices(), np.array([12.0, 30.0, 14.0]), wanted=2)
    Ended(seconds=14.0, counted=array([ True, False,  True]))
    """
    needed = len(seconds) if wanted is None else min(wanted, len(seconds))
    order = np.argsort(seconds, kind="stable")
    counted = np.zeros(len(seconds), bool)
    counted[order[:needed]] = True
    last = float(seconds[order[needed - 1]]) if needed else 0.0
    if deadline is not None and last > deadline:
        counted &= seconds <= deadline
        last = deadline
    return Ended(last + devices.server, counted)


def _normal(seed: int, what: int, round: int, who: np.ndarray) -> np.ndarray:
    """A standard normal number for each client (Box and Muller)."""
    one, two = (uniform(who, seed, what, round, part) for part in (0, 1))
    return np.sqrt(-2 * np.log1p(-one)) * np.cos(2 * np.pi * two)
