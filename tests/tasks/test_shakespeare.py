"""Shakespeare: both file formats and what can be wrong with them; generated speeches against the
published figures."""

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError
from fedslice.tasks import shakespeare_lstm as shakespeare
from fedslice.tasks import shakespeare_words as words
from fedslice.tasks.base import Task
from fedslice.tasks.generators.shakespeare import generate

SPEECHES = ["Who's there? Nay, answer me: " * 3, "Caf\xe9 & 1{}!", "x" * 100]
PLAYS = [
    ("hamlet", "", "HAMLET"),
    ("hamlet", "", None),
    # no speech: it is before the first act
    ("hamlet", "FRANCISCO", "a soldier, of whom only the cast is told " * 9),
    ("hamlet", "ACT I", None),
    ("hamlet", "SCENE I", "Elsinore. A platform before the castle."),
    ("hamlet", "", "[FRANCISCO at his post. Enter"),
    ("hamlet", "", "to him BERNARDO]"),
    ("hamlet", "BERNARDO", SPEECHES[0]),
    ("hamlet", "", None),
    ("hamlet", "FRANCISCO", "[Aside]\t" + SPEECHES[1]),
    ("hamlet", "", "\t       And then [Exit] the \"rest\" of it,"),
    ("hamlet", "", "[Exeunt all,"),
    ("hamlet", "", "with drums]"),
    ("hamlet", "SCENE II", "Elsewhere."),
    ("hamlet", "FRANCISCO ", SPEECHES[2]),
    ("hamlet", "Ghost", "[Within]"),
    ("hamlet", "Ghost", "Mark me."),
    ("macbeth", "ACT I", None),
    ("macbeth", "BERNARDO", SPEECHES[2]),
    ("glossary", "ABHOR", "disgust, " * 30),
]  # fmt: skip
FRANCISCO = f'\x02{SPEECHES[1]}\nAnd then the "rest" of it,\x03\x02{SPEECHES[2]}\x03'


def text_bytes(end: str = "\n") -> bytes:
    lines = []
    for number, (play, speaker, text) in enumerate(PLAYS):
        lines.append(f"{play}@{number}\t{speaker}" + ("" if text is None else f"\t{text}"))
    return (end.join(lines) + end).encode("latin-1")


def windows(text: str) -> dict[str, list[str]]:
    """LEAF's examples: 80 characters and the next one, from every place."""
    starts = range(len(text) - 80)
    return {"x": [text[i : i + 80] for i in starts], "y": [text[i + 80] for i in starts]}


def leaf_bytes(data: dict[str, dict[str, list[str]]]) -> bytes:
    return json.dumps({"users": list(data), "num_samples": [], "user_data": data}).encode()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def zipped(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("shakespeare.txt", text_bytes())
    return path


def spoken(people: Population, role: str) -> str:
    """What a role says: the first character, then what follows each."""
    mine = people.owners == people.clients.tolist().index(role)
    following = people.columns["next"][mine]
    marks = [*shakespeare.CHARACTERS, "?", "\x02", "\x03", "?"]
    return marks[people.columns["tokens"][mine][0, 0]] + "".join(
        marks[i] for i in following[following >= 0]
    )


def unknown(text: str) -> str:
    """As it comes back: what is not among the characters is lost."""
    return "".join(
        letter if letter in shakespeare.CHARACTERS + "\x02\x03" else "?" for letter in text
    )


FORMS: dict[str, Callable[[Path], Path]] = {
    "file": lambda folder: put(folder / "plays.tsv", text_bytes()),
    "folder": lambda folder: put(folder / "shakespeare.txt", text_bytes()).parent,
    "gzip": lambda folder: put(folder / "shakespeare.txt.gz", gzip.compress(text_bytes())),
    "zip": lambda folder: zipped(folder / "shakespeare.txt.zip"),
    "CRLF and BOM": lambda folder: put(
        folder / "plays.tsv", b"\xef\xbb\xbf" + text_bytes("\r\n") + b"\r\n"
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_plain_text(form: str, tmp_path: Path) -> None:
    task = shakespeare.load(FORMS[form](tmp_path))
    # the ghost says too little
    roles = ["hamlet: BERNARDO", "hamlet: FRANCISCO", "macbeth: BERNARDO"]
    assert task.train.clients.tolist() == task.test.clients.tolist() == roles
    whole = spoken(task.train, roles[1]) + spoken(task.test, roles[1])[1:]
    assert whole == unknown(FRANCISCO)
    first = task.train.columns["tokens"][0]
    assert task.train.names["tokens"][first[:5]].tolist() == ["<begin>", "W", "h", "o", "'"]
    assert task.train.columns["next"][0][:-1].tolist() == first[1:].tolist()


def test_test_comes_last_and_nothing_is_lost(tmp_path: Path) -> None:
    text = "".join(chr(ord("a") + (i * i) % 26) for i in range(80 * 11 - 20))
    content = f"p@0\tACT I\np@1\tX\t{text}\np@2\tY\tshort\n".encode()
    task = shakespeare.load(put(tmp_path / "a.txt", content))
    assert (task.train.counts.tolist(), task.test.counts.tolist()) == ([9], [2])
    assert spoken(task.train, "p: X") + spoken(task.test, "p: X")[1:] == f"\x02{text}\x03"
    padding = task.test.columns["next"] < 0
    assert np.array_equal(padding, task.test.columns["tokens"] < 0)
    # begin and end were added; nothing follows the end
    assert padding.sum() == 80 * 11 - len(text) - 1
    assert not padding[:, 0].any()


def test_leaf(tmp_path: Path) -> None:
    texts = {
        "ROMEO": "It is the east, and Juliet is the sun. " * 12,
        "JULIET": "O Romeo, Romeo! \n{}" * 20,
        "Nurse": "a" * 81,
    }
    put(
        tmp_path / "all_data.json",
        leaf_bytes({name: windows(text) for name, text in texts.items()}),
    )
    task = shakespeare.load(tmp_path)
    assert task.train.clients.tolist() == ["ROMEO", "JULIET"]
    for role in ("ROMEO", "JULIET"):
        assert spoken(task.train, role) + spoken(task.test, role)[1:] == unknown(texts[role])
    # ceil((468 - 1) / 80) = 6, ceil((380 - 1) / 80) = 5, less a fifth
    assert task.train.counts.tolist() == [5, 4]


def test_leaf_keeps_its_split_and_its_gaps(tmp_path: Path) -> None:
    text = "".join(chr(ord("a") + (i * i) % 26) for i in range(400))
    some = windows(text)
    late = {key: values[240:] for key, values in some.items()}
    gap = {key: [*values[:50], *values[130:180]] for key, values in some.items()}
    put(tmp_path / "train" / "1.json", leaf_bytes({"A": gap}))
    nothing: dict[str, list[str]] = {"x": [], "y": []}
    put(tmp_path / "test" / "2.json", leaf_bytes({"silent": nothing, "A": late, "B": late}))
    task = shakespeare.load(tmp_path)
    assert task.train.clients.tolist() == ["A"]
    assert task.test.clients.tolist() == ["A", "B"]
    rows = [row[row >= 0] for row in task.train.columns["next"]]
    alphabet = np.array([*shakespeare.CHARACTERS])
    assert ["".join(alphabet[row]) for row in rows] == [
        text[1:81],
        text[81:130],
        text[131:211],
        text[211:260],
    ]


def test_second_start_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "shakespeare.txt", text_bytes())
    first = shakespeare.load(path)
    monkeypatch.setattr("fedslice.tasks.readers.shakespeare._read_text", None)
    again = shakespeare.load(path)
    assert np.array_equal(again.train.columns["tokens"], first.train.columns["tokens"])


WRONG = {
    "cut off": ("a.txt", text_bytes() + b"hamlet@12", "line 21: expected play@offset"),
    "another format": ("a.txt", b"To be, or not to be\n", "line 1"),
    "nothing": ("a.txt", b"", "is empty"),
    "no play": ("a.txt", b"glossary@1\tABHOR\tdisgust\n", "no speech after a line with ACT"),
    "too short": ("a.txt", b"p@0\tACT I\np@1\tX\tWell.\n", "no role has two sequences"),
    "gzip cut off": ("a.txt.gz", gzip.compress(text_bytes())[:-20], "download it again"),
    "JSON cut off": ("a.json", leaf_bytes({"A": windows("a" * 200)})[:-9], "download it again"),
    "windows of several lengths": (
        "a.json",
        leaf_bytes({"A": {"x": ["ab", "b"], "y": ["c", "d"]}}),
        "'A': x must be",
    ),
    "not text": ("a.json", leaf_bytes({"A": {"x": [1], "y": [2]}}), "'A': x must be"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str, tmp_path: Path) -> None:
    name, content, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        shakespeare.load(put(tmp_path / name, content))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"Shakespeare is shakespeare\.txt"):
        shakespeare.load(tmp_path)


# -- generated speeches ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return generate(seed=0)


def test_sizes_are_the_published_ones(texts: list[str]) -> None:
    lengths = np.array([len(text) for text in texts])
    assert len(lengths) == 1129
    assert lengths.sum() == pytest.approx(4_226_158, rel=0.001)
    assert lengths.std() == pytest.approx(6212, rel=0.05)
    # of the plays
    assert np.percentile(lengths, [25, 50, 75]) == pytest.approx([383, 1223, 4355], rel=0.05)
    assert lengths.min() >= 82


def test_lines_and_speeches(texts: list[str]) -> None:
    speeches = "".join(texts).split("\x03")
    lines = [line for speech in speeches for line in speech.removeprefix("\x02").split("\n")]
    assert np.mean([len(line) for line in lines]) == pytest.approx(39.6, rel=0.05)  # of the plays
    assert np.mean([len(speech) for speech in speeches]) == pytest.approx(138, rel=0.1)
    assert set("".join(texts)) <= {*shakespeare.CHARACTERS, "\x02", "\x03"}


def test_heat(texts: list[str]) -> None:
    heat = {letter: sum(letter in text for text in texts) for letter in sorted(set("".join(texts)))}
    assert heat["e"] == 1129
    # as in the plays, where 11 of 78 characters are known to three roles or fewer
    assert min(heat.values()) < 10
    # of the plays: 0.6
    assert np.mean([count / 1129 for count in heat.values()]) == pytest.approx(0.6, abs=0.2)


@pytest.mark.every
def test_roles_have_a_style(texts: list[str]) -> None:
    """A role's frequent words are frequent in its other half too, more than in other roles' of the
    same length."""
    long = [text for text in texts if len(text) > 8000][:40]
    halves = [(text[:4000].split(), text[4000:8000].split()) for text in long]

    def alike(one: list[str], two: list[str]) -> float:
        words = {word for word in one if one.count(word) >= 4}
        return sum(word in words for word in two) / len(two)

    own = [alike(one, two) for one, two in halves]
    others = [
        alike(one, two) for (one, _), (_, two) in zip(halves, halves[1:] + halves[:1], strict=True)
    ]
    assert np.mean(own) > np.mean(others) + 0.05


def test_seed_and_scale() -> None:
    assert generate(1, 0.02) == generate(1, 0.02) != generate(2, 0.02)
    small = generate(0, 0.04)
    assert len(small) == round(1129 * 0.04)
    # fewer roles, and shorter ones
    assert sum(map(len, small)) == pytest.approx(4_226_158 * 0.04 * 0.2, rel=0.01)
    with pytest.raises(InputError, match=r"at least 0\.01"):
        generate(0, 0.001)


def test_model_has_the_published_size_and_reads_the_columns() -> None:
    task = shakespeare.synthetic(scale=0.01)
    leaves = jax.tree.leaves(jax.eval_shape(task.model.init, jax.random.key(0)))
    table = task.model.tables["embedding"]
    assert sum(leaf.size for leaf in leaves) + table.rows * table.width == 820_522
    params = jax.eval_shape(task.model.init, jax.random.key(0)) | {"embedding": jnp.zeros((90, 8))}
    batch = {name: column[:7] for name, column in task.train.columns.items()}
    assert jax.eval_shape(task.model.loss, params, batch).shape == (7,)


def test_workload() -> None:
    workload = shakespeare.WORKLOAD
    assert (workload.name, workload.load) == ("shakespeare-lstm", shakespeare.load)
    task: Task = workload.synthetic(scale=workload.scale)
    assert len(task.train) == len(task.test) == 113
    assert task.settings == {"cohort": 10, "epochs": 1, "batch": 4, "weights": "examples"}


# -- words -----------------------------------------------------------------------------------------

ROLES = {
    f"role {n}": "Rosencrantz, the king! The king is dead: what -- Guildenstern? So it is."
    for n in range(20)
}


def play_bytes(roles: dict[str, str]) -> bytes:
    lines = ["hamlet@0\tACT I\t"]
    lines += [
        f"hamlet@{number}\t{name}\t{speech}"
        for number, (name, speech) in enumerate(roles.items(), 1)
    ]
    return ("\n".join(lines) + "\n").encode("latin-1")


def test_words_of_a_play(tmp_path: Path) -> None:
    """Cut at stops and dashes; common words by rank, others in buckets; a tenth of the roles is
    held out."""
    roles = {**ROLES, "silent": "Ay.", "rare": "Yorick is. Yorick was. The king, Yorick. So it is."}
    task = words.load(put(tmp_path / "shakespeare.txt", play_bytes(roles)))
    assert (len(task.train), len(task.test)) == (19, 2)
    assert not set(task.train.clients) & set(task.test.clients)
    assert "hamlet: silent" not in [*task.train.clients, *task.test.clients]
    names, held = task.train.names["tokens"], task.test
    first = held.columns["next"][held.offsets[0] : held.offsets[1]]
    spoken = [" ".join(names[row[(row >= 0) & (row < len(names) - 1)]]) for row in first]
    assert spoken == [
        "rosencrantz the king",
        "the king is dead",
        "what",
        "guildenstern",
        "so it is",
    ]
    assert held.columns["time"][:5].tolist() == [0, 1, 2, 3, 4]


def test_rare_words_have_buckets_and_are_classes_to_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "VOCABULARY", 4)
    path = put(tmp_path / "shakespeare.txt", play_bytes(ROLES))
    task = words.load(path, buckets=7)
    # ties by the alphabet
    assert task.train.names["tokens"].tolist() == ["is", "king", "the", "dead", "<sentence>"]
    first = {
        name: task.train.columns[name][0, :4].tolist() for name in ("tokens", "bucket", "next")
    }
    hashed = first["next"][0] - 5
    assert 0 <= hashed < 7
    assert first == {
        "tokens": [4, -1, 2, 1],
        "bucket": [-1, hashed, -1, -1],
        "next": [5 + hashed, 2, 1, 4],
    }
    assert task.model.local == ("buckets",)
    everywhere = words.load(path, buckets=7, local=False)
    assert everywhere.model.tables["buckets"].rows == 7
    assert everywhere.adaptation is None


def test_words_of_leaf_are_those_of_the_text(tmp_path: Path) -> None:
    said = (
        "The quality of mercy is not strain'd. It droppeth! As the gentle rain? From heaven; so "
        * 2
    )
    told = {f"PLAY_{number}": windows(said) for number in range(10)}
    task = words.load(put(tmp_path / "all_data.json", leaf_bytes(told)))
    assert (len(task.train), len(task.test)) == (9, 1)
    assert {"mercy", "strain'd"} <= set(task.train.names["tokens"].tolist())


@pytest.mark.parametrize(
    "roles", [{"a": "One. Two. Three. Four."}, {"a": "One.", "b": "Two. Three."}]
)
def test_too_few_words_are_refused(tmp_path: Path, roles: dict[str, str]) -> None:
    with pytest.raises(InputError, match="fewer than two roles have 4 sentences"):
        words.load(put(tmp_path / "shakespeare.txt", play_bytes(roles)))


def test_generated_roles_have_words_of_their_own() -> None:
    """A role repeats its rare words: they fill fewer buckets than as many words drawn evenly."""
    task = words.synthetic(scale=0.1)
    bucket, bounds = task.train.columns["bucket"], task.train.offsets
    used = [role[role >= 0] for role in np.split(bucket, bounds[1:-1])]
    evenly = [words.BUCKETS * (1 - (1 - 1 / words.BUCKETS) ** len(some)) for some in used]
    assert sum(len(np.unique(some)) for some in used) < 0.95 * sum(evenly)
    assert (task.settings["cohort"], words.WORKLOAD.algorithm) == (20, "fedrecon")
