"""After training: the model on a node, with what is its own."""

from pathlib import Path

import jax
import numpy as np
import pytest
from kinds import few
from laws import MODEL
from nodes import Deployment

from fedslice.deploy import letter as letters
from fedslice.deploy import served
from fedslice.errors import InputError
from fedslice.evaluation.gain import model_of
from fedslice.files.lock import hold
from fedslice.model import lookup


def output(params: dict, batch: dict) -> jax.Array:
    return lookup(params["w"], batch["history"]).sum(1) + params["bias"]


def by_hand(params: dict, ids: np.ndarray, history: np.ndarray) -> np.ndarray:
    """The same in NumPy, from a table of all rows."""
    table = np.zeros(25)
    table[ids] = params["w"]
    return table[history].sum(1) + float(params["bias"])  # -1 is the last one, zero


def test_a_node_predicts_with_rows_that_it_holds_or_with_all(tmp_path: Path) -> None:
    made = Deployment("fedsubavg", tmp_path)
    list(made.server.rounds(2))
    node, name = made.link.members["3"], "3"
    with pytest.raises(InputError, match="has published no model yet"):
        node.model()
    assert made.server.publish() == [str(i) for i in range(7)]
    held = made.schema.nodes[name].rows["w"]
    history = node.data.columns["history"]
    found = node.model().predict(output, history=history)
    params = made.server.params({"w": held})
    np.testing.assert_allclose(found, by_hand(params, held, history), rtol=1e-5)
    other = np.setdiff1d(made.server.office.ids["w"], held)[:1]
    with pytest.raises(InputError, match=f"names row {other[0]}, which this node was not sent"):
        node.model().predict(output, history=[other])
    made.server.publish(rows="all")
    made.restart(3)
    found = made.link.members["3"].model().predict(output, history=[[other[0], -1, -1]])
    params = made.server.params({"w": other})
    np.testing.assert_allclose(found, params["w"] + params["bias"], rtol=1e-6)


def test_local_leaves_are_rebuilt_on_the_node(tmp_path: Path) -> None:
    """FedRecon: what evaluation makes of the same model and the same examples."""
    made = Deployment("fedrecon", tmp_path)
    list(made.server.rounds(2))
    made.server.publish()
    for place in (2, 5):
        node = made.link.members[str(place)]
        params = made.server.params(dict(node.trainer.rows))
        assert "bias" not in params
        way, alone = made.method.client.adapt, made.population.subset(np.array([place]))
        wanted = model_of(way, params, alone, seed=5)
        found = node.model().params
        np.testing.assert_array_equal(found["w"], params["w"])
        np.testing.assert_allclose(found["bias"], wanted["bias"], rtol=1e-6)
        assert float(found["bias"]) != 0


@pytest.mark.parametrize("name", few(["ditto", "fedper"], "ditto"))
def test_kept_models_are_those_of_the_simulation(name: str, tmp_path: Path) -> None:
    made = Deployment(name, tmp_path)
    list(made.server.rounds(2))
    made.server.publish()
    run = made.simulation([[*range(7)]] * 2)
    list(run.rounds(2))
    made.restart(4)  # what it keeps is on its disk
    node = made.link.members["4"]
    rows = run.params({"w": node.trainer.rows["w"]})
    space = run.spaces["w"]
    mine = slice(space.offsets[4], space.offsets[5])
    memory = jax.tree.map(
        lambda tag, leaf: leaf[mine] if tag == "w" else leaf[4],
        run.shapes.tags.memory[0],
        run.memory[0],
    )
    key = jax.random.fold_in(jax.random.key(5), 4)
    wanted = made.method.client.serve(rows, memory, key)
    found = node.model().params
    assert set(found) == set(wanted)
    for leaf in wanted:
        np.testing.assert_array_equal(found[leaf], wanted[leaf])


def test_a_model_of_other_leaves_is_refused(tmp_path: Path) -> None:
    made = Deployment("fedavg", tmp_path)
    params, ids = made.server.params(), {"w": made.server.office.ids["w"]}
    good = served.pack(params, ids, 5)
    assert served.unpack(good, MODEL).seed == 5
    wrong = {
        "without the leaf": served.pack({"w": params["w"]}, ids, 5),
        "does not have": served.pack({**params, "more": np.zeros(2)}, ids, 5),
        "not ascending": served.pack(params, {"w": ids["w"][::-1]}, 5),
        "more rows": served.pack(params, {"w": ids["w"] + 20}, 5),
        "cannot be read": good[:-3],
    }
    for why, body in wrong.items():
        with pytest.raises(InputError, match=why):
            served.unpack(body, MODEL)
    node = made.link.members["1"]
    given = b"n" * 16, letters.NONE, node.program.fingerprint
    reply = node.receive(letters.Letter(letters.MODEL, 0, *given, b"no model").pack())
    assert letters.unpack(reply).kind == letters.REFUSED


def test_one_process_at_a_time_works_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Deployment("scaffold-2", tmp_path)
    monkeypatch.setattr("fedslice.deploy.alone.PATIENCE", 0.1)
    other = hold(tmp_path / "nodes" / "2" / "lock")
    assert other is not None
    report = made.server.step()
    assert "another process works in" in report.excluded["2"]
    other.close()
    assert made.server.step().counted == tuple("0123456")
