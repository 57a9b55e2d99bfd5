"""Centralised data divided among clients: by label, by hierarchy of labels, by shards, at random;
and shuffled back.

Each partitioner gives the client of every example, ready for ``Population.from_arrays``; every
example goes to exactly one client.

- :func:`dirichlet`: q_i ~ Dir(alpha p), the labels of client i ~ q_i (Hsu et al., "Measuring the
  Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019).
- :func:`pachinko`: theta_i ~ Dir(alpha) over coarse labels, phi_ic ~ Dir(beta) over the fine labels
  of c (Reddi et al., "Adaptive Federated Optimization", 2021, from Li and McCallum's Pachinko
  allocation).
- :func:`shards`: sort by label, cut, deal out (McMahan et al. 2017).
- :func:`shuffle`: between a natural partition and an iid one with the same client sizes (Wang et
  al., "A Field Guide to Federated Optimization", 2021, section 4.3.3).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedslice.data.population import Population
from fedslice.errors import InputError


def iid(examples: int, clients: int, seed: int = 0) -> np.ndarray:
    """At random, in equal parts (the first clients have one example more where it does not divide).

    >>> np.bincount(iid(10, 4)).tolist()
    [3, 3, 2, 2]
    """
    sizes = _sizes(examples, clients)
    return np.random.default_rng(seed).permutation(
        np.repeat(np.arange(clients, dtype=np.int32), sizes)
    )


def dirichlet(
    labels: ArrayLike, clients: int, alpha: float, seed: int = 0, *, prior: ArrayLike | None = None
) -> np.ndarray:
    """Each client's labels from its own draw of Dir(``alpha`` x ``prior``); equal sizes.

    ``prior`` has one positive number for each distinct label in ascending order; by default the
    labels' shares, which sum to 1.  With a prior of ones ``alpha`` is the parameter of each label,
    as in libraries that write Dir(alpha).  Small alpha: one label a client; large alpha: all
    clients like the prior.

    Clients draw one after the other without replacement.  A label that is used up is drawn no more
    and the others keep their proportions; a client with nothing left of what it draws makes a new
    draw of Dir over the labels that remain.  So the last clients take what is left, more so for
    small alpha.

    >>> owner = dirichlet([0, 0, 0, 1, 1, 1], clients=2, alpha=1e-6)
    >>> np.bincount(owner).tolist()
    [3, 3]
    """
    _positive(alpha=alpha)
    _, code, left = _labels(labels, "labels")
    weights = left / max(1, len(code)) if prior is None else np.asarray(prior, np.float64)
    if weights.shape != left.shape or not (np.isfinite(weights).all() and (weights > 0).all()):
        raise InputError(
            f"prior must be {len(left)} positive numbers, one for each label, got"
            f" {weights.tolist()}"
        )
    rng = np.random.default_rng(seed)
    sizes = _sizes(len(code), clients)
    taken = np.zeros((clients, len(left)), np.int64)
    for client, size in enumerate(sizes):
        taken[client] = _draw(rng, alpha * weights, left, size)
        left = left - taken[client]
    return _deal(rng, code, taken)


def pachinko(
    coarse: ArrayLike,
    fine: ArrayLike,
    clients: int,
    alpha: float = 0.1,
    beta: float = 10.0,
    seed: int = 0,
) -> np.ndarray:
    """Each client draws coarse labels from its Dir(``alpha``) and, in each, fine ones from its
    Dir(``beta``).

    Both are symmetric: the parameter is that of each label.  Reddi et al. have 0.1 and 10 for
    CIFAR-100 in 500 clients.  Sizes are equal; labels that are used up are handled as in
    :func:`dirichlet`, on both levels.

    >>> np.bincount(pachinko([0, 0, 1, 1], [0, 1, 2, 3], clients=2)).tolist()
    [2, 2]
    """
    _positive(alpha=alpha, beta=beta)
    _, parent, _ = _labels(coarse, "coarse")
    names, code, left = _labels(fine, "fine")
    if len(parent) != len(code):
        raise InputError(
            f"there are {len(parent)} coarse and {len(code)} fine labels: give both for every"
            " example"
        )
    above = np.zeros(len(left), np.int64)
    above[code] = parent
    if (wrong := np.flatnonzero(above[code] != parent)).size:
        raise InputError(
            f"fine label {names[code[wrong[0]]]} is under two coarse labels: each must have one"
        )
    rng = np.random.default_rng(seed)
    children = [np.flatnonzero(above == c) for c in range(int(parent.max(initial=-1)) + 1)]
    sizes = _sizes(len(code), clients)
    taken = np.zeros((clients, len(left)), np.int64)
    for client, size in enumerate(sizes):
        stock = np.array([left[group].sum() for group in children])
        wanted = _draw(rng, np.full(len(children), alpha), stock, size)
        for group, number in zip(children, wanted, strict=True):
            taken[client, group] = _draw(rng, np.full(len(group), beta), left[group], int(number))
        left = left - taken[client]
    return _deal(rng, code, taken)


def shards(labels: ArrayLike, clients: int, per_client: int = 2, seed: int = 0) -> np.ndarray:
    """Examples sorted by label and cut into ``clients`` x ``per_client`` shards; each client gets
    ``per_client``.

    Shards differ by one example at most; equal labels are in random order.

    >>> owner = shards([0, 0, 1, 1, 2, 2, 3, 3], clients=2)
    >>> np.bincount(owner).tolist()
    [4, 4]
    """
    _, code, _ = _labels(labels, "labels")
    if clients < 1 or per_client < 1 or len(code) < clients * per_client:
        raise InputError(
            f"{len(code)} examples cannot be cut into {clients} clients x {per_client} shards: give"
            " fewer of both, at least one of each"
        )
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(code)), code))
    sizes = _sizes(len(code), clients * per_client)
    receiver = rng.permutation(np.repeat(np.arange(clients, dtype=np.int32), per_client))
    owner = np.empty(len(code), np.int32)
    owner[order] = np.repeat(receiver, sizes)
    return owner


def shuffle(population: Population, factor: float, seed: int = 0) -> Population:
    """A random share ``factor`` of all examples changes places at random; clients keep their sizes.

    0 is the population as it is, 1 an iid one; in between each example is of its old client with
    probability about 1 - factor.  Whatever a column says of the client itself moves with the
    example.

    >>> people = Population.from_arrays([0, 0, 1], x=[1.0, 2.0, 3.0])
    >>> shuffle(people, 1.0).counts.tolist(), shuffle(people, 0.0).columns["x"].tolist()
    ([2, 1], [1.0, 2.0, 3.0])
    """
    if not 0 <= factor <= 1:
        raise InputError(f"factor={factor} must be from 0 (the natural partition) to 1 (iid)")
    rng = np.random.default_rng(seed)
    moving = rng.permutation(population.examples)[: round(factor * population.examples)]
    source = np.arange(population.examples)
    source[np.sort(moving)] = moving
    columns = {name: column[source] for name, column in population.columns.items()}
    return Population(columns, population.offsets, population.clients, population.names)


def _positive(**parameters: float) -> None:
    for name, value in parameters.items():
        if not (value > 0 and np.isfinite(value)):
            raise InputError(
                f"{name}={value} must be a positive number (small: unlike clients, large: like"
                " ones)"
            )


def _sizes(examples: int, parts: int) -> np.ndarray:
    """Equal parts; the first ones take the remainder."""
    if not 1 <= parts <= examples:
        raise InputError(
            f"{examples} examples cannot be divided among {parts} clients: give from 1 to"
            f" {examples}"
        )
    return examples // parts + (np.arange(parts) < examples % parts)


def _labels(values: ArrayLike, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct labels, the number of each example's label among them, and how many examples each
    has."""
    array: np.ndarray[Any, Any] = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"{name} must be one label for each example, got shape {array.shape}")
    names, code, counts = np.unique(array, return_inverse=True, return_counts=True)
    return names, code, counts


def _draw(
    rng: np.random.Generator, parameters: np.ndarray, stock: np.ndarray, size: int
) -> np.ndarray:
    """How many of each label ``size`` draws without replacement take, with shares from
    Dir(``parameters``).

    Draws in excess of the stock are made again among the labels that are left, so the counts have
    the distribution of draws one by one.
    """
    taken = np.zeros(len(stock), np.int64)
    if size == 0:
        return taken
    shares = rng.dirichlet(parameters)
    while (missing := size - int(taken.sum())) > 0:
        open_ = taken < stock
        chance = np.where(open_, shares, 0)
        if not chance.sum() > 0:  # nothing left of what this client would draw
            shares[open_] = rng.dirichlet(parameters[open_])
            chance = np.where(open_, shares, 0)
        taken = np.minimum(taken + rng.multinomial(missing, chance / chance.sum()), stock)
    return taken


def _deal(rng: np.random.Generator, code: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """The client of each example, where client i gets ``taken[i, label]`` random examples of each
    label."""
    clients, labels = taken.shape
    order = np.lexsort((rng.random(len(code)), code))
    owner = np.empty(len(code), np.int32)
    owner[order] = np.repeat(
        np.tile(np.arange(clients, dtype=np.int32), labels), taken.T.reshape(-1)
    )
    return owner
