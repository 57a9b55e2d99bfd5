"""Compile once: programs that differ in nothing but their numbers are one program.

A learning rate, a proximal weight, a noise multiplier or a clip is closed over by some part of an
algorithm, and would be a constant of what is compiled.  Here a function is traced, and constants of
its operations become arguments: a grid of rates is then one compilation.  No part has to declare
anything; what is alike is found by comparing the traced operations.

Which constants, :mod:`fedslice.round.constants` says.  Loops of small operations are compiled in
one piece (:mod:`fedslice.round.pieces`).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

from fedslice.round import pieces
from fedslice.round.constants import Lifted, lift
from fedslice.round.filled import Filled, How

MOST = 64  # programs that are kept for others that may be alike
OWN = 16  # things that are kept for algorithms: they hold on to heat, which may be large
Wrap = Callable[[Callable[..., Any], Any], Callable[..., Any]]
Made = TypeVar("Made")


class Compiled:
    """``fun`` compiled, together with all functions that are the same up to their constants.

    ``donate`` are the numbers of the arguments whose memory may be reused.  With ``around`` (a
    function of a module) what is compiled is ``around(fun, shapes of its results)``, and
    ``like(*arguments)`` gives arguments of ``fun`` itself.

    >>> import jax.numpy as jnp
    >>> one, two = (Compiled(lambda x, rate=rate: x - rate * x) for rate in (0.1, 0.2))
    >>> float(one(jnp.ones(()))), float(two(jnp.ones(())))
    (0.8999999761581421, 0.800000011920929)
    >>> one.programs() == two.programs()
    True
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        donate: Sequence[int] = (),
        around: Wrap | None = None,
        like: Callable[..., Any] = lambda *arguments: arguments,
    ) -> None:
        self.fun, self.donate, self.around, self.like = fun, tuple(donate), around, like
        self._known: dict[Hashable, tuple[Callable[..., Any], Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        """As ``fun(*arguments)``; all of them are arrays."""
        leaves, tree = jax.tree.flatten(arguments)
        key = (tree, *((leaf.shape, leaf.dtype) for leaf in leaves))
        if key not in self._known:
            with self._lock:
                if key not in self._known:
                    self._known[key] = self._find(arguments)
        program, values = self._known[key]
        return program(values, *arguments)

    def programs(self) -> set[int]:
        """Names of the programs that were needed so far, one for each shape."""
        return {id(program) for program, _ in self._known.values()}

    def _find(self, arguments: Any) -> tuple[Callable[..., Any], Any]:
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
        traced, out = jax.make_jaxpr(self.fun, return_shape=True)(*self.like(*shapes))
        lifted = lift(traced)
        key = (lifted.structure, jax.tree.structure(out), self.donate, self.around)
        return _PROGRAMS.get(key, partial(self._build, lifted, out)), _packed(lifted.values)

    def _build(self, lifted: Lifted, out: Any) -> Callable[..., Any]:
        tree: Any = jax.tree.structure(out)
        likes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in lifted.values]

        def compiled(how: How) -> Callable[..., Any]:
            def whole(values: Any, *arguments: Any) -> Any:
                def fun(*given: Any) -> Any:
                    filled = Filled(lifted.traced, _unpacked(values, likes), how)
                    return tree.unflatten(filled(*jax.tree.leaves(given)))

                return (fun if self.around is None else self.around(fun, out))(*arguments)

            return jax.jit(whole, donate_argnums=tuple(1 + number for number in self.donate))

        return Program(compiled)


class Program:
    """A function that is compiled when it is called: with loops in one piece, unless the compiler
    refuses that."""

    def __init__(self, compiled: Callable[[How], Callable[..., Any]]) -> None:
        self._compiled = compiled
        self._run = compiled("in pieces" if pieces.possible() else "as it is")

    def __call__(self, *given: Any) -> Any:
        """What the function gives."""
        try:
            return self._run(*given)
        except jax.errors.JaxRuntimeError as error:
            if not pieces.refused(error):
                raise
        self._run = self._compiled("as it is")
        return self._run(*given)

    def lower(self, *given: Any) -> Any:
        """As jax.jit's."""
        return self._run.lower(*given)  # type: ignore[attr-defined]


class _Last:
    """Things by their keys: those that were needed last."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: OrderedDict[Hashable, Any] = OrderedDict()
        self.lock = threading.RLock()  # making one thing may need another

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The thing of this key, made if there is none."""
        with self.lock:
            if key not in self.kept:
                self.kept[key] = make()
            self.kept.move_to_end(key)
            while len(self.kept) > self.most:
                self.kept.popitem(last=False)
            return self.kept[key]


_PROGRAMS, _ONCE = _Last(MOST), _Last(OWN)


def once(owner: Any, key: Hashable, make: Callable[[], Made]) -> Made:
    """What was made for this very ``owner`` under this key.  So runs of one and the same algorithm,
    with other seeds or on other data of the same kind, trace it once.

    >>> parts = ("client", "server")
    >>> once(parts, "names", lambda: list(parts)) is once(parts, "names", lambda: list(parts))
    True
    """
    return _ONCE.get((id(owner), key), lambda: (owner, make()))[
        1
    ]  # kept along: no other has its id


def _single(value: Any) -> bool:
    """Most constants are single numbers: they travel as one array."""
    return value.shape == () and value.dtype == np.float32


def _packed(values: Sequence[Any]) -> tuple[Any, list[Any]]:
    single = np.array([value for value in values if _single(value)], np.float32)
    return jax.device_put((single, [value for value in values if not _single(value)]))


def _unpacked(packed: tuple[Any, list[Any]], likes: Sequence[Any]) -> Iterator[Any]:
    numbers, others = iter(range(len(packed[0]))), iter(packed[1])
    for like in likes:
        if _single(like):
            number = next(numbers)
            yield jax.lax.slice(packed[0], [number], [number + 1]).reshape(())
        else:
            yield next(others)
