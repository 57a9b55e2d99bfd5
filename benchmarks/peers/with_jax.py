"""Bare JAX: FedAvg, or CentralSGD on the same examples, written for this and nothing else.

The cohort is vectorised (``clients=vmap``) or runs one after the other (``map``) in ``threads``
parts.  With ``rows=touched`` a client trains a copy of the rows that its batches read, by hand what
fedslice does; with ``rows=all`` a copy of the whole model.  ``central=1`` is one client whose
batches are those of all clients together: CentralSGD."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from nets_jax import TABLES, clipped, columns, loss
from work import Clock, Job


class Bare:
    def __init__(self, job):
        self.job, self.round = job, 0
        self.central = job.setting("central", 0)
        self.touched = job.setting("rows", "touched") == "touched"
        self.tables = TABLES[job.kind] if self.touched else []
        self.sizes = {name: len(job.first[name]) for name in self.tables}
        self.params = {name: jnp.asarray(leaf) for name, leaf in job.first.items()}
        self.room = dict.fromkeys(self.tables, 8)
        self.threads = job.setting("threads", 1)
        self.pool = ThreadPoolExecutor(self.threads)
        self.mode = job.setting("clients", "vmap")
        self.part = jax.jit(self._part)
        self.put = jax.jit(self._put, donate_argnums=0)

    def plan(self):
        """Batches, and of each table the rows of each client: padded, past the end of the table."""
        chosen = self.job.examples(self.round)
        if self.central:
            chosen = np.moveaxis(chosen, 0, 1).reshape(1, self.job.steps, -1)
        x, y = self.job.x[chosen], self.job.y[chosen]
        places = {}
        for name in self.tables:
            here = columns(self.job.kind)[name]
            found = [np.unique(own[..., here], return_inverse=True) for own in x]
            if found[0][0][0] < 0:  # padding of a history: it has no row
                found = [(rows[rows >= 0], where - (rows[0] < 0)) for rows, where in found]
            need = max(len(rows) for rows, _ in found)
            while self.room[name] < need:
                self.room[name] = self.room[name] * 5 // 4 + 1
            places[name] = np.full((len(x), self.room[name]), self.sizes[name], np.int32)
            x = x.copy()
            for own, place, (rows, where) in zip(x, places[name], found, strict=True):
                place[: len(rows)] = rows
                own[..., here] = where.reshape(own[..., here].shape)
        return places, x, y

    def _part(self, params, places, x, y):
        """The updates of some clients: summed, but those of tables client by client."""

        def client(given):
            own, *batches = given
            rows = {name: params[name].at[own[name]].get(mode="fill", fill_value=0) for name in own}

            def step(now, batch):
                grads = clipped(jax.grad(loss(self.job.kind))(now, *batch), self.job.clip)
                return jax.tree.map(lambda p, g: p - self.job.rate * g, now, grads), ()

            start = {**params, **rows}
            end, _ = jax.lax.scan(step, start, tuple(batches))
            return jax.tree.map(jnp.subtract, end, start)

        each = (places, x, y)
        change = jax.vmap(client)(each) if self.mode == "vmap" else jax.lax.map(client, each)
        rows = {name: change.pop(name) for name in self.tables}
        return jax.tree.map(lambda leaf: leaf.sum(0), change), rows

    def _put(self, params, places, parts):
        count = 1 if self.central else self.job.cohort
        dense = jax.tree.map(lambda *leaves: sum(leaves) / count, *[part[0] for part in parts])
        new = {name: params[name] + change for name, change in dense.items()}
        for name in self.tables:
            rows = jnp.concatenate([part[1][name] for part in parts]) / count
            new[name] = params[name].at[places[name]].add(rows, mode="drop")
        return new

    def step(self):
        places, x, y = self.plan()
        cut = np.linspace(0, len(x), self.threads + 1).astype(int)

        def run(number):
            own = slice(cut[number], cut[number + 1])
            given = jax.tree.map(lambda array: array[own], (places, x, y))
            return jax.block_until_ready(self.part(self.params, *given))

        parts = list(self.pool.map(run, range(self.threads)))
        self.params = jax.block_until_ready(self.put(self.params, places, parts))
        self.round += 1


def main():
    job = Job.from_command_line()
    bare = Bare(job)

    def rounds(count):
        for _ in range(count):
            bare.step()

    Clock(job).blocks(rounds, lambda: {name: np.asarray(p) for name, p in bare.params.items()})


if __name__ == "__main__":
    main()
