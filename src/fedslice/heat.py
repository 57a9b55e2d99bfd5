"""Heat: n_m, the number of clients that hold row m, and the coefficients that correct for it.

Ding et al., "Federated Submodel Optimization for Hot and Cold Data Features", NeurIPS 2022.  The
update of row m is multiplied by N / n_m; with clients weighted by their examples, by sum_i w_i /
sum_{i: m in S(i)} w_i.

Heat that clients did not tell exactly (:mod:`fedslice.privacy.heat`) has standard errors.  Noise
may put n_m near or below zero, where N / n_m explodes, so the coefficient is

    c_m = N / clip(n_m, max(1, floor * se_m), N)

with floor = 1: a count that noise alone could have made is taken for its noise.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedslice.arrays import among
from fedslice.errors import InputError


class Release(NamedTuple):
    """How heat came to be known: ``multiplier`` of Gaussian noise on the sum of the clients' sets
    of at most ``rows`` rows, or ``epsilon`` of randomised response for each row alone, whose whole
    set then costs up to |S| epsilon; with neither it was public before.
    """

    text: str
    multiplier: float | None = None
    rows: int = 1
    epsilon: float | None = None
    kind: str = "gaussian"  # the noise


class Heat(NamedTuple):
    """Heat of every row of every table, with standard errors (``errors``, as ``mass``) if it is an
    estimate, and how it was released (None: it is exact, from the clients' own rows).

    >>> heat = Heat(4, 10.0, {"w": np.array([3, 8])}, {"w": np.array([[4.0, 10.0], [1.0, 2.0]])})
    >>> heat.coefficient("w", np.array([3, 8, 9]), weights="uniform").tolist()
    [1.0, 4.0, 1.0]
    """

    clients: int  # N: clients with data
    examples: float
    ids: Mapping[str, np.ndarray]  # per table: the rows that some client holds
    mass: Mapping[str, np.ndarray]  # per table: [rows, 2], clients and examples behind each of them
    widths: Mapping[str, int] = {}  # per table: numbers of a row, if not 1
    dense: int = 0  # numbers that all clients hold
    rows: Mapping[str, int] = {}  # per table: all rows that it has
    fields: Mapping[str, tuple[str, ...]] = {}  # per table: the columns that index it
    errors: Mapping[str, np.ndarray] = {}  # per table: standard errors of its mass; none: exact
    release: Release | None = None
    floor: float = 1.0  # standard errors below which an estimate is not believed

    def _repr_html_(self) -> str:
        """For a notebook: how many rows are held by how many clients."""
        edges, rows = self.histogram(10)
        spans = zip(edges[:-1], edges[1:], rows, strict=True)
        cells = "".join(
            f"<tr><td>{low:,.0f} to {max(low, high - 1):,.0f}</td><td>{count:,}</td></tr>"
            for low, high, count in spans
        )
        return (
            f"<p>Heat of {self.clients:,} clients, dispersion {self.dispersion:,.0f}</p><table>"
            f"<thead><tr><th>clients that hold a row</th><th>rows</th></tr></thead>"
            f"<tbody>{cells}</tbody></table>"
        )

    def counts(self, table: str) -> np.ndarray:
        """n_m of the rows that some client holds."""
        return self.mass[table][:, 0]

    def believed(
        self, table: str, column: int = 0, rows: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """The clients (column 0) or examples (1) behind each row (or these ``rows``, by place),
        estimates between what noise alone could have made and all of them.

        >>> ids, mass = {"w": np.arange(3)}, {"w": np.array([[-2.0, 0.0], [7.0, 0.0], [99.0, 0.0]])}
        >>> Heat(50, 50.0, ids, mass, errors={"w": np.full((3, 2), 4.0)}).believed("w").tolist()
        [4.0, 7.0, 50.0]
        """
        mass, total = self.mass[table][rows, column], (self.clients, self.examples)[column]
        if table in self.errors:
            error = self.errors[table][rows, column]
            if np.isnan(error).any():
                raise InputError(
                    "this heat counts clients, not their examples: use weights='uniform', or"
                    " estimate it from reports that are weighted"
                )
            return np.clip(mass, np.minimum(np.maximum(1, self.floor * error), total), total)
        if len(mass) and mass.min() <= 0:
            raise InputError(
                f"the heat of table {table!r} has counts down to {mass.min():g}: noisy counts need"
                " their standard errors, without which N / n explodes; make them by"
                " privacy.heat.estimate(...)"
            )
        return mass

    def check(self, rows: Mapping[str, int]) -> None:
        """Refuse a model, given by the ``rows`` of its tables, that this is not the heat of.

        >>> Heat(4, 10.0, {"w": np.array([3])}, {"w": np.array([[4.0, 10.0]])}).check({"w": 9})
        """
        if not rows:
            raise InputError(
                "the model has no tables, so heat has nothing to correct: use fedavg, or leave"
                " heat out"
            )
        other = "compute it for this model, population.heat(model)"
        if set(rows) != set(self.ids):
            raise InputError(
                f"the heat is of tables {sorted(self.ids)}, the model has {sorted(rows)}: {other}"
            )
        for name, ids in self.ids.items():
            if self.rows.get(name, rows[name]) != rows[name] or (
                len(ids) and ids[-1] >= rows[name]
            ):
                raise InputError(
                    f"the heat is of another table {name!r} than the model's of {rows[name]} rows:"
                    f" {other}"
                )

    def check_population(
        self, fields: Mapping[str, tuple[str, ...]], held: Mapping[str, np.ndarray] | None
    ) -> None:
        """Refuse the heat of other columns, by the ``fields`` that index each table, and that of
        another population, which does not know a row that is ``held`` in this one: it would not be
        corrected.

        >>> ids, counts = {"w": np.array([3])}, {"w": np.array([[4.0, 10.0]])}
        >>> heat = Heat(4, 10.0, ids, counts, fields={"w": ("item",)})
        >>> heat.check_population({"w": ("item",)}, {"w": np.array([3])})
        """
        for name, given in self.fields.items():
            if name in fields and tuple(given) != tuple(fields[name]):
                raise InputError(
                    f"the heat of table {name!r} counts the ids in {', '.join(given)}, the model"
                    f" reads it by {', '.join(fields[name])}: compute it for this model,"
                    " population.heat(model)"
                )
        for name, ids in (held or {}).items():
            if np.array_equal(ids, self.ids[name]):  # as a rule, and cheaper to see
                continue
            if len(unknown := np.setdiff1d(ids, self.ids[name], assume_unique=True)):
                raise InputError(
                    f"the heat is of another population: it does not know {len(unknown):,} of the"
                    f" {len(ids):,} rows of table {name!r} that clients hold here, row {unknown[0]}"
                    " for one. Compute it where you train, population.heat(model)"
                )

    def coefficient(self, table: str, ids: np.ndarray, weights: str) -> np.ndarray:
        """float32 factor of each row: N / n_m, or its sample-weighted form; 1 for rows that nobody
        holds."""
        if table not in self.ids:
            raise InputError(
                f"the heat knows no table {table!r}, only {sorted(self.ids)}: compute it for this"
                " model"
            )
        known = self.ids[table]
        place, hit = among(known, ids)
        total, column = (self.clients, 0) if weights == "uniform" else (self.examples, 1)
        out = np.ones(len(ids))
        # of these rows alone: a table may have 10^8, and a round that makes rows asks for a few
        out[hit] = total / self.believed(table, column, place[hit])
        return out.astype(np.float32)

    @property
    def dispersion(self) -> float:
        """max n / min n over the rows that somebody holds."""
        parts = [counts for table in self.ids if len(counts := self.believed(table))]
        if not parts:
            return 1.0
        return float(max(part.max() for part in parts) / min(part.min() for part in parts))

    @property
    def sparsity(self) -> float:
        """The mean over the model's numbers of the share of clients that hold them, n_m / N: 1 for
        dense ones; rows that nobody holds do not count.  The name is Ding et al.'s: the larger it
        is, the *denser* are the slices.

        >>> ids, counts = {"w": np.array([3, 8])}, {"w": np.array([[4, 10], [1, 2]])}
        >>> Heat(4, 10.0, ids, counts, {"w": 2}, dense=1).sparsity
        0.7
        """
        widths = {table: self.widths.get(table, 1) for table in self.ids}
        numbers = self.dense + sum(widths[table] * len(ids) for table, ids in self.ids.items())
        held = self.dense + sum(
            widths[table] * self.believed(table).sum() for table in self.ids
        ) / max(1, self.clients)
        return float(held / numbers) if numbers else 1.0

    def histogram(self, bins: int = 20) -> tuple[np.ndarray, np.ndarray]:
        """(edges, rows): how many rows have each heat, in bins of equal width on a log scale."""
        counts = self._all()
        top = max(2.0, float(counts.max())) if len(counts) else 2.0
        edges = np.unique(np.round(np.geomspace(1, top + 1, bins + 1)))
        rows, _ = np.histogram(counts, edges)
        return edges, rows

    def _all(self) -> np.ndarray:
        parts = [self.believed(table) for table in self.ids]
        return np.concatenate(parts) if parts else np.zeros(0)
