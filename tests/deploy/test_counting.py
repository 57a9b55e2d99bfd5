"""Heat from nodes that do not name their rows: as the mechanism says, drawn once, and used."""

from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from hidden import At, secure
from laws import MODEL
from nodes import SEED, Deployment, program_of
from problems import people

import fedslice as fs
from fedslice.deploy import InProcess, Node, collect, columns_of, register
from fedslice.deploy import letter as letters
from fedslice.deploy.letter import unpack
from fedslice.deploy.link import silent, tampered
from fedslice.errors import InputError, RoundError
from fedslice.privacy.heat import Response, Summed, symmetric

ROWS = 24


def nodes_of(home: Path, how: Any, method: Any = None) -> InProcess:
    population = people()
    program = program_of(method or secure(), columns_of(MODEL, population))
    each = range(len(population))
    return InProcess(
        {
            str(i): Node(program, population.subset(np.array([i])), home / str(i), heat=how)
            for i in each
        }
    )


def test_training_with_randomised_responses_is_the_simulation_with_their_heat(
    tmp_path: Path,
) -> None:
    how = symmetric(3.0)
    link = nodes_of(tmp_path / "nodes", how)
    schema = register(link, MODEL)
    replies: dict[str, bytes] = {}
    deliver = link.exchange

    def exchange(sent: Any, deadline: Any) -> dict[str, bytes]:
        found = deliver(sent, deadline)
        replies.update(found)
        return found

    link.exchange = exchange
    heat = collect(link, schema, MODEL, how)
    said = np.stack(
        [
            np.unpackbits(np.frombuffer(unpack(reply).body, np.uint8), bitorder="little")[:ROWS]
            for reply in replies.values()
        ]
    )
    yes = said.sum(axis=0)
    np.testing.assert_allclose(heat.counts("w"), (yes - 7 * how.p2) / (how.p1 - how.p2))
    assert (heat.clients, heat.release.epsilon) == (7, how.epsilon)
    again = collect(link, schema, MODEL, how)  # no second draw
    assert np.array_equal(again.counts("w"), heat.counts("w"))
    method = secure(heat=heat)
    settings = {"sampler": fs.sampling.uniform(7), "seed": SEED, "engine": "map", "threads": 1}
    run = fs.simulate(method, people(), **settings)
    made = Deployment(
        "hidden", tmp_path / "run", method, sampler=run.sampler, room=run.planner.capacity
    )
    assert all(made.server.step().accepted for _ in range(2))
    list(run.rounds(2))
    assert made.same_model(run)


def test_responses_have_the_chances_that_were_promised(tmp_path: Path) -> None:
    """A table of 24 rows, many nodes' secrets: yes with p1 where a row is held, p2 elsewhere."""
    how, population = Response(0.8, 0.3), people()
    program = program_of(secure(), columns_of(MODEL, population))
    yes = np.zeros((2, 2))
    for trial in range(40):
        for place in range(7):
            alone = population.subset(np.array([place]))
            node = Node(program, alone, tmp_path / f"{trial} {place}", heat=how)
            ask = letters.Letter(letters.HEAT, 0, b"n" * 16, letters.NONE, "0" * 16)
            body = np.array([how.p1, how.p2], "<f8").tobytes()
            reply = node.receive(ask._replace(body=body).pack())
            bits = np.unpackbits(np.frombuffer(unpack(reply).body, np.uint8), bitorder="little")
            held = np.isin(np.arange(ROWS), node.trainer.rows["w"])
            for of in (0, 1):
                yes[of] += bits[:ROWS][held == of].sum(), (held == of).sum()
    for (count, total), chance in zip(yes, (how.p2, how.p1), strict=True):
        assert abs(count / total - chance) < 4 * np.sqrt(chance * (1 - chance) / total)


def test_a_noisy_count_by_a_secure_sum(tmp_path: Path) -> None:
    """With next to no noise: exact counts; with some, whole numbers off by about what is said."""
    exact = people().heat(MODEL)
    plain = np.zeros(ROWS)
    plain[exact.ids["w"]] = exact.counts("w")
    quiet = Summed(1e-6, most=ROWS, kind="skellam")
    link = nodes_of(tmp_path / "quiet", quiet)
    heat = collect(link, register(link, MODEL), MODEL, quiet)
    assert np.array_equal(heat.counts("w"), plain)
    assert heat.release.multiplier == 1e-6
    how = Summed(2.0, most=3, kind="skellam")
    errors, found = [], []
    for trial in range(6):
        link = nodes_of(tmp_path / f"{trial}", how)
        heat = collect(link, register(link, MODEL), MODEL, how)
        errors.append(heat.errors["w"][0, 0])
        found.append(heat.counts("w"))
        assert np.array_equal(found[-1], np.round(found[-1]))
    # all seven have the noise that five are asked for
    assert errors[0] == pytest.approx(2.0 * np.sqrt(3) * np.sqrt(7 / 5))
    capped = sum(min(3, len(node.trainer.rows["w"])) for node in link.members.values())
    sums = np.array(found).sum(axis=1)
    assert abs(sums.mean() - capped) < 4 * errors[0] * np.sqrt(ROWS / 6)
    spread = (np.array(found) - np.mean(found, axis=0)).std() * np.sqrt(6 / 5)
    assert abs(spread / errors[0] - 1) < 4 * np.sqrt(1 / (2 * 5 * ROWS)) + 0.1


def test_a_count_is_given_once_and_one_that_broke_is_not_begun_again(tmp_path: Path) -> None:
    how = Summed(1.0, most=4, kind="skellam")
    link = nodes_of(tmp_path / "nodes", how)
    schema = register(link, MODEL)
    heat = collect(link, schema, MODEL, how, folder=tmp_path / "server")
    again = collect(link, schema, MODEL, how, folder=tmp_path / "server")  # from the journal
    assert np.array_equal(again.counts("w"), heat.counts("w"))
    with pytest.raises(RoundError, match="gives them once"):
        collect(link, schema, MODEL, how, folder=tmp_path / "another")
    # those who do not come are taken for like the others
    link = nodes_of(tmp_path / "fewer", how)
    schema = register(link, MODEL)
    link.faults = {"1": silent, "2": At(2, silent, leave=True)}
    heat = collect(link, schema, MODEL, how)
    assert heat.clients == 7
    assert np.allclose(heat.counts("w") * 5 / 7, np.round(heat.counts("w") * 5 / 7))


def test_a_node_tells_of_its_rows_only_what_its_owner_said(tmp_path: Path) -> None:
    how = symmetric(1.0)
    link = nodes_of(tmp_path / "none", None)
    schema = register(link, MODEL)
    with pytest.raises(RoundError, match="gives no randomised responses"):
        collect(link, schema, MODEL, how)
    with pytest.raises(RoundError, match="into no such count"):
        collect(link, schema, MODEL, Summed(1.0, 3, "skellam"))
    with pytest.raises(InputError, match="nodes add whole numbers"):
        collect(link, schema, MODEL, Summed(1.0, 3))
    link = nodes_of(tmp_path / "some", how)
    with pytest.raises(RoundError, match="not as it is asked"):
        collect(link, register(link, MODEL), MODEL, symmetric(2.0))
    link.faults = {"0": tampered(lambda reply: reply[:-1]), "1": silent}
    schema = register(InProcess(link.members), MODEL)
    assert collect(link, schema, MODEL, how).clients == 7
    # weights by examples need to know them, and these nodes do not tell
    method = fs.recipes.fedsubavg(MODEL, optax.sgd(0.1), heat=collect(link, schema, MODEL, how))
    with pytest.raises(InputError, match="counts clients, not their examples"):
        fs.simulate(method, people(), sampler=fs.sampling.full())
