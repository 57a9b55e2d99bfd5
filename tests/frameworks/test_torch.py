"""PyTorch modules: operators as torch computes them, training as a twin in JAX, and back."""

import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from frameworks.two_towers import ITEMS, USERS, WIDTH, by_hand, first_values, people, trained

import fedslice as fs
from fedslice.errors import InputError

torch = pytest.importorskip("torch", reason="PyTorch is heavy: make test-torch has it")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

ROOT = Path(__file__).parent.parent.parent


class TwoTowers(nn.Module):  # type: ignore[misc]
    """Written as one would in torch: padding is row 0."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, WIDTH)
        self.item = nn.Embedding(ITEMS, WIDTH, padding_idx=0)
        self.tower = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, user: Any, item: Any, history: Any) -> Any:
        many = (history != 0).sum(1, keepdim=True).clamp(min=1)
        both = torch.cat([self.item(item), self.item(history).sum(1) / many], -1)
        return (self.user(user) * functional.relu(self.tower(both))).sum(-1)


def loss(net: Any, batch: Any) -> Any:
    logit = net(batch["user"], batch["item"], batch["history"])
    return functional.binary_cross_entropy_with_logits(logit, batch["label"], reduction="none")


def two_towers() -> tuple[TwoTowers, dict[str, np.ndarray]]:
    first = first_values()
    first["item"][0] = 0
    net = TwoTowers()
    names = {"user.weight": "user", "item.weight": "item", "tower.weight": "weight"}
    names["tower.bias"] = "bias"
    net.load_state_dict({name: torch.as_tensor(first[k].copy()) for name, k in names.items()})
    return net, first


def as_torch(population: fs.Population) -> dict[str, Any]:
    """As a torch user has the same data: padding is 0."""
    return {name: torch.as_tensor(np.maximum(x, 0)) for name, x in population.columns.items()}


def test_it_trains_as_its_twin_in_jax_and_comes_back() -> None:
    data = people()
    net, first = two_towers()
    model = fs.torch.model(net, loss, data)
    assert {name: table.fields for name, table in model.tables.items()} == {
        "user.weight": ("user",),
        "item.weight": ("history", "item"),
    }
    run, twin = trained(model, data), trained(by_hand(first), data)
    ours, theirs = run.params(), twin.params()
    pairs = {"user.weight": "user", "item.weight": "item", "tower.weight": "weight"}
    for name, other in {**pairs, "tower.bias": "bias"}.items():
        np.testing.assert_allclose(ours[name], theirs[other], atol=2e-6)
    assert np.abs(np.asarray(ours["tower.weight"]) - first["weight"]).max() > 0.01
    expected = fs.evaluate(twin, data).pooled["loss"]
    assert fs.evaluate(run, data).pooled["loss"] == pytest.approx(expected, abs=1e-6)
    for module in (net, TwoTowers()):
        fs.torch.load(module, run)
        with torch.no_grad():
            assert float(loss(module, as_torch(data)).mean()) == pytest.approx(expected, abs=1e-5)
        assert not module.item.weight[0].any()  # nobody's


def test_steps_are_those_of_torch() -> None:
    """One client, one step on all its examples: gradient descent by torch's own autograd."""
    data = people().subset([2])
    net, _ = two_towers()
    model = fs.torch.model(net, loss, data)
    method = fs.recipes.fedavg(model, optax.sgd(0.5), fs.Work(steps=1, batch=100))
    run = fs.simulate(method, data, sampler=fs.sampling.full())
    run.train(1, progress=False)
    loss(net, as_torch(data)).mean().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.5 * parameter.grad
    other = TwoTowers()
    fs.torch.load(other, run)
    for (name, ours), theirs in zip(other.named_parameters(), net.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach(), theirs.detach(), atol=2e-6, err_msg=name)


# -- operators: values and gradients against torch -------------------------------------------------

LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "mlp": (
        lambda: nn.Sequential(
            nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4), nn.ELU(), nn.PReLU()
        ),
        (6,),
    ),
    "activations": (
        lambda: nn.Sequential(
            nn.Linear(6, 6),
            nn.Softplus(),
            nn.SiLU(),
            nn.LeakyReLU(),
            nn.Tanh(),
            nn.Hardswish(),
            nn.Softmax(-1),
        ),
        (6,),
    ),
    "in place": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True)), (6,)),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 1, groups=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        (2, 8, 8),
    ),
    "averages": (lambda: nn.Sequential(nn.AvgPool1d(2), nn.Conv1d(3, 2, 2, bias=False)), (3, 8)),
    "old batches": (lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2)).eval(), (6,)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (5, 8)),
    "two encoders": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        ),
        (5, 8),
    ),
}


class Function(nn.Module):  # type: ignore[misc]
    """A function of x with some weights of its own."""

    def __init__(self, of: Callable[[Any, Any], Any], *shape: int) -> None:
        super().__init__()
        self.of, self.weight = of, nn.Parameter(torch.randn(*shape))

    def forward(self, x: Any) -> Any:
        return self.of(x, self.weight)


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "einsum": lambda x, w: torch.einsum("bij,jk->bik", x, w),
    "cosine": lambda x, w: functional.cosine_similarity(x, w[0].expand_as(x), dim=-1),
    "normalised": lambda x, w: functional.normalize(x @ w, dim=-1),
    "statistics": lambda x, w: (x @ w).std(-1) + (x @ w).var(1, unbiased=False).sum(-1)[:, None],
    "extremes": lambda x, w: (x @ w).max(1).values + (x @ w).amin(1),
    "largest": lambda x, w: (x @ w).topk(2, -1)[0][:, 0, 0:1],
    "shapes": lambda x, w: torch.stack((x @ w).chunk(2, -1)).permute(1, 0, 2, 3).flatten(1),
    "rolled": lambda x, w: (x @ w).roll(1, 0).flip(1).squeeze().repeat(1, 2, 1),
    "masks": lambda x, w: (x @ w).masked_fill(torch.ones(3, 4).triu(1).bool(), 0.0).tril(),
    "choices": lambda x, w: torch.where(x > 0, x @ w, torch.zeros_like(x)).logsumexp(-1),
    "attention": lambda x, w: functional.scaled_dot_product_attention(x, x @ w, x, is_causal=True),
    "powers": lambda x, w: ((x @ w) ** 2 + 1).sqrt().log().cumsum(1) / (x.abs() + 1).pow(1.5),
    "unbound": lambda x, w: sum(each @ w for each in x.unbind(1)) - x.select(1, -1),
    "bilinear": lambda x, w: torch.matmul(x @ w, x.transpose(1, 2)).reshape(x.shape[0], -1),
}  # fmt: skip


def compare(net: Any, x: np.ndarray) -> None:
    """Values, and gradients of a random combination of them."""
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    given = torch.as_tensor(x)
    out = net(given)
    mix = np.asarray(torch.randn(out.shape))
    (out * torch.as_tensor(mix)).sum().backward()
    ours = fs.torch.function(net, lambda net, batch: net(batch["x"]), {"x": x})
    params = {name: jnp.asarray(p.detach().numpy()) for name, p in net.named_parameters()}

    def combined(params: Any) -> Any:
        found = ours(params, {"x": jnp.asarray(x)})
        return jnp.sum(found * mix), found

    (_, found), slopes = jax.value_and_grad(combined, has_aux=True)(params)
    np.testing.assert_allclose(found, out.detach(), atol=3e-6, rtol=3e-5)
    for name, parameter in net.named_parameters():
        if name in names:
            np.testing.assert_allclose(slopes[name], parameter.grad, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    compare(make(), np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
    compare(Function(FUNCTIONS[name], 4, 4), x)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("options", [{"num_layers": 2, "bidirectional": True}, {"bias": False}])
def test_recurrent_layers(kind: Any, options: dict[str, Any]) -> None:
    class Last(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(4, 3, batch_first=True, **options)

        def forward(self, x: Any) -> Any:
            out, end = self.cell(x)
            end = end[0] if isinstance(end, tuple) else end
            return torch.cat([out.flatten(1), end.transpose(0, 1).flatten(1)], 1)

    torch.manual_seed(0)
    compare(Last(), np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode: str) -> None:
    torch.manual_seed(0)
    net = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=0)
    ids = np.array([[1, 2, 2], [3, 0, 0], [0, 0, 0], [8, 1, 0]])
    out = net(torch.as_tensor(ids))
    out.square().sum().backward()
    data = {"ids": np.where(ids == 0, -1, ids)}
    model = fs.torch.model(net, lambda net, b: net(b["ids"]).square().sum(-1), data)
    assert model.tables["weight"].fields == ("ids",)
    params = {"weight": jnp.asarray(net.weight.detach().numpy())}
    batch = {"ids": jnp.asarray(data["ids"])}
    np.testing.assert_allclose(model.loss(params, batch), out.square().sum(-1).detach(), rtol=1e-5)
    slope = jax.grad(lambda p: jnp.sum(model.loss(p, batch)))(params)["weight"]
    np.testing.assert_allclose(slope, net.weight.grad, rtol=1e-5, atol=1e-6)


LOSSES: dict[str, tuple[Callable[..., Any], str]] = {
    "cross entropy": (functional.cross_entropy, "class"),
    "smoothed": (
        lambda x, y, **o: functional.cross_entropy(x, y, label_smoothing=0.1, **o),
        "class",
    ),
    "likelihood": (lambda x, y, **o: functional.nll_loss(x.log_softmax(-1), y, **o), "class"),
    "squared": (lambda x, y, **o: functional.mse_loss(x[:, 0], y, **o), "number"),
    "absolute": (lambda x, y, **o: functional.l1_loss(x[:, 0], y, **o), "number"),
    "smooth": (lambda x, y, **o: functional.smooth_l1_loss(x[:, 0], y, **o), "number"),
    "huber": (lambda x, y, **o: functional.huber_loss(x[:, 0], y, delta=0.5, **o), "number"),
    "binary": (
        lambda x, y, **o: functional.binary_cross_entropy(x[:, 0].sigmoid(), y, **o),
        "number",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    torch.manual_seed(0)
    of, label = LOSSES[name]
    rng, net = np.random.default_rng(0), nn.Linear(4, 3)
    data = {
        "x": rng.normal(size=(6, 4)).astype(np.float32),
        "class": rng.integers(0, 3, 6),
        "number": rng.random(6).astype(np.float32),
    }

    def each(net: Any, batch: Any) -> Any:
        return of(net(batch["x"]), batch[label], reduction="none")

    model = fs.torch.model(net, each, data)
    expected = each(net, {name: torch.as_tensor(column) for name, column in data.items()})
    batch = {name: jnp.asarray(column) for name, column in data.items()}
    np.testing.assert_allclose(
        model.loss(model.init(jax.random.key(0)), batch), expected.detach(), rtol=1e-5, atol=1e-6
    )


# -- what a module may be --------------------------------------------------------------------------


def test_dropout_is_drawn_anew_in_training_and_not_in_evaluation() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=True)
    net = nn.Sequential(
        nn.Dropout(0.5), nn.Unflatten(1, (5, 8)), layer, nn.Flatten(), nn.Linear(40, 1)
    )
    data = fs.Population.from_arrays([0, 0], x=np.ones((2, 40), np.float32), y=[1.0, 2.0])
    squared = lambda net, b: (net(b["x"])[:, 0] - b["y"]) ** 2  # noqa: E731
    model = fs.torch.model(net, squared, data)
    assert model.noisy
    assert not fs.torch.model(net.eval(), squared, data).noisy
    params = model.init(jax.random.key(0))
    batch = {name: jnp.asarray(x, jnp.float32) for name, x in data.columns.items()}
    drawn = [model.loss(params, {**batch, "step_key": jax.random.key(k)}) for k in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert np.all(drawn[0] != drawn[2])
    with torch.no_grad():
        expected = squared(net, {name: torch.as_tensor(np.array(x)) for name, x in batch.items()})
    np.testing.assert_allclose(model.loss(params, batch), expected, rtol=1e-5)


def test_tied_and_frozen_weights() -> None:
    class Tied(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.word, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.out.weight = self.word.weight
            self.kept = nn.Embedding(5, 4)
            self.kept.weight.requires_grad = False

        def forward(self, word: Any, place: Any) -> Any:
            return self.out(self.word(word) + self.kept(place))

    data = fs.Population.from_arrays([0, 0, 1], word=[1, 2, 3], place=[0, 4, 4], label=[2, 3, 1])

    def chosen(net: Any, b: Any) -> Any:
        return functional.cross_entropy(net(b["word"], b["place"]), b["label"], reduction="none")

    net = Tied()
    model = fs.torch.model(net, chosen, data)
    assert not model.tables  # the weight is read as a whole, too
    assert list(model.init(jax.random.key(0))) == ["word.weight"]
    before = net.word.weight.detach().clone()
    run = fs.simulate(fs.recipes.fedavg(model, optax.sgd(0.5)), data, sampler=fs.sampling.full())
    run.train(2, progress=False)
    fs.torch.load(net, run)
    assert net.out.weight is net.word.weight
    assert not torch.equal(net.word.weight, before)
    np.testing.assert_array_equal(net.word.weight.detach(), run.params()["word.weight"])


def test_a_dense_embedding_keeps_its_padding_row() -> None:
    net = nn.Embedding(6, 3, padding_idx=2)
    data = fs.Population.from_arrays([0, 0, 1], day=[0, 1, 5], y=[1.0, 2.0, 3.0])
    squared = lambda net, b: (net(b["day"]).sum(-1) - b["y"]) ** 2  # noqa: E731
    model = fs.torch.model(net, squared, data, dense=("weight",))
    work = fs.Work(epochs=1, batch=3)
    other = fs.Population.from_arrays([0, 0, 1], day=[0, 1, 2], y=[1.0, 2.0, 3.0])
    method = fs.recipes.fedavg(model, optax.sgd(0.1), work)
    run = fs.simulate(method, other, sampler=fs.sampling.full())
    run.train(2, progress=False)
    moved = np.abs(np.asarray(run.params()["weight"]) - net.weight.detach().numpy()).max(1) > 0
    assert moved.tolist() == [True, True, False, False, False, False]


def test_rows_of_padding_are_not_to_be_named() -> None:
    net = nn.Embedding(6, 3, padding_idx=2)
    columns = {"day": np.array([0, 1, 5]), "y": np.ones(3, np.float32)}
    masked = lambda net, b: (  # noqa: E731
        (net(b["day"]).sum(-1) + 5 * (b["day"] != 2) - b["y"]) ** 2
    )
    model = fs.torch.model(net, masked, columns)
    assert model.tables["weight"].padding == 2
    other = fs.Population.from_arrays([0, 0, 1], **{**columns, "day": [0, 2, 5]})
    method = fs.recipes.fedavg(model, optax.sgd(0.1))
    for act in (
        lambda: fs.torch.model(net, masked, other),
        lambda: fs.torch.function(net, masked, other),
        lambda: fs.simulate(method, other, sampler=fs.sampling.full()),
    ):
        with pytest.raises(InputError, match=r"'day' has the id 2, .*np\.where\(day == 2, -1, day"):
            act()
    # held whole, ids are as they are, and a mask means the number itself
    whole = fs.torch.model(net, masked, columns, dense=("weight",))
    params = whole.init(jax.random.key(0))
    for ids in (np.array([0, 2, 5]), np.array([0, -1, 5])):
        batch = {"day": jnp.asarray(ids), "y": jnp.ones(3)}
        given = {"day": torch.as_tensor(np.where(ids < 0, 2, ids)), "y": torch.ones(3)}
        with torch.no_grad():
            expected = masked(net, given)
        np.testing.assert_allclose(whole.loss(params, batch), expected, rtol=1e-5)


def test_metrics_of_the_same_kind() -> None:
    data = people()
    net, _ = two_towers()
    score = fs.torch.function(net, lambda net, b: net(b["user"], b["item"], b["history"]), data)
    right = lambda net, b: (  # noqa: E731
        ((net(b["user"], b["item"], b["history"]) > 0) == (b["label"] > 0.5)).float()
    )
    metrics = {"accuracy": right, "auc": fs.metrics.auc(score)}
    model = fs.torch.model(net, loss, data, metrics=metrics)
    run = fs.simulate(fs.recipes.fedavg(model, optax.sgd(0.1)), data, sampler=fs.sampling.full())
    found = fs.evaluate(run, data).pooled
    with torch.no_grad():
        expected = float(right(net, as_torch(data)).mean())
    assert found["accuracy"] == pytest.approx(expected, abs=1e-6)
    assert 0 < found["auc"] < 1


def test_a_model_needs_no_torch_once_it_is_made() -> None:
    """It can be sent to workers that have none."""
    net, _ = two_towers()
    graph = fs.torch.function(net, loss, people())
    text = pickle.dumps(graph)
    assert b"torch" not in text
    batch = {name: jnp.asarray(column) for name, column in people().columns.items()}
    params = {name: jnp.asarray(p.detach().numpy()) for name, p in net.named_parameters()}
    again = pickle.loads(text)
    np.testing.assert_array_equal(graph(params, batch), again(params, batch))


# -- what is refused -------------------------------------------------------------------------------


class Strange(nn.Module):  # type: ignore[misc]
    """An embedding of items, and something beside it."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        super().__init__()
        self.item, self.of = nn.Embedding(9, 3), of

    def forward(self, batch: Any) -> Any:
        return self.item(batch["item"]).sum(-1) + self.of(batch)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (lambda b: torch.special.bessel_j0(b["x"]), "no way is known to convert .*bessel_j0"),
        (lambda b: b["item"] * b["x"], "'item' names rows of 'item.weight' and is read as a num"),
        (lambda b: (b["item"] != 0) * b["x"], "and is read as a number, too"),
        (lambda b: b["x"], r"for 3 examples it gives the shape \(\)"),
        (lambda b: b["x"] if bool(b["x"].sum() > 0) else -b["x"], "torch.export cannot trace"),
        (lambda b: b["x"] * b["no such column"], "torch.export cannot trace.*no such column"),
    ],
)  # fmt: skip
def test_what_would_be_wrong_is_refused(of: Callable[[Any], Any], words: str) -> None:
    data = {"item": np.array([1, 2, 3]), "x": np.ones(3, np.float32)}

    def figure(net: Any, batch: Any) -> Any:
        found = net(batch)
        return found.mean() if "shape" in words else found

    with pytest.raises(InputError, match=words):
        fs.torch.model(Strange(of), figure, data)


def test_layers_that_mix_examples_and_other_numbers_are_refused() -> None:
    data = {"x": np.ones((3, 4), np.float32)}
    squared = lambda net, b: net(b["x"]).square().sum(-1)  # noqa: E731
    with pytest.raises(InputError, match="GroupNorm"):
        fs.torch.model(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)), squared, data)
    with pytest.raises(InputError, match=r"float64.*module.float\(\)|cannot trace"):
        fs.torch.model(nn.Linear(4, 1).double(), lambda net, b: net(b["x"].double())[:, 0], data)
    with pytest.raises(InputError, match=r"give a torch\.nn\.Module, got int"):
        fs.torch.model(3, squared, data)
    net, _ = two_towers()
    run = fs.simulate(
        fs.recipes.fedavg(fs.torch.model(net, loss, people()), optax.sgd(0.1)),
        people(),
        sampler=fs.sampling.full(),
    )
    with pytest.raises(InputError, match="the module has no parameter"):
        fs.torch.load(nn.Linear(4, 1), run)


def test_the_example() -> None:
    """25 lines from data to a trained module, which computes what was trained."""
    file = ROOT / "examples" / "torch_two_tower.py"
    lines = [line for line in file.read_text().split("\n")[1:] if line.strip()]
    assert len(lines) <= 25
    scope = runpy.run_path(str(file))
    people, run = scope["people"], scope["run"]
    after = fs.evaluate(run, people).pooled["loss"]
    assert after < 0.6
    given = {name: torch.as_tensor(column) for name, column in people.columns.items()}
    with torch.no_grad():
        assert float(scope["loss"](scope["net"], given).mean()) == pytest.approx(after, abs=1e-5)
