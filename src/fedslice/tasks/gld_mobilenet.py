"""Landmarks of the Field Guide (Wang et al. 2021): GLD-23k and GLD-160k, photographers as clients,
MobileNetV2.

Hsu et al., "Federated Visual Classification with Real-World Data Distribution" (2020), from the
Google Landmarks Dataset v2.  GLD-160k has 164,172 training images of 2,028 landmarks by 1,262
photographers and 19,526 test images; GLD-23k, a part of it, 23,080 of 203 by 233, and 1,959.  The
test images belong to nobody.  Each image is cut to its middle square and scaled to 128 x 128; there
is no augmentation.  The batch size, 16, and the size of the images are ours.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError
from fedslice.files.guard import bounded, csv_rows, shown
from fedslice.model import Model
from fedslice.models.mobilenet import mobilenet2
from fedslice.tasks.base import Task, Workload
from fedslice.tasks.readers import images
from fedslice.tasks.readers.cache import Arrays, cached
from fedslice.tasks.readers.files import File, locate

NAME = "gld-mobilenet"
SIDE = 128
CLIENTS, EXAMPLES, TESTS, LABELS = 233, 23_080, 1_959, 203
NEEDS = (
    "Landmarks is mini_gld_train_split.csv and mini_gld_test.csv of"
    " https://storage.googleapis.com/tff-datasets-public/ (GLD-23k), or federated_train.csv and"
    " test.csv of landmarks-user-160k.zip, linked from"
    " https://github.com/google-research/google-research/tree/master/federated_vision_datasets"
    " (GLD-160k); and, in the same folder or below it, the images that they name, IMAGE_ID.jpg,"
    " from https://github.com/cvdfoundation/google-landmark."
)
PAIRS = (
    ("mini_gld_train_split.csv", "mini_gld_test.csv"),
    ("gld23k_user_dict_train.csv", "gld23k_user_dict_test.csv"),
    ("federated_train.csv", "test.csv"),
    ("gld160k_user_dict_train.csv", "gld160k_user_dict_test.csv"),
)
SETTINGS = {"cohort": 10, "epochs": 1, "batch": 16, "weights": "examples"}
LEARNING_RATES = {"": 0.1, "fedadam": 0.01}
ALONE = {"fedadam": {"server_rate": 10**-2.5}}  # GLD-23k
LARGE_RATES = {"": 10**-1.5}  # GLD-160k
SMALL_RATES = {"": 0.01}  # for narrow models of small images; ours
PUBLISHED = {
    "GLD-23k, FedAvg, client and server rate": "0.1, 1",
    "GLD-23k, FedAdam, client and server rate": "0.01, 10^-2.5",
    "GLD-160k, FedAvg, client and server rate": "10^-1.5, 1",
    "GLD-23k, varied": "1, 2, 4, 8, 16 local epochs; 10, 20, 60 clients a round",
    "GLD-160k, varied": "10, 40, 80 clients a round",
    "results": "curves only",
}
# of images a client (log), of landmarks' fame, of clients' landmarks
_SPREAD, _TAIL, _TASTE = (0.8, 0.7, 5.0)


def synthetic(seed: int = 0, scale: float = 1.0) -> Task:
    """The task on generated images; ``scale`` multiplies clients and images, its root landmarks and
    the model's width.

    Matched at scale 1: clients, training and test images and landmarks of GLD-23k, each landmark in
    both sets, and the model.  Only totals are published; what is made of them is ours: images a
    client are log-normal (deviation 0.8 of the logarithm), the landmarks' fame falls as rank^-0.7,
    a client's shares of them are a draw of Dirichlet(5 x fame), so that most clients have 10 to 25
    landmarks.  Not matched: what is in the images; a landmark is a smooth texture (see
    :func:`fedslice.tasks.readers.images.paint`).  Images have 32 times the nearest whole number to
    4 root(scale) pixels a side, at most 128; the model's width is root(scale), from 0.25 to 1;
    below scale 1 the client rate is 0.01.

    >>> task = synthetic(scale=0.02)
    >>> len(task.train), task.train.examples, task.test.examples
    (5, 462, 39)
    """
    if round(CLIENTS * scale) < 2:
        raise InputError(f"scale={scale} leaves fewer than 2 clients: use a scale of at least 0.01")
    rng = np.random.default_rng(seed)
    owner, label, tests = _labels(rng, scale)
    side = 32 * min(4, max(1, round(4 * scale**0.5)))
    width = min(1.0, max(0.25, scale**0.5))
    classes = round(LABELS * scale**0.5)
    textures = images.textures(rng, classes, side)
    train = Population.from_arrays(owner, image=images.paint(rng, label, textures), label=label)
    test = images.pooled(image=images.paint(rng, tests, textures), label=tests)
    made = (
        f"generated data, seed {seed}, scale {scale:g}, images of {side} x {side}, model width"
        f" {width:.2g}"
    )
    return _task(
        mobilenet2(classes, width), train, test, LEARNING_RATES if scale >= 1 else SMALL_RATES, made
    )


def _labels(
    rng: np.random.Generator, scale: float
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Client and landmark of each training image, by client, and the test images' landmarks."""
    clients, examples, tests = (round(number * scale) for number in (CLIENTS, EXAMPLES, TESTS))
    labels = round(LABELS * scale**0.5)
    share = rng.lognormal(0, _SPREAD, clients)
    edges = np.rint(np.append(0, np.cumsum(share)) / share.sum() * (examples - clients)).astype(
        np.int64
    )
    sizes = np.diff(edges) + 1  # nobody has none
    fame = np.arange(1, labels + 1) ** -_TAIL
    fame /= fame.sum()
    counts = rng.multinomial(sizes, rng.dirichlet(_TASTE * fame, clients))
    owner = np.repeat(np.arange(clients, dtype=np.int32), sizes)
    label = np.repeat(np.tile(np.arange(labels, dtype=np.int32), clients), counts.reshape(-1))
    once = min(labels, examples)
    label[rng.choice(examples, once, replace=False)] = np.arange(once)  # every landmark is there
    held = np.searchsorted(np.cumsum(fame), (np.arange(tests) + 0.5) / tests).astype(np.int32)
    return owner, label, held


def load(path: str | Path, side: int = SIDE) -> Task:
    """The task on Landmarks: a folder with the two CSV files and the images, at any depth, or the
    training CSV in it.

    The images are read once; scaled to ``side``, they are kept as bytes on disk and memory-mapped
    from then on.
    """
    data = _read(Path(path), side)
    train = Population.from_arrays(data["owner"], image=data["image"], label=data["label"])
    train = Population(train.columns, train.offsets, data["clients"], train.names)
    test = images.pooled(image=data["test_image"], label=data["test_label"])
    classes = 1 + int(max(data["label"].max(), data["test_label"].max(initial=0)))
    rates = LEARNING_RATES if classes <= LABELS else LARGE_RATES
    return _task(mobilenet2(classes), train, test, rates, str(path))


def _task(
    model: Model, train: Population, test: Population, rates: dict[str, float], source: str
) -> Task:
    settings = {**SETTINGS, "cohort": min(10, len(train))}
    alone = ALONE if rates is LEARNING_RATES else {}
    return Task(
        NAME, model, train, test, settings, rates, None, PUBLISHED, source, algorithms=alone
    )


def _read(path: Path, side: int) -> Arrays:
    train_file, test_file = _splits(path)
    train = _table(train_file, ("user_id", "image_id", "class"))
    test = _table(test_file, ("image_id", "class"))
    names, owner = np.unique(_shortest(train["user_id"]), return_inverse=True)
    order = np.argsort(owner, kind="stable")
    parts = {"image": train["image_id"][order], "test_image": test["image_id"]}
    files = _find(path if path.is_dir() else path.parent, parts)

    def build() -> Arrays:
        return {
            **{name: images.pictures(found, side) for name, found in files.items()},
            "owner": owner[order].astype(np.int32),
            "label": _numbers(train_file, train["class"])[order],
            "test_label": _numbers(test_file, test["class"]),
            "clients": names.astype(np.str_),
        }

    recipe = f"gld 1, side {side}, {images.signature([*files['image'], *files['test_image']])}"
    return cached([train_file, test_file], recipe, build)


def _splits(path: Path) -> tuple[File, File]:
    for pair in PAIRS:
        try:
            found = locate(path, *pair, needs=NEEDS)
        except MissingDataError:
            continue
        return found[pair[0]], found[pair[1]]
    raise MissingDataError(f"no pair of Landmarks CSV files in {path}. {NEEDS}")


def _table(file: File, wanted: tuple[str, ...]) -> dict[str, NDArray[np.str_]]:
    """The wanted columns of a CSV file, whatever their order."""
    rows = list(csv_rows(io.StringIO(file.text()), file))
    header = [name.strip() for name in rows[0][1]] if rows else []
    if missing := [name for name in wanted if name not in header]:
        there = ", ".join(header)[:200] or "nothing"
        raise InputError(f"{file} has no column {', '.join(missing)}, but {there}. {NEEDS}")
    for number, row in rows:
        if len(row) != len(header):
            wrong = f"expected {len(header)} fields, got {shown(','.join(row))}"
            raise InputError(
                f"{file} line {number}: {wrong}. If it is damaged or cut off, download it again"
            )
    if len(rows) == 1:
        raise InputError(f"{file} names no images. {NEEDS}")
    return {
        name: bounded((row[header.index(name)] for _, row in rows[1:]), file) for name in wanted
    }


def _shortest(names: NDArray[np.str_]) -> NDArray[Any]:
    """Whole numbers where all names are, so that clients are in their order: 2 before 10."""
    return names.astype(np.int64) if np.char.isdecimal(names).all() else names


def _numbers(file: File, names: NDArray[np.str_]) -> NDArray[np.int32]:
    if not np.char.isdecimal(names).all():
        wrong = str(names[~np.char.isdecimal(names)][0])
        raise InputError(f"{file} has class {shown(wrong)}: classes must be whole numbers from 0")
    return names.astype(np.int32)


def _find(folder: Path, parts: dict[str, NDArray[np.str_]]) -> dict[str, list[Path]]:
    """The file of each image, in the order of the tables."""
    there = {file.stem: file for file in images.below(folder)}
    wanted = np.unique(np.concatenate(list(parts.values()))).tolist()
    if missing := [name for name in wanted if name not in there]:
        raise MissingDataError(
            f"{len(missing):,} of {len(wanted):,} images are not in {folder} or below, the first"
            f" {missing[0]}.jpg. {NEEDS}"
        )
    return {part: [there[name] for name in names.tolist()] for part, names in parts.items()}


WORKLOAD = Workload(
    NAME,
    "which landmark is on the photograph; MobileNetV2 with group norm, 2,483,915 parameters, 203"
    " landmarks, 233 photographers, 23,080 images (generated by default: a tenth of it, images of"
    " 32 x 32, a third of the width)",
    synthetic,
    load,
    needs=NEEDS,
    files=tuple(pair[0] for pair in PAIRS),
    scale=0.1,
    statistics={
        "clients": "233 (GLD-160k: 1,262)",
        "examples": "23,080 train, 1,959 test (164,172 and 19,526)",
        "examples per client": "99 (130)",
        "labels": "203 (2,028)",
        "parameters": "2,483,915 (4,821,740)",
    },
    settings=SETTINGS,
    learning_rates=LEARNING_RATES,
    published=PUBLISHED,
    algorithms=ALONE,
    algorithm="fedavg",
)
