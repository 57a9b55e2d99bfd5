"""What every round of a simulation reported, as a table: nine numbers a round."""

from array import array
from typing import Any

import numpy as np

from fedslice.errors import InputError

COLUMNS = {
    "round": int,
    "clients": int,
    "examples": int,
    "bytes_down": int,
    "bytes_up": int,
    "loss": float,
    "start_loss": float,
    "failed": int,
    "update_norm": float,
}


class History:
    """The rounds of a run that were computed here, oldest first.

    >>> history = History()
    >>> len(history)
    0
    """

    def __init__(self) -> None:
        self._numbers = array("d")

    def add(self, figures: tuple[float, ...]) -> None:
        """One more round, in the order of the columns."""
        self._numbers.extend(figures)

    def __len__(self) -> int:
        return len(self._numbers) // len(COLUMNS)

    def column(self, name: str) -> np.ndarray:
        """One figure of all rounds."""
        kind = COLUMNS[name]
        whole = np.array(self._numbers).reshape(-1, len(COLUMNS))
        return whole[:, list(COLUMNS).index(name)].astype(kind)

    def frame(self) -> Any:
        """As a pandas DataFrame, a row for each round."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("a frame needs pandas: pip install pandas") from error
        return pandas.DataFrame({name: self.column(name) for name in COLUMNS})

    def table(self, last: int) -> str:
        """The ``last`` rounds as HTML; nothing if there is none."""
        if not len(self):
            return ""
        shown = {name: self.column(name)[-last:] for name in COLUMNS}
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in COLUMNS)
        rows = (
            "".join(
                f"<td>{value:,.4g}</td>" if COLUMNS[name] is float else f"<td>{value:,}</td>"
                for name, value in zip(COLUMNS, row, strict=True)
            )
            for row in zip(*shown.values(), strict=True)
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
