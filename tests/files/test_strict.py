"""Strict JSON of a deployment's reports."""

import json
from typing import NoReturn

import numpy as np

from fedslice.deploy.report import Report
from fedslice.files.strict import as_json, parsed


def refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def test_a_loss_that_noise_hides_is_null_and_is_read_back_as_nan() -> None:
    report = Report(1, True, ("a",), ("a",), {}, loss=float("nan"))
    line = as_json(report._asdict())
    assert json.loads(line, parse_constant=refuse)["loss"] is None
    assert np.isnan(parsed(line)["loss"])
