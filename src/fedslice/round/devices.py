"""Several devices of one process share the cohort: an equal part of the clients on each
(``shard_map``), the sum on the first.

Parts are filled up with copies of the last client, which are dropped before the sum, and messages
are added in the order of the clients: the number of devices is not in the bits, but where clients
are vectorised, for then a part's size is."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedslice.errors import InputError
from fedslice.round.dividing import filled_up
from fedslice.round.engine import Engine
from fedslice.round.plan import Own
from fedslice.round.protocol import Tags
from fedslice.types import Algorithm, Key

AXIS = "clients"


class DeviceEngine(Engine):
    """An engine whose clients train on several ``devices``."""

    def __init__(
        self, algorithm: Algorithm, tags: Tags, key: Key, mode: str | int, devices: Sequence[Any]
    ) -> None:
        super().__init__(algorithm, tags, key, mode, 1)
        self.fused, self.threads = False, len(devices)  # as with threads: parts, and one sum
        self.mesh = Mesh(np.array(devices), (AXIS,))
        look, train = self._spread(self.plain.look, 4, 2), self._spread(self.plain.train, 6, 4)
        self.compiled = self.compiled._replace(look=look, train=train)

    def _spread(self, step: Callable[..., Any], count: int, own: int) -> Callable[..., Any]:
        """``step``, whose argument number ``own`` of ``count`` has the clients, on all devices."""
        specs = tuple(P(AXIS) if place == own else P() for place in range(count))
        run = jax.jit(
            jax.shard_map(step, mesh=self.mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False)
        )
        places = [NamedSharding(self.mesh, spec) for spec in specs]
        first = self.mesh.devices[0]

        def apply(*given: Any) -> Any:
            clients = len(given[own].place)
            filled = (*given[:own], self._filled(given[own]), *given[own + 1 :])
            each = zip(filled, places, strict=True)
            found = run(*(jax.device_put(value, place) for value, place in each))
            return jax.tree.map(lambda leaf: leaf[:clients], jax.device_put(found, first))

        return apply

    def _filled(self, own: Own) -> Own:
        """The cohort with copies of its last client, the same number for each device."""
        return filled_up(own, -len(own.place) % (self.threads * self.unit))


def local_devices(count: int) -> list[Any]:
    """The first ``count`` devices of this process."""
    found = jax.local_devices()
    if not 1 <= count <= len(found):
        raise InputError(
            f"devices={count}: JAX has {len(found)} here. On a CPU more can be made, before the"
            ' first array: jax.config.update("jax_num_cpu_devices", 2)'
        )
    return found[:count]
