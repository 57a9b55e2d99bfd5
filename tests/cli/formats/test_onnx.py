"""The exported graph predicts as we do, in ONNX's own runtime."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli.formats.own_models import CASES, EXAMPLES, case
from kinds import few

from fedslice.cli.formats.files import export
from fedslice.data.features import Features
from fedslice.errors import InputError

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("name", few(CASES, *(set(CASES) - {"din of classes"})))
def test_the_graph_predicts_as_we_do(name: str, tmp_path: Path) -> None:
    given = case(name)
    assert export(given.exported, tmp_path / "m.onnx") == [tmp_path / "m.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    inputs = {"features": given.inputs["features"].astype(np.int64)}
    if "numbers" in given.inputs:
        inputs["numbers"] = given.inputs["numbers"]
    if given.user:
        inputs["user"] = np.tile(given.user["user"], (EXAMPLES, 1))
        inputs["user_bias"] = np.tile(given.user["user_bias"], EXAMPLES)
    wanted = "prediction" if given.features.label.kind == "number" else "probability"
    (found,) = session.run([wanted], inputs)
    np.testing.assert_allclose(found, given.expected, rtol=1e-5, atol=1e-6)
    (one,) = session.run([wanted], {key: x[:1] for key, x in inputs.items()})
    np.testing.assert_allclose(one, given.expected[:1], rtol=1e-5, atol=1e-6)
    about = session.get_modelmeta().custom_metadata_map["features"]
    assert Features.from_json(json.loads(about)) == given.features


def test_a_model_that_is_several_is_refused(tmp_path: Path) -> None:
    exported = case("lr").exported
    weight = exported.tables["weight"]
    several = weight._replace(values=np.stack([weight.values] * 2, 1))
    with pytest.raises(InputError, match="algorithms with several models"):
        export(exported._replace(tables={"weight": several}), tmp_path / "m.onnx")
    other = exported._replace(tables={"factor": weight})
    with pytest.raises(InputError, match="its features speak of weight"):
        export(other, tmp_path / "m.onnx")
    with pytest.raises(InputError, match="lacks bias"):
        export(exported._replace(dense={}), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
