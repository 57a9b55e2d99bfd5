"""Image models against independent convolutions, their sizes, and the loaders and generators of
both image tasks."""

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError
from fedslice.model import Model
from fedslice.models import layers
from fedslice.models.mobilenet import STAGES, mobilenet2
from fedslice.models.resnet import resnet18
from fedslice.tasks import cifar10_resnet, gld_mobilenet
from fedslice.tasks.readers import images
from fedslice.tasks.readers.cifar10 import BATCHES, read, unpickle
from fedslice.types import Array, Batch, Params

RNG = np.random.default_rng(0)


def count(model: Model) -> int:
    return sum(
        int(np.prod(leaf.shape))
        for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)))
    )


# -- layers and models -----------------------------------------------------------------------------


def lax_convolution(kernel: Any, x: Any, stride: int, groups: int = 1) -> Any:
    pad = (kernel.shape[0] - 1) // 2
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        ((pad, pad), (pad, pad)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def flax_norm(leaves: Params, x: Any) -> Any:
    norm = flax.linen.GroupNorm(num_groups=2, epsilon=1e-5)
    return norm.apply({"params": {"scale": leaves["scale"], "bias": leaves["shift"]}}, x)


@pytest.mark.parametrize(
    ("size", "stride", "side"), [(1, 2, 6), (3, 1, 5), (3, 2, 7), (3, 2, 8), (3, 2, 1)]
)
def test_convolutions_are_those_of_xla_with_their_gradients(
    size: int, stride: int, side: int
) -> None:
    x = jnp.asarray(RNG.normal(size=(2, side, side, 4)), jnp.float32)
    full = jnp.asarray(RNG.normal(size=(size, size, 4, 6)), jnp.float32)
    each = jnp.asarray(RNG.normal(size=(size, size, 4)), jnp.float32)

    def both(convolve: Any, depthwise: Any) -> Any:
        def total(full: Any, each: Any, x: Any) -> Any:
            results = convolve(full, x, stride), depthwise(each, x, stride)
            return sum(jnp.sum(jnp.sin(result)) for result in results), results

        (_, results), grads = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))(
            full, each, x
        )
        return (*results, *grads)

    ours = both(layers.convolve, layers.depthwise)
    theirs = both(
        lax_convolution, lambda kernel, x, stride: lax_convolution(kernel[:, :, None], x, stride, 4)
    )
    for found, wanted in zip(ours, theirs, strict=True):
        assert found.shape == wanted.shape
        assert np.allclose(found, wanted, atol=1e-4)


def test_group_norm_is_that_of_flax() -> None:
    x = jnp.asarray(RNG.normal(3, 2, size=(2, 5, 4, 6)), jnp.float32)
    leaves = {"scale": jnp.arange(6.0), "shift": jnp.ones(6)}
    assert np.allclose(layers.normalise(leaves, x), flax_norm(leaves, x), atol=1e-4)


def resnet_reference(params: Params, image: Any) -> Any:
    x = image / 127.5 - 1
    x = jax.nn.relu(
        flax_norm(params["stem"]["norm"], lax_convolution(params["stem"]["kernel"], x, 1))
    )
    for stage in range(4):
        for block in range(2):
            leaves, stride = (
                params[f"block{2 * stage + block + 1}"],
                2 if stage and not block else 1,
            )
            y = jax.nn.relu(
                flax_norm(leaves["norm1"], lax_convolution(leaves["kernel1"], x, stride))
            )
            y = flax_norm(leaves["norm2"], lax_convolution(leaves["kernel2"], y, 1))
            if stage and not block:
                x = flax_norm(leaves["norm3"], lax_convolution(leaves["shortcut"], x, 2))
            x = jax.nn.relu(x + y)
    return x.mean((1, 2)) @ params["head"]["weight"] + params["head"]["bias"]


def mobilenet_reference(params: Params, image: Any) -> Any:
    x = image / 127.5 - 1
    x = jax.nn.relu6(
        flax_norm(params["stem"]["norm"], lax_convolution(params["stem"]["kernel"], x, 2))
    )
    number = 0
    for expansion, _, repeats, stride in STAGES:
        for repeat in range(repeats):
            number += 1
            leaves, y = params[f"bottleneck{number}"], x
            if expansion > 1:
                y = jax.nn.relu6(
                    flax_norm(leaves["norm1"], lax_convolution(leaves["expand"], y, 1))
                )
            spatial = leaves["depthwise"][:, :, None]
            y = lax_convolution(spatial, y, 1 if repeat else stride, y.shape[-1])
            y = jax.nn.relu6(flax_norm(leaves["norm2"], y))
            y = flax_norm(leaves["norm3"], lax_convolution(leaves["project"], y, 1))
            x = x + y if repeat else y
    x = jax.nn.relu6(
        flax_norm(params["last"]["norm"], lax_convolution(params["last"]["kernel"], x, 1))
    )
    return x.mean((1, 2)) @ params["head"]["weight"] + params["head"]["bias"]


@pytest.mark.parametrize(
    ("model", "reference"),
    [
        pytest.param(resnet18(5, width=4), resnet_reference, id="resnet"),
        pytest.param(
            mobilenet2(5, width=0.3), mobilenet_reference, id="mobilenet", marks=pytest.mark.every
        ),
    ],
)
def test_models_are_those_of_the_papers(
    model: Model, reference: Callable[[Params, Any], Any]
) -> None:
    """The network from XLA's convolutions and flax's norms, with random numbers in all leaves."""
    leaves = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: RNG.normal(0.1, 0.5, leaf.shape).astype(np.float32), leaves)
    batch = {
        "image": jnp.asarray(RNG.integers(0, 256, (3, 40, 40, 3)), jnp.int32),
        "label": jnp.array([0, 4, 2]),
    }
    logits = jax.jit(reference)(params, batch["image"].astype(jnp.float32))
    wanted = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    loss = jax.jit(model.loss)
    assert np.allclose(loss(params, batch), wanted, rtol=1e-3, atol=1e-3)
    assert np.std(wanted) > 0.01
    head = jax.jit(lambda key: model.init(key)["head"])(jax.random.key(0))
    first = loss({**params, "head": head}, batch)
    assert np.allclose(first, np.log(5), atol=1e-5)  # the head starts at zero: even chances


def test_sizes_of_resnet() -> None:
    """3 x 3 convolutions without bias, two numbers a channel for each norm, a linear head."""

    def block(inner: int, outer: int) -> int:
        shortcut = inner * outer + 2 * outer if inner != outer else 0
        return 9 * inner * outer + 9 * outer * outer + 4 * outer + shortcut

    w = 64
    stages = sum(
        block(max(w, w * 2**s // 2), w * 2**s) + block(w * 2**s, w * 2**s) for s in range(4)
    )
    assert count(resnet18()) == 27 * w + 2 * w + stages + 512 * 10 + 10 == 11_173_962


def test_sizes_of_mobilenet() -> None:
    """Table 2 of Sandler et al., without biases, two numbers a channel for each norm; 3,504,872 for
    ImageNet."""
    total, channels = 27 * 32 + 2 * 32, 32
    for expansion, wanted, repeats, _ in STAGES:
        for _ in range(repeats):
            hidden = expansion * channels
            expand = channels * hidden + 2 * hidden if expansion > 1 else 0
            total += expand + 9 * hidden + 2 * hidden + hidden * wanted + 2 * wanted
            channels = wanted
    total += channels * 1280 + 2 * 1280
    assert total == 2_223_872
    for classes, published in ((1000, 3_504_872), (203, 2_483_915), (2028, 4_821_740)):
        assert count(mobilenet2(classes)) == total + 1281 * classes == published
    narrow = jax.eval_shape(mobilenet2(7, width=0.5).init, jax.random.key(0))
    assert narrow["stem"]["kernel"].shape[-1] == 16
    assert narrow["bottleneck2"]["project"].shape[-1] == 16  # 12, rounded to 8, would be below 90%
    assert narrow["last"]["kernel"].shape == (1, 1, 160, 1280)
    wide = jax.eval_shape(mobilenet2(7, width=1.4).init, jax.random.key(0))
    assert wide["last"]["kernel"].shape == (1, 1, 448, 1792)


def test_bad_widths_are_refused() -> None:
    with pytest.raises(InputError, match="5 channels cannot be normalised in 2 groups"):
        resnet18(width=5)
    with pytest.raises(InputError, match="positive multiplier"):
        mobilenet2(3, width=0)


@pytest.mark.every
def test_generated_images_can_be_learned() -> None:
    """One convolution, a norm and a head, trained on some images and asked about others."""
    rng = np.random.default_rng(0)
    label = np.arange(160) % 4
    image = images.paint(rng, label, images.textures(rng, 4, 16))
    kernel = layers.normal(jax.random.key(0), 3, 3, 3, 16)

    def logits(params: Params, batch: Batch) -> Array:
        x = layers.convolve(params["kernel"], layers.pixels(batch["image"]), 2)
        return jax.nn.relu(layers.normalise(params["norm"], x)).mean((1, 2)) @ params["head"]

    model = layers.classifier(
        lambda key: {"kernel": kernel, "norm": layers.norm(16), "head": jnp.zeros((16, 4))},
        logits,
        4,
    )
    people = Population.from_arrays(np.arange(160) // 10, image=image, label=label)
    train, test = people.split(examples=0.25)
    method = fs.recipes.fedavg(model, optax.sgd(0.3), fs.Work(epochs=2, batch=5))
    run = fs.simulate(method, train, sampler=fs.sampling.uniform(8))
    before = fs.evaluate(run, test).pooled
    run.train(25, progress=False)
    after = fs.evaluate(run, test).pooled
    assert before["loss"] == pytest.approx(np.log(4), abs=1e-5)
    assert after["loss"] < 0.8 * before["loss"]
    assert after["accuracy"] > 0.5


def test_columns_of_bytes_train_and_are_measured() -> None:
    """The engine hands bytes to the model as whole numbers; the result is that of the same data as
    floats."""
    data = RNG.integers(0, 256, (40, 2, 2, 3)).astype(np.uint8)
    label = (data[:, 0, 0, 0] > 127).astype(np.uint8)
    figures = []
    for kind in (np.uint8, np.float32):
        people = Population.from_arrays(np.arange(40) // 4, image=data.astype(kind), label=label)
        model = layers.classifier(
            lambda key: {"w": jnp.zeros((12, 2))},
            lambda params, batch: layers.pixels(batch["image"]).reshape(-1, 12) @ params["w"],
            2,
        )
        run = fs.simulate(
            fs.recipes.fedavg(model, optax.sgd(0.5), fs.Work(epochs=1, batch=2)),
            people,
            sampler=fs.sampling.uniform(5),
        )
        run.train(10, progress=False)
        figures.append(fs.evaluate(run, people).pooled)
    assert figures[0] == figures[1]
    assert figures[0]["loss"] < 0.6
    assert figures[0]["accuracy"] > 0.8


# -- CIFAR-10 --------------------------------------------------------------------------------------


def cifar(size: int = 10) -> dict[str, tuple[np.ndarray, list[int]]]:
    """Random images [n, 32, 32, 3] and labels of each batch."""
    rng = np.random.default_rng(5)
    return {
        name: (
            rng.integers(0, 256, (size, 32, 32, 3)).astype(np.uint8),
            rng.integers(0, 10, size).tolist(),
        )
        for name in BATCHES
    }


def python2(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 pickled it, which the official files are: text as bytes, NumPy under its
    old name."""

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    raw = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1).tobytes()
    kind = (
        b"cnumpy\ndtype\n"
        + text("u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text("|")
        + b"NNN"
        + 2 * number(-1)
        + b"K\x00tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text("b") + b"\x87R"
    )
    shape = number(len(pixels)) + number(3072) + b"\x86"
    state = b"(K\x01" + shape + kind + b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    values = {
        "batch_label": text("training batch 1 of 5"),
        "labels": b"](" + b"".join(map(number, labels)) + b"e",
        "data": array + state,
        "filenames": b"](" + b"".join(text(f"{n}.png") for n in range(len(labels))) + b"e",
    }
    return b"\x80\x02}(" + b"".join(text(key) + value for key, value in values.items()) + b"u."


def same(found: dict[str, np.ndarray], wanted: dict[str, tuple[np.ndarray, list[int]]]) -> bool:
    train = [wanted[name] for name in BATCHES[:-1]]
    pairs = {
        "x_train": np.concatenate([x for x, _ in train]),
        "y_train": np.concatenate([y for _, y in train]),
        "x_test": wanted["test_batch"][0],
        "y_test": np.array(wanted["test_batch"][1]),
    }
    return all(
        found[name].dtype == np.uint8 and np.array_equal(found[name], value)
        for name, value in pairs.items()
    )


def packed(batches: dict[str, bytes], compress: bool = True) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz" if compress else "w") as archive:
        for name, content in {"readme.html": b"<p>", **batches}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_the_python_version_in_a_folder_an_archive_and_a_zip(tmp_path: Path) -> None:
    data = cifar()
    batches = {name: python2(*pair) for name, pair in data.items()}
    folder = tmp_path / "one" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, content in batches.items():
        (folder / name).write_bytes(content)
    assert same(read(folder), data)
    assert same(read(folder.parent), data)
    assert {path.name for path in folder.iterdir()} == set(
        batches
    )  # nothing is written beside them
    for name, content in (
        ("cifar-10-python.tar.gz", packed(batches)),
        ("cifar-10-python.tar", packed(batches, False)),
    ):
        archive = tmp_path / name.replace(".", "-") / name
        archive.parent.mkdir()
        archive.write_bytes(content)
        assert same(read(archive), data)
        assert same(read(archive.parent), data)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as whole:
        for name, content in batches.items():
            whole.writestr(f"cifar-10-batches-py/{name}", content)
    assert same(read(tmp_path / "all.zip"), data)


def test_pickles_of_python_3_are_read_too() -> None:
    rows = np.arange(2 * 3072).astype(np.uint8).reshape(2, 3072)
    for protocol in (2, 3, 4):
        pixels, labels = unpickle(pickle.dumps({"data": rows, "labels": [1, 2]}, protocol), "batch")
        assert np.array_equal(pixels, rows)
        assert labels.tolist() == [1, 2]


class Harm:
    """Calls a function when unpickled."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_that_call_anything_are_refused(tmp_path: Path, protocol: int) -> None:
    marks = []
    for number, harm in enumerate(
        (
            lambda mark: Harm(Path.touch, Path(mark)),
            lambda mark: Harm(eval, f"open({mark!r}, 'w')"),
            lambda mark: Harm(exec, f"open({mark!r}, 'w')"),
            lambda mark: Harm(open, mark, "w"),
        )
    ):
        marks.append(tmp_path / f"mark{number}")
        batch = {"data": harm(str(marks[-1])), "labels": [1]}
        with pytest.raises(InputError, match="asks for"):
            unpickle(pickle.dumps(batch, protocol), "data_batch_1")
    assert not any(mark.exists() for mark in marks)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        python2(*cifar()["test_batch"])[:-20],
        pickle.dumps([1, 2]),
        pickle.dumps({"data": 3, "labels": [1]}, 2),
        pickle.dumps({"labels": [1]}, 2),
        pickle.dumps({"data": np.zeros((1, 3072)), "labels": [1]}, 2),  # not bytes
        pickle.dumps({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, 2),
        pickle.dumps({"data": np.zeros((3072, 2), np.uint8, order="F"), "labels": [1]}, 2),
        pickle.dumps({"data": np.array(["x"], object), "labels": [1]}, 2),
    ],
    ids=[
        "empty",
        "text",
        "cut off",
        "list",
        "number",
        "no data",
        "floats",
        "short",
        "columns",
        "objects",
    ],
)
def test_what_is_not_a_batch_is_refused(content: bytes) -> None:
    with pytest.raises(InputError, match="test_batch"):
        unpickle(content, "test_batch")


def test_npz(tmp_path: Path) -> None:
    data = cifar()
    train = [data[name] for name in BATCHES[:-1]]
    arrays = {
        "x_train": np.concatenate([x for x, _ in train]),
        "y_train": np.concatenate([y for _, y in train])[:, None],
        "x_test": data["test_batch"][0],
        "y_test": np.array(data["test_batch"][1]),
    }
    np.savez(tmp_path / "cifar10.npz", **arrays)
    assert same(read(tmp_path / "cifar10.npz"), data)
    assert same(read(tmp_path), data)
    first = {name: x.transpose(0, 3, 1, 2) if x.ndim == 4 else x for name, x in arrays.items()}
    np.savez_compressed(tmp_path / "other.npz", **first)
    assert same(read(tmp_path / "other.npz"), data)
    for wrong, message in (
        ({**arrays, "x_train": arrays["x_train"][:3]}, "3 train images but 50 labels"),
        ({**arrays, "x_test": arrays["x_test"] / 255}, "got an array of float64"),
        ({**arrays, "y_test": arrays["y_test"] + 5}, "labels from 0 to 9"),
        ({"x_train": arrays["x_train"]}, "does not hold"),
        ({**arrays, "y_test": np.array([None])}, "does not hold"),
    ):
        np.savez(tmp_path / "wrong.npz", **wrong)
        with pytest.raises(InputError, match=message):
            read(tmp_path / "wrong.npz")


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


@pytest.mark.parametrize("spelling", ["labels", "lables"])
def test_png_sheets(tmp_path: Path, spelling: str) -> None:
    data = cifar()
    for name, (x, _) in data.items():
        (tmp_path / f"{name}.png").write_bytes(png(x.reshape(len(x), 1024, 3)))
    train = [label for name in BATCHES[:-1] for label in data[name][1]]
    (tmp_path / f"train_{spelling}.json").write_text(json.dumps(train))
    with pytest.raises(MissingDataError, match=r"test_la\*.json not found"):
        read(tmp_path)
    (tmp_path / f"test_{spelling}.json").write_text(json.dumps(data["test_batch"][1]))
    assert same(read(tmp_path), data)
    (tmp_path / "test_batch.png").write_bytes(png(np.zeros((4, 32, 3), np.uint8)))
    with pytest.raises(InputError, match="1024 pixels wide"):
        read(tmp_path)


def test_png_folders(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    kinds = [f"kind{n}" for n in range(10)]
    wanted: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for part, number in (("train", 2), ("test", 1)):
        for kind in kinds:
            (tmp_path / "cifar" / part / kind).mkdir(parents=True)
            for n in range(number):
                wanted[part].append(rng.integers(0, 256, (32, 32, 3)).astype(np.uint8))
                (tmp_path / "cifar" / part / kind / f"{n}.png").write_bytes(png(wanted[part][-1]))
    for place in (tmp_path, tmp_path / "cifar"):
        found = read(place)
        assert np.array_equal(found["x_train"], wanted["train"])
        assert np.array_equal(found["x_test"], wanted["test"])
        assert found["y_train"].tolist() == np.repeat(np.arange(10), 2).tolist()
    (tmp_path / "cifar" / "train" / "kind0" / "0.png").write_bytes(b"\x89PNG")
    with pytest.raises(InputError, match=r"0\.png is not an image"):
        read(tmp_path)


def test_nothing_and_half_of_it(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(MissingDataError, match=r"cifar-10-python\.tar\.gz"):
            read(path)
    batches = {name: python2(*pair) for name, pair in cifar().items()}
    for name in BATCHES[:3]:
        (tmp_path / name).write_bytes(batches[name])
    with pytest.raises(MissingDataError, match="data_batch_4, data_batch_5, test_batch not found"):
        read(tmp_path)
    half = tmp_path / "half" / "cifar-10-python.tar.gz"
    half.parent.mkdir()
    half.write_bytes(packed(batches)[:20000])
    with pytest.raises(InputError, match="cut off"):
        read(half)
    half.write_bytes(packed({name: batches[name] for name in BATCHES[:2]}))
    with pytest.raises(InputError, match="has no data_batch_3"):
        read(half)
    half.write_bytes(gzip.compress(b"not a tar file" * 100))
    with pytest.raises(InputError, match="cannot be read"):
        read(half)


def test_cifar_task_on_files(tmp_path: Path) -> None:
    for name, pair in cifar(20).items():
        (tmp_path / name).write_bytes(python2(*pair))
    task = cifar10_resnet.load(tmp_path)
    assert len(task.train) == 10
    assert (task.train.counts == 10).all()
    assert task.test.examples == 20
    assert task.train.columns["image"].dtype == np.uint8
    assert count(task.model) == 11_173_962
    assert task.learning_rates[""] == 0.01
    assert task.settings["cohort"] == 10


def test_cifar_generator() -> None:
    task = cifar10_resnet.synthetic(seed=3, scale=0.02)
    assert (task.train.counts == 100).all()
    assert task.test.examples == 200
    assert np.bincount(task.train.columns["label"]).tolist() == [100] * 10
    assert task.train.columns["image"].shape[1:] == (32, 32, 3)
    # Dirichlet(1, ..., 1): a client's largest share is the mean of the largest of 10, (1 + 1/2 +
    # ... + 1/10) / 10.
    share = [
        np.bincount(labels, minlength=10).max() / 100
        for labels in np.split(task.train.columns["label"], 10)
    ]
    assert np.mean(share) == pytest.approx(sum(1 / k for k in range(1, 11)) / 10, abs=0.12)
    again, other = cifar10_resnet.synthetic(3, 0.02), cifar10_resnet.synthetic(4, 0.02)
    assert np.array_equal(again.train.columns["image"], task.train.columns["image"])
    assert not np.array_equal(other.train.columns["image"], task.train.columns["image"])
    with pytest.raises(InputError, match="leaves no images"):
        cifar10_resnet.synthetic(scale=1e-5)


def test_classes_of_generated_images_can_be_told_apart_but_not_by_single_images() -> None:
    """The nearest class mean is far better than chance; images of one class still differ from each
    other."""
    rng = np.random.default_rng(0)
    textures = images.textures(rng, 10, 32)
    label = np.arange(600) % 10
    x = images.paint(rng, label, textures).reshape(600, -1).astype(np.float32)
    means = np.array([x[:300][label[:300] == c].mean(0) for c in range(10)])
    nearest = np.argmin(((x[300:, None] - means) ** 2).sum(2), 1)
    assert np.mean(nearest == label[300:]) > 0.5
    assert np.mean(x[label == 0].std(0)) > 20


def test_workloads_say_what_they_are() -> None:
    assert cifar10_resnet.WORKLOAD.name == "cifar10-resnet"
    assert f"{count(resnet18()):,}" in cifar10_resnet.WORKLOAD.summary
    assert f"{count(mobilenet2(203)):,}" in gld_mobilenet.WORKLOAD.summary
    small = cifar10_resnet.WORKLOAD.synthetic(scale=cifar10_resnet.WORKLOAD.scale)
    assert small.train.examples == 500
    assert jax.eval_shape(small.model.init, jax.random.key(0))["stem"]["kernel"].shape[-1] == 8


# -- Landmarks -------------------------------------------------------------------------------------


def landmarks(folder: Path, nested: bool = False) -> tuple[Path, Path]:
    """Three photographers, one of them with a single image; images of several shapes, one grey, one
    with alpha."""
    pictures = [
        ("a1b2", (40, 30, 3), "jpg"),
        ("a1c3", (30, 40, 3), "jpg"),
        ("b000", (16, 16), "jpg"),
        ("c111", (20, 20, 4), "png"),
        ("d222", (64, 16, 3), "JPG"),
        ("e333", (9, 9, 3), "jpeg"),
    ]
    rng = np.random.default_rng(2)
    for name, shape, suffix in pictures:
        place = folder / "images" / (Path(*name[:3]) if nested else Path())
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8)).save(
            place / f"{name}.{suffix}", "png" if suffix == "png" else "jpeg"
        )
    train, test = folder / "mini_gld_train_split.csv", folder / "mini_gld_test.csv"
    lines = [
        "user_id,image_id,class",
        "10,b000,1",
        '2,"a1b2",0',
        "10,a1c3,2",
        "2,c111,2",
        "33,d222,0",
        "",
    ]
    train.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    test.write_text("class,image_id\n2,e333\n0,a1b2\n")
    return train, test


@pytest.mark.parametrize("nested", [False, True])
def test_landmarks(tmp_path: Path, nested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = landmarks(tmp_path, nested)
    task = gld_mobilenet.load(tmp_path, side=8)
    assert task.train.clients.tolist() == ["2", "10", "33"]
    assert task.train.counts.tolist() == [2, 2, 1]
    assert task.train.columns["label"].tolist() == [0, 2, 1, 2, 0]
    assert task.test.columns["label"].tolist() == [2, 0]
    assert task.train.columns["image"].shape == (5, 8, 8, 3)
    assert task.train.columns["image"].dtype == np.uint8
    assert np.array_equal(
        task.train.columns["image"][0], task.test.columns["image"][1]
    )  # both are a1b2
    grey = task.train.columns["image"][2]
    assert (grey == grey[:, :, :1]).all()
    assert count(task.model) == 2_223_872 + 3 * 1281

    def never(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(images, "pictures", never)
    again = gld_mobilenet.load(train, side=8)
    assert np.array_equal(again.train.columns["image"], task.train.columns["image"])
    with pytest.raises(AssertionError, match="read again"):
        gld_mobilenet.load(tmp_path, side=16)


def test_an_image_is_cut_to_its_middle_square(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = (200, 100, 50)
    found = images.picture(png(wide), "wide", side=5)
    assert found.shape == (5, 5, 3)
    assert (found[:, 1:4] == (200, 100, 50)).all()


def test_the_larger_landmarks(tmp_path: Path) -> None:
    """The official zip of GLD-160k, with the images beside it."""
    train, test = landmarks(tmp_path)
    with zipfile.ZipFile(tmp_path / "landmarks-user-160k.zip", "w") as archive:
        archive.writestr(
            "landmarks-user-160k/federated_train.csv",
            train.read_text("utf-8-sig").replace(",0", ",2027"),
        )
        archive.writestr("landmarks-user-160k/test.csv", "image_id,class\ne333,1\n")
    train.unlink()
    test.unlink()
    task = gld_mobilenet.load(tmp_path, side=8)
    assert count(task.model) == 4_821_740
    assert task.learning_rates[""] == pytest.approx(10**-1.5)


def test_landmarks_that_are_not_whole(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"mini_gld_train_split\.csv"):
        gld_mobilenet.load(tmp_path)
    train, test = landmarks(tmp_path)
    (tmp_path / "images" / "b000.jpg").unlink()
    (tmp_path / "images" / "c111.png").rename(tmp_path / "images" / "other.png")
    with pytest.raises(MissingDataError, match=r"2 of 6 images are not in .*, the first b000.jpg"):
        gld_mobilenet.load(tmp_path, side=8)
    landmarks(tmp_path)
    (tmp_path / "images" / "b000.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(InputError, match=r"b000\.jpg is not an image"):
        gld_mobilenet.load(tmp_path, side=8)
    landmarks(tmp_path)
    whole = train.read_bytes()
    for content, message in (
        (b"", "has no column user_id, image_id, class, but nothing"),
        (b"user,image_id,class\n1,b000,1\n", "has no column user_id, but user, image_id, class"),
        (b"user_id,image_id,class\n", "names no images"),
        (whole[:-8], "expected 3 fields.*damaged or cut off"),
        (whole.replace(b"b000,1", b"b000,Eiffel"), "class 'Eiffel'"),
        (whole.replace(b"b000,1", b"b000,-1"), "class '-1'"),
        (b"\xff\xfe\xff", "is not text"),
    ):
        train.write_bytes(content)
        with pytest.raises(InputError, match=message):
            gld_mobilenet.load(tmp_path, side=8)
    train.write_bytes(whole)
    test.unlink()
    with pytest.raises(MissingDataError, match="no pair"):
        gld_mobilenet.load(tmp_path, side=8)


def test_landmarks_generator_has_the_published_totals() -> None:
    owner, label, tests = gld_mobilenet._labels(np.random.default_rng(0), 1.0)
    sizes = np.bincount(owner)
    assert (len(sizes), len(owner), len(tests)) == (233, 23_080, 1_959)
    assert np.unique(label).tolist() == np.unique(tests).tolist() == list(range(203))
    assert (np.diff(owner) >= 0).all()
    assert sizes.min() >= 1
    assert np.log(sizes).std() == pytest.approx(0.8, abs=0.1)  # heavy-tailed, as its docstring says
    assert sizes.max() > 4 * sizes.mean()
    kinds = np.array([len(np.unique(part)) for part in np.split(label, np.cumsum(sizes)[:-1])])
    assert np.median(kinds) < 30
    assert 10 <= np.percentile(kinds, 25) < np.percentile(kinds, 75) <= 25
    assert kinds.max() > 1.5 * np.median(kinds)
    images_a_label = np.sort(np.bincount(label))[::-1]
    assert images_a_label[:20].sum() > 0.25 * len(label)


def test_landmarks_generator_scales() -> None:
    task = gld_mobilenet.synthetic(scale=0.03)
    assert (len(task.train), task.train.examples, task.test.examples) == (7, 692, 59)
    assert task.train.columns["image"].shape[1:] == (32, 32, 3)
    assert task.settings["cohort"] == 7
    again = gld_mobilenet.synthetic(scale=0.03)
    assert np.array_equal(task.train.columns["image"], again.train.columns["image"])
    with pytest.raises(InputError, match="fewer than 2 clients"):
        gld_mobilenet.synthetic(scale=0.001)
