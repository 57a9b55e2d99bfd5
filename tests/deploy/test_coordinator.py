"""Who is asked, who counts, what is kept, and what a coordinator knows and keeps to itself."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest
from kinds import few
from laws import MODEL, recon
from nodes import SEED, Deployment, bits
from problems import people

import fedslice as fs
from fedslice.deploy import Coordinator, InProcess, Node, Program, Schema, columns_of, register
from fedslice.deploy import letter as letters
from fedslice.deploy.letter import unpack
from fedslice.deploy.link import Fault, late, silent, tampered
from fedslice.errors import CheckpointError, InputError, RoundError


def test_spare_nodes_stand_in_and_only_as_many_count_as_are_wanted(tmp_path: Path) -> None:
    made = Deployment("fedavg", tmp_path, sampler=fs.sampling.uniform(3), spare=2)
    first = made.server.step()
    assert (len(first.asked), len(first.counted), len(first.spare)) == (5, 3, 2)
    assert {*first.counted, *first.spare} == {*first.asked}
    made.link.faults = dict.fromkeys(map(str, range(7)), silent)
    upcoming = Deployment("fedavg", tmp_path / "x", sampler=fs.sampling.uniform(3), spare=2)
    upcoming.server.round = 1
    second = upcoming.server.step().asked
    made.link.faults = {second[0]: late, second[3]: tampered(lambda reply: reply[:60])}
    report = made.server.step()
    assert report.asked == second
    assert report.counted == (second[1], second[2], second[4])
    assert (report.late, [*report.excluded], report.spare) == ((second[0],), [second[3]], ())
    run = made.simulation([[int(name) for name in each.counted] for each in (first, report)])
    list(run.rounds(2))
    assert made.same(run)


def test_too_few_answers_throw_a_round_away_and_after_some_tries_it_stops(tmp_path: Path) -> None:
    made = Deployment("fedavg", tmp_path, sampler=fs.sampling.uniform(3), least=3, tries=2)
    made.link.faults = dict.fromkeys("01234", silent)
    state = bits(made.server.office.store.state)
    rounds = made.server.rounds(5)
    reports = [next(rounds), next(rounds)]
    with pytest.raises(RoundError, match="was tried 2 times, and fewer than 3 nodes counted"):
        next(rounds)
    assert [(each.round, each.accepted) for each in reports] == [(1, False), (1, False)]
    assert reports[0].asked != reports[1].asked  # others are drawn, who may be there
    assert bits(made.server.office.store.state) == state
    made.link.faults = {}
    assert [each.accepted for each in made.coordinator().rounds(1)] == [True]


def test_an_algorithm_that_needs_everyone_waits_for_everyone(tmp_path: Path) -> None:
    made = Deployment("fedpd", tmp_path)
    made.link.faults = {"2": silent}
    assert not made.server.step().accepted
    made.link.faults = {}
    assert made.server.step().accepted


def private(sampler: fs.sampling.Sampler) -> fs.types.Algorithm:
    stages = fs.privacy.central(1.0, 0.5, sampler)
    work = fs.Work(steps=2, batch=4)
    return fs.recipes.fedavg(MODEL, optax.sgd(0.3), work, weights="uniform", stages=stages)


def test_noise_and_its_denominator_do_not_depend_on_who_came(tmp_path: Path) -> None:
    """With the simulation's seed for a secret: the simulation of the clients that counted, whose
    mean is over the same fixed number; also when nobody came at all."""
    sampler = fs.sampling.poisson(5)
    made = Deployment("private", tmp_path, private(sampler), sampler=sampler)
    reports = [made.server.step()]
    greedy = tampered(lambda reply: reply[:-4] + np.float32(2).tobytes())
    made.link.faults = {"0": late, "1": greedy, "2": greedy}
    reports.append(made.server.step())
    assert "beyond the norm" in next(iter(reports[1].excluded.values()))
    made.link.faults = dict.fromkeys(map(str, range(7)), silent)
    reports.append(made.server.step())
    assert all(report.accepted for report in reports)
    assert reports[2].counted == ()
    counted = [[int(name) for name in report.counted] for report in reports]
    run = fs.simulate(made.method, made.population, sampler=sampler, seed=SEED, engine="map")
    run.planner.capacity = dict(made.server.office.room)
    run.cohort = lambda round: np.array(counted[round], np.int64)
    list(run.rounds(3))
    assert made.same(run)


def test_the_servers_noise_hangs_on_a_secret_that_no_letter_has(tmp_path: Path) -> None:
    sampler = fs.sampling.uniform(7)  # everybody: what differs is the noise alone
    method = private(sampler)
    same, other, again = (
        Deployment("private", tmp_path / name, method, sampler=sampler, secret=secret)
        for name, secret in (("a", SEED), ("b", None), ("b", None))
    )
    file = tmp_path / "b" / "server" / "secret"
    assert file.stat().st_mode & 0o777 == 0o600
    secret = int(file.read_text(), 16)
    said: list[bytes] = []
    deliver = other.link.exchange
    other.link.exchange = lambda sent, deadline: said.extend(sent.values()) or deliver(sent, None)
    for made in (same, other, again):
        made.server.step()
    assert bits(same.server.office.store.state) != bits(other.server.office.store.state)
    assert bits(again.server.office.store.state) == bits(other.server.office.store.state)
    words = [secret.to_bytes(8, order) for order in ("little", "big")]
    assert not any(word in letter for word in words for letter in said)
    file.unlink()
    with pytest.raises(CheckpointError, match="secret is gone"):
        other.coordinator()


def test_who_is_drawn_is_a_secret_where_it_hides_clients(tmp_path: Path) -> None:
    sampler = fs.sampling.poisson(4)
    made = Deployment("private", tmp_path, private(sampler), sampler=sampler, secret=2**63 + 5)
    drawn = [tuple(map(int, made.server.step().asked)) for _ in range(4)]
    open_to_all = [tuple(sampler.cohort(SEED, round, np.ones(7))) for round in range(4)]
    assert drawn != open_to_all


def test_clients_drawn_twice_count_twice(tmp_path: Path) -> None:
    sampler = fs.sampling.weighted(5)
    made = Deployment("fedavg", tmp_path, sampler=sampler)
    settings = {"engine": "map", "threads": 1, "seed": SEED}
    run = fs.simulate(made.method, made.population, sampler=sampler, **settings)
    assert any(len(set(run.cohort(round))) < 5 for round in range(3))
    run.planner.capacity = dict(made.server.office.room)
    for _ in range(3):
        made.server.step()
    list(run.rounds(3))
    assert made.same(run)


def test_a_coordinator_goes_on_and_refuses_a_checkpoint_of_another_run(tmp_path: Path) -> None:
    made = Deployment("fedavg", tmp_path)
    reports = list(made.server.rounds(2))
    sizes = sum(report.bytes_down for report in reports), sum(report.bytes_up for report in reports)
    schema = Schema.read(_kept(made.schema, tmp_path))
    assert schema.fingerprint() == made.schema.fingerprint()
    made.schema = schema
    server = made.coordinator()
    assert (server.round, *server.totals.values()) == (2, *sizes)
    assert bits(server.office.store.state) == bits(made.server.office.store.state)
    made.settings["seed"] = SEED + 1
    with pytest.raises(CheckpointError, match="belongs to another run: seed"):
        made.coordinator()


def _kept(schema: Schema, folder: Path) -> Path:
    schema.write(folder)
    return folder


def test_the_model_and_heat_come_from_what_nodes_said(tmp_path: Path) -> None:
    """The coordinator's heat is the population's, and its model's rows are those of any row id."""
    made = Deployment("fedsubavg", tmp_path)
    mine, theirs = made.schema.heat(MODEL), made.population.heat(MODEL)
    assert (mine.clients, mine.examples) == (theirs.clients, theirs.examples)
    assert all(np.array_equal(mine.ids[name], theirs.ids[name]) for name in theirs.ids)
    assert all(np.array_equal(mine.mass[name], theirs.mass[name]) for name in theirs.mass)
    made.server.step()
    run = made.simulation([[*range(7)]])
    list(run.rounds(1))
    rows = {"w": np.arange(24)}
    assert bits(made.server.params(rows)) == bits(run.params(rows))


def test_a_node_need_not_know_the_heat(tmp_path: Path) -> None:
    """What only the server computes with is not in the fingerprint, what a client does is."""
    population = people()
    columns = columns_of(MODEL, population)

    def fingerprint(rate: float, heat: fs.Heat, server: float) -> str:
        settings = {"work": fs.Work(steps=3, batch=4), "server": optax.sgd(server)}
        method = fs.recipes.fedsubavg(MODEL, optax.sgd(rate), heat=heat, **settings)
        return Program(method, columns).fingerprint

    all_of, own = population.heat(MODEL), population.subset(np.array([0, 3])).heat(MODEL)
    assert fingerprint(0.1, all_of, 1.0) == fingerprint(0.1, own, 0.5)
    assert fingerprint(0.1, all_of, 1.0) != fingerprint(0.2, all_of, 1.0)


def test_nodes_that_cannot_be_believed_are_not_registered(tmp_path: Path) -> None:
    made = Deployment("fedavg", tmp_path)

    def about(change: dict[str, object]) -> Fault:
        def write(reply: bytes) -> bytes:
            letter = unpack(reply)
            size = int.from_bytes(letter.body[:4], "little")
            text = json.dumps(json.loads(letter.body[4 : 4 + size]) | change).encode()
            body = len(text).to_bytes(4, "little") + text + letter.body[4 + size :]
            return letter._replace(body=body).pack()

        return tampered(write)

    ends = tampered(lambda reply: reply[:-4] + b"\xff\xff\xff\xff")
    made.link.faults = {
        "0": silent,
        "1": about({"number": 2}),
        "3": about({"examples": -1}),
        "4": about({"columns": {"x": ["float", [2**40]]}}),
        "5": ends,
        "6": tampered(lambda reply: reply + bytes(1 << 20)),
    }
    refused = register(made.link, MODEL).refused
    assert set(refused) == set("0123456")
    assert "did not answer" in refused["0"]
    assert "the number 2, too" in refused["1"]
    assert refused["2"] == refused["1"]
    assert "-1 examples, where" in refused["3"]
    assert "a column that is none" in refused["4"]
    assert "not ascending ids below 24" in refused["5"]
    assert "are the most" in refused["6"]
    made.link.faults = {"4": about({"columns": {"x": ["float", [2]]}})}
    assert "most nodes have" in register(made.link, MODEL).refused["4"]
    made.link.faults = dict.fromkeys(map(str, range(7)), silent)
    schema = register(made.link, MODEL)
    with pytest.raises(InputError, match="no node has any examples"):
        Coordinator(made.program, schema, made.link, sampler=fs.sampling.full())


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    made = Deployment("fedavg", tmp_path)
    columns = columns_of(MODEL, made.population)
    hiding = fs.stage.clip(1.0)._replace(rows="union")
    told = fs.recipes.fedavg(MODEL, optax.sgd(0.3), weights="uniform", stages=[hiding])
    with pytest.raises(InputError, match="numbers that a secure sum cannot add up"):
        Program(told, columns)
    for settings, why in (
        ({"sampler": fs.sampling.full(), "spare": 1}, "spare nodes go with"),
        ({"sampler": fs.sampling.full(), "least": 8}, "there are 7 nodes"),
        ({"sampler": fs.sampling.full(), "seed": -1}, "give a whole number"),
    ):
        with pytest.raises(InputError, match=why):
            Coordinator(made.program, made.schema, made.link, **settings)
    with pytest.raises(InputError, match="a node is one client"):
        Node(made.program, made.population, tmp_path)


ONLY_READ = {"recover": fs.Work(steps=2, batch=2), "work": fs.Work(steps=1, batch=1)}


@pytest.mark.parametrize(
    "server", [optax.adagrad(0.1), pytest.param(optax.sgd(0.5), marks=pytest.mark.every)]
)
def test_rows_that_are_only_read_do_not_move(server: Any, tmp_path: Path) -> None:
    method = recon(**ONLY_READ, server=server)(MODEL, people())
    made = Deployment("recon", tmp_path, method)
    run = made.simulation([[*range(7)]] * 3)
    list(made.server.rounds(3))
    list(run.rounds(3))
    assert made.same(run)


def test_rows_that_are_only_read_must_not_move(tmp_path: Path) -> None:
    """Nobody tells the server of them, so momentum would leave out what a simulation moves."""
    for server in (optax.sgd(0.5, momentum=0.9), optax.adam(0.1)):
        method = recon(**ONLY_READ, server=server)(MODEL, people())
        with pytest.raises(InputError, match="a server optimizer without momentum"):
            Deployment("recon", tmp_path / "refused", method)


@pytest.mark.parametrize("name", few(["fedavg-topk", "everything", "mime"], "fedavg-topk", "mime"))
def test_bytes_of_any_kind_are_refused_and_never_an_error(name: str, tmp_path: Path) -> None:
    """Codes and surveys too: whatever single bytes are changed, a reply counts or is left out."""
    made = Deployment(name, tmp_path)
    rng = np.random.default_rng(1)

    def spoil(reply: bytes) -> bytes:
        data = bytearray(reply)
        for place in rng.integers(letters.HEAD.size, len(data), 3):
            data[place] = rng.integers(256)
        return bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.3 else data)

    made.link.faults = dict.fromkeys("12345", tampered(spoil))
    left = 0
    for _ in range(12):
        report = made.server.step()
        left += len(report.excluded)
        leaves = bits(made.server.office.store.state)
        assert report.accepted
        assert all(np.isfinite(np.frombuffer(leaf, np.float32)).all() for leaf in leaves if leaf)
    assert left > 20


def test_a_reply_after_the_deadline_is_dropped() -> None:
    class Slow:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def receive(self, letter: bytes) -> bytes:
            time.sleep(self.seconds)
            return letter

    link = InProcess({"quick": Slow(0), "slow": Slow(0.3)})
    letters = dict.fromkeys(("quick", "slow"), b"letter")
    assert list(link.exchange(letters, 0.2)) == ["quick"]
    assert list(link.exchange(letters, None)) == ["quick", "slow"]


def test_the_page_runs_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (pytestconfig.rootpath / "docs" / "how-to" / "deploy.md").read_text()
    names: dict[str, object] = {}
    exec(page.split("```python\n")[-1].split("```")[0], names)
    assert names["report"].round == 5
    assert names["loss"].shape == (1,)
    assert Schema.read("server").fingerprint() == names["schema"].fingerprint()
