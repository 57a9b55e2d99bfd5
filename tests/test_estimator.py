"""The estimator in scikit-learn's manners does what the command line does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedslice as fs
from fedslice.cli.main import main
from fedslice.errors import InputError

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")


def log(seed: int = 0, rows: int = 400) -> Any:
    rng = np.random.default_rng(seed)
    item = rng.integers(0, 8, rows)
    price = rng.random(rows)
    clicked = (item % 2 + rng.random(rows) * 0.5 > 0.6).astype(int)
    return pandas.DataFrame(
        {"user": rng.integers(0, 12, rows), "item": item, "price": price, "clicked": clicked}
    )


@pytest.fixture(scope="module")
def fitted() -> fs.Federated:
    return fs.Federated(client="user", label="clicked", rounds=30).fit(log())


def test_a_frame_goes_in_and_one_comes_out(fitted: fs.Federated) -> None:
    frame = log(1)[::-1]  # its index is not 0, 1, 2 ...
    label = fitted.predict(frame)
    assert label.index.equals(frame.index)
    assert set(label) <= {0, 1}
    chances = fitted.predict_proba(frame)
    assert list(chances.columns) == ["0", "1"]
    assert np.asarray(chances).sum(1) == pytest.approx(1)
    assert (chances["1"] > 0.5).astype(int).tolist() == label.tolist()
    assert fitted.score(frame) == pytest.approx(np.mean(label == frame["clicked"]))
    assert fitted.score(frame) > 0.95
    for other in (
        polars.from_pandas(frame),
        pyarrow.Table.from_pandas(frame, preserve_index=False),
    ):
        assert np.allclose(fitted.predict_proba(other), chances)
        assert list(fitted.predictions(other).to_pandas()) == ["user", "prediction", "probability"]
    assert isinstance(fitted.predict_proba(polars.from_pandas(frame)), polars.DataFrame)
    assert fitted.predictions(frame).index.equals(frame.index)
    assert fitted.evaluate(frame)["auc"] > 0.95


def test_y_may_be_apart(fitted: fs.Federated) -> None:
    frame = log()
    X, y = frame.drop(columns="clicked"), frame["clicked"]
    again = fs.Federated(client="user", rounds=30).fit(X, y)
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(frame))
    assert again.score(X, y) == fitted.score(frame)
    with pytest.raises(InputError, match="which column is the label"):
        fs.Federated(client="user").fit(X)


def test_parameters_and_repr() -> None:
    model = fs.Federated("fm", client="user", settings={"batch": 3})
    assert repr(model) == "Federated(model='fm', client='user', settings={'batch': 3})"
    assert fs.Federated(**model.get_params()).get_params() == model.get_params()
    assert model.set_params(rounds=5) is model
    with pytest.raises(InputError, match="no argument 'round'"):
        model.set_params(round=5)
    with pytest.raises(InputError, match="not trained yet"):
        model.predict(log())
    with pytest.raises(InputError, match="bach"):
        fs.Federated(client="user", label="clicked", settings={"bach": 3}).fit("no such file")


def test_saved_loaded_and_on_the_command_line(
    fitted: fs.Federated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = log(1)
    fitted.save(tmp_path / "model")
    again = fs.Federated.load(tmp_path / "model")
    assert again.get_params() == fitted.get_params()
    assert np.array_equal(again.predict_proba(frame), fitted.predict_proba(frame))
    frame.to_csv(tmp_path / "new.csv", index=False)
    assert main(["evaluate", str(tmp_path / "model"), str(tmp_path / "new.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == pytest.approx(fitted.evaluate(frame), abs=1e-6)


def test_the_command_line_trains_the_same_model(fitted: fs.Federated, tmp_path: Path) -> None:
    frame = log()
    frame.to_parquet(tmp_path / "log.parquet")
    own = ["--data", str(tmp_path / "log.parquet"), "--client", "user", "--label", "clicked"]
    run = ["--rounds", "30", "--eval-every", "30", "--test", "0", "--out", str(tmp_path / "run")]
    assert main(["run", "lr", *own, *run]) == 0
    loaded = fs.Federated.load(tmp_path / "run")
    assert np.array_equal(loaded.predict_proba(frame), fitted.predict_proba(frame))
    assert loaded.model == "lr"


def test_partial_fit_goes_on_from_what_was_learned(fitted: fs.Federated) -> None:
    frame = log()
    model = fs.Federated(client="user", label="clicked", rounds=3).partial_fit(frame)
    before = model.evaluate(frame)["log_loss"]
    first = model.exported_.tables["weight"].values.copy()
    opposite = frame.assign(item=99)  # a value that was not there: padding, with no row to train
    model.partial_fit(opposite)
    item = np.array([name.startswith("item=") for name in model.features_.names])
    assert np.array_equal(model.trained_.params(np.arange(len(item)))["weight"][item], first[item])
    model.partial_fit(frame).partial_fit(frame)
    assert model.evaluate(frame)["log_loss"] < before


def test_numbers_and_classes() -> None:
    frame = log()
    frame["spent"] = frame["item"] * 2.0 + 1
    number = fs.Federated(client="user", label="spent", features=["item"], rounds=150).fit(frame)
    assert number.score(frame) > 0.98
    assert np.abs(number.predict(frame) - frame["spent"]).mean() < 1
    with pytest.raises(InputError, match="no classes"):
        number.predict_proba(frame)
    frame["kind"] = np.array(["a", "b", "c"])[frame["item"] % 3]
    classes = fs.Federated(client="user", label="kind", features=["item"], rounds=60).fit(frame)
    assert classes.classes_.tolist() == ["a", "b", "c"]
    assert classes.predict_proba(frame).shape == (400, 3)
    assert classes.score(frame) == 1
