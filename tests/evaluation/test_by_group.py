"""Figures by groups of clients: which groups there are, and their means."""

import numpy as np

import fedslice as fs
from fedslice.evaluation.by_group import by_columns, by_size, by_turns
from fedslice.evaluation.scores import Scores


def test_clients_are_in_thirds_by_what_they_train_on():
    sizes = [1, 9, 2, 8, 3, 7]
    train = fs.Population.from_arrays(np.repeat(np.arange(6), sizes), x=np.zeros(30))
    test = fs.Population.from_arrays(np.arange(6), x=np.zeros(6))
    found = by_size(test, train)
    assert found.of.tolist() == [0, 2, 0, 2, 1, 1]
    assert found.names[1] == "medium, 3 to 7 examples"
    assert found.sizes.tolist() == [2, 2, 2]
    scores = Scores({}, {"auc": np.array([0.5, 0.9, np.nan, 0.7, 0.6, 0.8])})
    assert found.means(scores)["auc"] == [0.5, (0.6 + 0.8) / 2, (0.9 + 0.7) / 2]


def test_clients_that_do_not_train_are_as_large_as_they_are():
    train = fs.Population.from_arrays([7, 7, 7], x=np.zeros(3))
    test = fs.Population.from_arrays([0, 1, 1, 2, 2, 2], x=np.zeros(6))
    assert by_size(test, train).of.tolist() == [0, 1, 2]


def test_clients_of_one_size_stay_together():
    people = fs.Population.from_arrays(np.repeat(np.arange(4), [2, 2, 2, 5]), x=np.zeros(11))
    assert by_size(people, people).of.tolist() == [0, 0, 0, 1]
    assert by_size(people, people).names == ("small, 2 examples", "large, 5 examples")


def test_a_client_without_examples_is_in_no_group():
    people = fs.Population.from_arrays([0, 0, 1], x=[1, 1, 2]).select(np.array([1, 1, 0], bool))
    assert by_size(people, people).of.tolist() == [0, -1]


def test_columns_that_are_the_same_for_all_of_a_client_make_groups():
    names = np.array(["gender=F", "gender=M", "film=A", "film=B"])
    ids = np.array([[0, 2], [0, 3], [1, 2], [1, 2], [0, 3]])
    people = fs.Population.from_arrays([5, 5, 6, 6, 7], {"ids": names}, ids=ids, y=np.ones(5))
    found = by_columns(people)
    assert list(found) == ["gender"]
    assert found["gender"].names == ("F", "M")
    assert found["gender"].of.tolist() == [0, 1, 0]


def test_neither_a_name_of_each_client_nor_what_varies_is_a_group():
    people = fs.Population.from_arrays(
        [0, 0, 1, 1], own=[3, 3, 4, 4], item=[1, 2, 1, 2], share=[0.5, 0.5, 0.1, 0.1]
    )
    assert by_columns(people) == {}


def test_movielens_tells_gender_and_age():
    task = fs.tasks.movielens_lr.synthetic(scale=0.02)
    found = by_columns(task.test)
    assert found["gender"].names == ("F", "M")
    assert len(found["age"].names) == 7
    assert found["gender"].sizes.sum() == (task.test.counts > 0).sum()


def test_turns_are_those_of_the_clients_of_the_same_names():
    train = fs.Population.from_arrays([30, 10, 20], x=np.zeros(3))
    test = fs.Population.from_arrays([20, 30], x=np.zeros(2))
    times = np.zeros(3, int)
    times[train.clients == 20], times[train.clients == 30] = 8, 2
    found = by_turns(test, train, times)
    assert [found.names[group] for group in found.of[np.argsort(test.clients)]] == [
        "sometimes, 8 rounds",
        "seldom, 2 rounds",
    ]
    strangers = fs.Population.from_arrays([40], x=np.zeros(1))
    assert by_turns(strangers, train, times) is None
