"""FedJAX, its federated averaging as in its tutorials.

A round's clients are given to `apply` as data sets of the examples that they go through, with the
shuffling switched off.  ``backend`` is how FedJAX runs clients: one after the other (``jit``), or
on several devices (``pmap``), here two of the host's.  That one expects pmap's results without the
axis of devices, as JAX gave them when FedJAX was released: the switch is still there in 0.4."""

import itertools
import os

if "backend=pmap" in os.sys.argv:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import fedjax
import jax
import numpy as np
import optax
from nets_jax import loss
from work import Clock, Job


def main():
    job = Job.from_command_line()
    jax.config.update("jax_pmap_no_rank_reduction", False)
    fedjax.set_for_each_client_backend(job.setting("backend", "jit"))
    gradient = jax.grad(loss(job.kind))
    local = [optax.clip_by_global_norm(job.clip)] if job.clip else []
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        lambda params, batch, rng: gradient(params, batch["x"], batch["y"]),
        fedjax.optimizers.create_optimizer_from_optax(optax.chain(*local, optax.sgd(job.rate))),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=job.batch, num_epochs=None, num_steps=job.steps, skip_shuffle=True
        ),
    )
    state = algorithm.init({name: jax.numpy.asarray(leaf) for name, leaf in job.first.items()})
    keys = jax.random.split(jax.random.PRNGKey(0), job.cohort)
    clock = Clock(job)
    for number in itertools.count():
        clients = []
        for k in range(job.cohort):
            x, y = job.client(number, k)
            clients.append((b"%d" % k, fedjax.ClientDataset({"x": x, "y": y}), keys[k]))
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        if clock.tick(lambda: {name: np.asarray(p) for name, p in state.params.items()}):
            break


if __name__ == "__main__":
    main()
