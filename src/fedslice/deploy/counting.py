"""Heat from nodes that do not tell which rows they hold.

    responses   each node answers for every row, truly or not, by its own secret: one letter
    counts      each node puts some of its rows and its share of Skellam noise into a secure sum

The mechanisms, and what they guarantee, are those of :mod:`fedslice.privacy.heat`.  A node draws
once: who asks again gets the same responses, and a count is given once and for all.
"""

import secrets
import struct
from collections.abc import Mapping
from math import sqrt
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.deploy import letter as letters
from fedslice.deploy.checks import Asked, head
from fedslice.deploy.cohort import Tally
from fedslice.deploy.journal import Journal
from fedslice.deploy.link import Link
from fedslice.deploy.post import Post
from fedslice.deploy.schema import Schema
from fedslice.deploy.vault import Vault
from fedslice.errors import InputError, RoundError
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.privacy.heat import Reports, Response, Summed, estimate
from fedslice.privacy.secure.parts import Parts, dense
from fedslice.stage.shared_noise import whole_noise

NAME = "heat-journal"
NOBODY = "0" * 16  # heat comes before there is a program
_CHANCES = struct.Struct("<2d")
_noise = jax.jit(whole_noise, static_argnums=2)


def collect(
    link: Link,
    schema: Schema,
    model: Model,
    how: Response | Summed,
    *,
    folder: str | Path | None = None,
    deadline: float | None = None,
    least: int = 0,
    floor: float = 1.0,
) -> Heat:
    """The heat of the nodes that registered, estimated from what they say under ``how``; nodes must
    have been given the same (``Node(..., heat=how)``).

    Counts are given once: with a ``folder`` a coordinator that is killed goes on with them.  They
    are not opened below ``least`` nodes, who have all of the noise between them; those who do not
    answer are taken for like the others.

    >>> import fedslice as fs, optax
    >>> from fedslice.deploy import InProcess, Node, Program, columns_of, register
    >>> task = fs.tasks.quadratic.example1(clients=20)
    >>> method, home = fs.recipes.fedavg(task.model, optax.sgd(0.5)), getfixture("tmp_path")
    >>> program = Program(method, columns_of(task.model, task.train))
    >>> how = fs.privacy.heat.symmetric(3.0)
    >>> data = {str(i): task.train.subset([i]) for i in range(20)}
    >>> link = InProcess({i: Node(program, data[i], home / i, heat=how) for i in data})
    >>> heat = collect(link, register(link, task.model), task.model, how)
    >>> heat.clients, heat.release.epsilon == how.epsilon, len(heat.counts("w"))
    (20, True, 2)
    """
    names = [name for name, node in schema.nodes.items() if node.examples]
    if not names:
        raise InputError(f"no node has any examples; refused were {schema.refused}")
    post = Post(link, deadline, NOBODY, {})
    if isinstance(how, Response):
        found, counted = _by_responses(post, schema, model, how, names, floor)
    else:
        file = None if folder is None else Path(folder) / NAME
        found, counted = _by_sum(post, schema, model, how, names, floor, file, least)
    share = len(names) / counted
    return found._replace(
        clients=len(names),
        mass={table: share * mass for table, mass in found.mass.items()},
        errors={table: share * errors for table, errors in found.errors.items()},
    )


# -- randomised response ---------------------------------------------------------------------------


def responses(
    how: Response,
    body: bytes,
    held: Mapping[str, np.ndarray],
    spaces: Mapping[str, int],
    vault: Vault,
) -> bytes:
    """What a node says of all rows: one bit each, by a keyed hash of the row."""
    from fedslice.privacy.rows import uniform

    if body != _CHANCES.pack(*how):
        raise InputError(f"this node says yes with {how.p1:g} and {how.p2:g}, not as it is asked")
    said = []
    for name, rows in spaces.items():
        chance = np.full(rows, how.p2)
        chance[held[name]] = how.p1
        drawn = uniform(np.arange(rows), vault.derive("heat"), f"response {how} {name}")
        said.append(np.packbits(drawn < chance, bitorder="little").tobytes())
    return b"".join(said)


def _by_responses(
    post: Post, schema: Schema, model: Model, how: Response, names: list[str], floor: float
) -> tuple[Heat, int]:
    tally, spaces = Tally(), _spaces(model)
    replies = post.send(letters.HEAT, 0, dict.fromkeys(names, _CHANCES.pack(*how)), tally)
    size = sum(-(-rows // 8) for rows in spaces.values())
    # of nodes that hide their rows the examples are not known: they are counted alone
    known = not any(node.hidden for node in schema.nodes.values())
    sums = {name: np.zeros((rows, 3)) for name, rows in spaces.items()}
    weights = []
    for name, reply in replies.items():
        asked = Asked(letters.HEATED, 0, tally.nonces[name])
        try:
            body = head(reply, asked, NOBODY, letters.HEAD.size + size).body
            if len(body) != size:
                raise InputError(f"responses of {len(body)} bytes, where {size} were asked for")
        except InputError as error:
            tally.excluded[name] = str(error)
            continue
        weight, start = float(schema.nodes[name].examples), 0
        weights.append(weight)
        for space, rows in spaces.items():
            bits = np.frombuffer(body, np.uint8, -(-rows // 8), start)
            yes = np.unpackbits(bits, count=rows, bitorder="little").astype(float)
            unknown = 1.0 if known else np.nan
            sums[space] += yes[:, None] * np.array([1.0, weight * unknown, weight**2 * unknown])
            start += -(-rows // 8)
    if not weights:
        raise RoundError(f"no node told anything for the heat: {tally.excluded or 'all were late'}")
    by_table = {table: sums[space] for table, space in model.space_of.items()}
    reports = Reports(how, by_table, np.array(weights), _like(schema, model))
    return estimate(reports, floor), len(weights)


# -- a noisy secure sum ----------------------------------------------------------------------------


def counted(
    how: Summed,
    least: int,
    held: Mapping[str, np.ndarray],
    spaces: Mapping[str, int],
    vault: Vault,
) -> tuple[Parts, dict[str, np.ndarray]]:
    """A node's vector: ones for at most ``most`` of its rows, and noise of which ``least`` nodes
    have as much as is promised."""
    from fedslice.privacy.rows import uniform

    secret = vault.derive("heat")
    ranks = [uniform(ids, secret, f"chosen {name}") for name, ids in held.items()]
    order = np.sort(np.concatenate(ranks)) if ranks else np.zeros(0)
    last = order[how.most - 1] if len(order) > how.most else 1.0
    words = np.frombuffer(vault.derive("heat noise"), "<u4")
    key = jax.random.wrap_key_data(jnp.array(words[:2], jnp.uint32))
    vector = {}
    for place, ((name, rows), rank) in enumerate(zip(spaces.items(), ranks, strict=True)):
        own = jax.random.fold_in(key, place)
        noise = np.array(_noise(own, how.error**2 / least, (rows,)))
        noise[held[name][rank <= last]] += 1
        vector[str(place)] = noise
    return _parts(spaces), vector


def _by_sum(
    post: Post,
    schema: Schema,
    model: Model,
    how: Summed,
    names: list[str],
    floor: float,
    file: Path | None,
    least: int,
) -> tuple[Heat, int]:
    from fedslice.deploy.sums import add_up
    from fedslice.deploy.turns import HEAT, Opening, fewest

    if how.kind != "skellam":
        raise InputError('nodes add whole numbers: use privacy.heat.Summed(..., kind="skellam")')
    journal, tally, spaces = Journal(file), Tally(), _spaces(model)
    journal.begin(0)
    seed = journal.once("seed", lambda: secrets.token_bytes(32))
    roster = {schema.nodes[name].number: bytes.fromhex(schema.nodes[name].key) for name in names}
    fewest_of_all = fewest(len(names), least)
    told = (how.multiplier, how.most)
    opening = Opening(HEAT, 0, 0, journal.attempt, seed, fewest_of_all, roster, (), told)
    by_number = {schema.nodes[name].number: name for name in names}
    summed = add_up(post, journal, tally, opening, by_number, lambda: _parts(spaces))
    if summed.total is None:
        journal.again()
        raise RoundError(
            f"the nodes' rows could not be counted: {summed.why}. Left out: {tally.excluded}; late:"
            f" {tally.late}. Nodes whose numbers had left give them no second time; ask for"
            " randomised responses, or begin with new folders"
        )
    sums = {
        space: np.repeat(summed.total[str(place)].view(np.int32)[:, None].astype(float), 3, axis=1)
        for place, space in enumerate(spaces)
    }
    by_table = {table: sums[space] for table, space in model.space_of.items()}
    came = len(summed.stayed)
    heat = estimate(Reports(how, by_table, np.ones(came), _like(schema, model)), floor)
    more = sqrt(came / fewest_of_all)  # more nodes than promised have more noise
    errors = {table: more * error for table, error in heat.errors.items()}
    return heat._replace(errors=errors), came


def _parts(spaces: Mapping[str, int]) -> Parts:
    return Parts([dense(str(place), rows) for place, rows in enumerate(spaces.values())])


def _spaces(model: Model) -> dict[str, int]:
    return {name: model.tables[name].rows for name in model.spaces}


def _like(schema: Schema, model: Model) -> Heat:
    return schema.population(model).heat(model)._replace(ids={}, mass={})
