"""A new user's items, from a trained model and a few ratings."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedslice.cli import main as cli
from fedslice.cli.export import Exported, Rows, write_model
from fedslice.cli.recommend import read_ratings, recommend
from fedslice.errors import InputError

NAMES = ["Alien (1979)", "Aliens (1986)", "Matrix, The (1999)", "Notting Hill (1999)",
         "Amélie (2001)", "Rare (1950)", "Titanic (1953)", "Titanic (1997)"]  # fmt: skip
HEAT = np.array([50, 40, 60, 30, 20, 2, 15, 90])


def model() -> Exported:
    """Two tastes: the first three films have one, the others the other; lengths differ."""
    vectors = np.zeros((8, 4), np.float32)
    vectors[:3, 0], vectors[3:, 1] = [2.0, 1.9, 1.8], [2.0, 1.9, 2.2, 1.7, 1.6]
    return Exported({}, {"item": Rows(np.arange(8), NAMES, HEAT, vectors)})


def test_against_least_squares() -> None:
    """Many SGD steps on consistent ratings find the vector that explains them: scores are u . q."""
    found = recommend(
        model(), {"Alien (1979)": 4.0, "Notting Hill (1999)": 2.0}, steps=2000, fewest=0
    )
    user = np.array([2.0, 1.0])
    vectors = model().tables["item"].values
    expected = vectors[:, :2] @ user
    assert {each.name for each in found} == set(NAMES) - {"Alien (1979)", "Notting Hill (1999)"}
    for each in found:
        assert each.score == pytest.approx(expected[NAMES.index(each.name)], abs=0.1)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


def test_taste_rated_items_and_rare_items() -> None:
    found = recommend(model(), {"Alien (1979)": 5.0, "Titanic (1997)": 1.0}, top=3)
    assert [each.name for each in found][:2] == ["Aliens (1986)", "Matrix, The (1999)"]
    everything = recommend(model(), {"Alien (1979)": 5.0}, top=100)
    assert "Rare (1950)" not in {each.name for each in everything}
    assert "Alien (1979)" not in {each.name for each in everything}
    assert "Rare (1950)" in {
        each.name for each in recommend(model(), {"Alien (1979)": 5.0}, top=100, fewest=2)
    }


@pytest.mark.parametrize(
    "name", ["the matrix", "The Matrix", "Matrix, The", "the matrix (1999)", "MATRIX, THE (1999)"]
)
def test_names_as_people_write_them(name: str) -> None:
    assert recommend(model(), {name: 5.0}) == recommend(model(), {"Matrix, The (1999)": 5.0})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Titanic", r"Titanic \(1953\) \| Titanic \(1997\)"),
        ("Notting Hil", "Notting Hill"),
        ("qqq", "no item 'qqq'$"),
    ],
)
def test_unknown_and_ambiguous_names_get_a_hint(name: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint):
        recommend(model(), {name: 5.0})


def test_bad_input() -> None:
    for ratings, options, words in [
        ({}, {}, "no ratings"),
        ({"Alien": float("nan")}, {}, "'Alien' has the rating nan: stars are above 0, up to 5"),
        ({"Alien": 55.0}, {}, "up to 5"),
        ({"Alien": -3.0}, {}, "above 0"),
        ({"Alien": 5.0}, {"top": 0}, "top=0"),
        ({"Alien": 5.0}, {"rate": -0.1}, "rate=-0.1"),
        ({"Alien": 5.0}, {"rate": 50.0}, "diverged at rate=50"),
        ({"Alien": 5.0}, {"fewest": 1000}, "no other item was rated by 1000 clients"),
        (
            {"Titanic": 5.0},
            {},
            r"knows several items 'Titanic': say which of Titanic \(1953\) | Titanic \(1997\)",
        ),
        ({"The Matrixx": 5.0}, {}, r"is it one of: Matrix, The \(1999\)\?"),
    ]:
        with pytest.raises(InputError, match=words):
            recommend(model(), ratings, **options)
    with pytest.raises(InputError, match="movielens-mf"):
        recommend(
            Exported({}, {"weight": Rows(np.arange(2), [], np.ones(2), np.ones(2))}), {"Alien": 5.0}
        )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "must name the columns"),
        (b"film;stars\nAlien;5\n", "must name the columns"),
        (b"title,rating\nAlien,five\n", "line 2"),
        (b"title,rating\nAlien\n", "line 2"),
        (b"title,rating\n,5\n", "line 2"),
        (b"title,rating\nAlien,5\nAliens,nan\n", "line 3"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "me.csv").write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_ratings(tmp_path / "me.csv")


def test_awkward_files(tmp_path: Path) -> None:
    file = tmp_path / "me.csv"
    file.write_bytes(b'\xef\xbb\xbfRating, Title\r\n5,"Matrix, The (1999)"\r\n\r\n3.5,Alien\r\n')
    assert read_ratings(file) == {"Matrix, The (1999)": 5.0, "Alien": 3.5}
    file.write_bytes("title,rating\nAmélie (2001),4\n".encode("latin-1"))
    assert read_ratings(file) == {"Amélie (2001)": 4.0}


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    used = {"reconstruct_steps": 60, "batch": 2}
    write_model(model()._replace(settings=used), tmp_path)
    # anybody may edit it: it is not asked
    (tmp_path / "settings.json").write_text('{"settings": {"batch": "x"}}')
    (tmp_path / "me.csv").write_text("title,rating\nAlien,5\nNotting Hill,1\n")
    asked = [
        "recommend",
        "--model",
        str(tmp_path),
        "--user",
        str(tmp_path / "me.csv"),
        "--top",
        "2",
    ]
    assert cli.main(asked) == 0
    shown = capsys.readouterr().out
    assert shown.index("Aliens (1986)") < shown.index("Matrix, The (1999)")
    assert cli.main([*asked, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in lines] == ["Aliens (1986)", "Matrix, The (1999)"]
    assert lines[0]["heat"] == 40
    assert (
        cli.main(
            ["recommend", "--model", str(tmp_path / "none"), "--user", str(tmp_path / "me.csv")]
        )
        == 2
    )
    assert "no trained model" in capsys.readouterr().err
    assert cli.main([*asked[:4], str(tmp_path / "none.csv")]) == 2
