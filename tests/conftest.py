"""One compilation cache for all tests, workers and sessions: many compile the same rounds.
Parsed data: each test its own."""

import ctypes
import gc
import os
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import pytest

ROOMY = 560 << 20  # bytes that a process may have before it lets go of compiled code,
MORE = 30 << 20  # and by which it grows at least from one time to the next
# The emitters that work operation by operation compile small programs in half the time.  Without
# fused multiply-add a product is rounded before it is added to, whatever the program around it: in
# some programs the compiler would contract the two and in others not, and a client alone could
# differ from one in a simulation in a last bit (docs/design.md, An invitation has room).  A process
# that is given a flag that it does not know ends at once, so versions that were not tried go
# without.
#
# Code that is made in one piece, not in one for each core, takes a third less work.
FLAGS = (
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_max_isa=AVX"
    " --xla_cpu_parallel_codegen_split_count=1"
)
TRIED = (0, 6, 2), (0, 11)
PROGRAMS = 200  # that are lowered in one context
# Files that take longest begin first, those that wait for processes before all: one that began when
# the others were through would leave a core idle.
FIRST = (
    "tests/deploy/test_flower.py",
    "tests/test_pages.py",
    "tests/cluster/test_ray.py",
    "tests/cli/test_cli.py",
    "tests/round/test_protocol.py",
    "tests/recipes/test_laws.py",
)
# Then come those that make large data, while the workers are small: what tests leave behind between
# the blocks that they free adds up.
LARGE = ("tests/tasks/", "tests/files/", "tests/data/")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Memory())
    config.option.loadscopereorder = False  # pytest-xdist would begin with the most tests
    scratch = tempfile.TemporaryDirectory()
    config.add_cleanup(scratch.cleanup)
    os.environ["FEDSLICE_CACHE"] = str(Path(scratch.name, "0"))
    os.environ["FEDSLICE_COMPILED"] = "off"  # for processes that tests start
    if TRIED[0] <= jax.__version_info__ < TRIED[1]:  # read when the first array is made
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
    jax.config.update("jax_compilation_cache_dir", str(compiled(config.rootpath)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # tests compile more than they compute; so do the processes that they start, which get no cache,
    # since some are killed and might leave half an entry
    jax.config.update("jax_disable_most_optimizations", True)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    Contexts.use()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(FIRST)}

    def place(item: pytest.Item) -> int:
        large = item.nodeid.startswith(LARGE)
        return places.get(item.nodeid.partition("::")[0], len(FIRST) + (not large))

    items.sort(key=place)


def compiled(root: Path) -> Path:
    """The folder of compiled code, one for all workers and sessions.  JAX writes entries without a
    rename, so that a worker could read the half of what another is writing, which is a warning and
    so an error; here they are whole at once.  They are hardly compressed: that took longer than it
    spared.  With versions of JAX that were not tried each worker has a folder of its own."""
    home = root / ".pytest_cache" / "xla"
    if not TRIED[0] <= jax.__version_info__ < TRIED[1]:
        return home / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    from jax._src import compilation_cache, lru_cache

    def put(cache: Any, key: str, value: bytes) -> None:
        entry = Path(cache.path) / f"{key}-cache"
        if not entry.exists():
            half = entry.with_name(f"{os.getpid()}-{threading.get_ident()}.half")
            half.write_bytes(value)
            half.replace(entry)

    lru_cache.LRUCache.put = put
    compilation_cache.compress_executable = partial(zlib.compress, level=1)
    compilation_cache.decompress_executable = zlib.decompress
    return home / "all"


class Contexts(threading.local):
    """JAX makes a new context of MLIR for every program that it lowers, a tenth of the work of many
    tests: here one serves many programs of a thread, and then is let go with what it knows.
    Versions of JAX that were not tried go without."""

    left, context = 0, None

    @classmethod
    def use(cls) -> None:
        if not TRIED[0] <= jax.__version_info__ < TRIED[1]:
            return
        from jax._src.interpreters import mlir

        make = mlir.make_ir_context
        here = cls()

        def shared() -> Any:
            if not here.left:
                here.context, here.left = make(), PROGRAMS
            here.left -= 1
            return here.context

        mlir.make_ir_context = shared


class Memory:
    """Lets go of compiled code when it fills the memory: that of some tests is of little use to
    later ones.  Hooks and no fixture, since fixtures of this folder are not for the doctests."""

    limit = ROOMY

    def pytest_collection_finish(self) -> None:
        """What was imported and collected stays: no need to look through it for garbage, again and
        again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)  # tracing makes much, and little of it is garbage

    def pytest_runtest_logfinish(self) -> None:
        """After each test."""
        if resident() < self.limit:
            return
        generated.cache_clear()
        program = sys.modules.get("fedslice.round.program")
        for kept in (program._PROGRAMS.kept, program._ONCE.kept) if program else ():
            kept.clear()  # before JAX's caches: programs that somebody holds stay in memory
        jax.clear_caches()
        gc.collect()
        with suppress(OSError, AttributeError):  # glibc keeps what was freed, unless it is told
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        self.limit = max(ROOMY, resident() + MORE)


def resident() -> int:
    """Bytes that this process has in memory, where that is known."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else 0


@pytest.fixture(autouse=True)
def _own_cache() -> None:
    """What one test parsed must not spare another the parsing."""
    last = Path(os.environ["FEDSLICE_CACHE"])
    os.environ["FEDSLICE_CACHE"] = str(last.with_name(str(int(last.name) + 1)))


@lru_cache(maxsize=8)
def generated(make: Callable[..., Any], workload: Any, scale: float, changes: Sequence[str]) -> Any:
    return make(workload, None, scale, changes)


@pytest.fixture(autouse=True)
def _tasks_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is generated for a command is one and the same for all commands of all tests, and
    so are its algorithms: what was traced for them is there for the next run."""
    from fedslice.cli import wanted
    from fedslice.round import program
    from fedslice.tasks.base import Task

    make, validated = wanted.make_task, Task.validated

    def made(workload: Any, place: Path | None, scale: float, changes: Sequence[str]) -> Task:
        if place is not None:
            return make(workload, place, scale, changes)
        return generated(make, workload, scale, tuple(changes))

    def held_out(task: Task, share: float) -> Task:
        return program.once(task, ("validated", share), lambda: validated(task, share))

    monkeypatch.setattr(wanted, "make_task", made)
    monkeypatch.setattr(Task, "validated", held_out)
    monkeypatch.setattr(program._ONCE, "most", 64)


@pytest.fixture(autouse=True)
def _nobody_cuts_the_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then what was written, and not yet synced, could be lost: processes that are killed lose
    nothing.  A deployment syncs thousands of small files."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(autouse=True)
def _no_leftover_float64() -> Iterator[None]:
    """Tests compare 32-bit results: no test may leave another precision behind."""
    yield
    assert not jax.config.jax_enable_x64
