"""A deployment in a process of its own, which goes on from its folders: for tests that kill it."""

import hashlib
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

KILLS = int(os.environ.get("FEDSLICE_KILLS", "5"))
ROUNDS = 10 * KILLS


def main(home: Path, cache: str, name: str = "scaffold-2", rounds: int = ROUNDS) -> None:
    import jax

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_disable_most_optimizations", True)
    from nodes import Deployment, bits

    import fedslice as fs

    if name == "shares":
        from hidden import EVERYBODY, shares

        made = Deployment(name, home, shares(), node={"trial": True}, sampler=EVERYBODY)
    else:
        made = Deployment(name, home, sampler=fs.sampling.uniform(4))
    (home / "started").touch()
    times = [time.monotonic()]
    for report in made.server.rounds(rounds - made.server.round):
        assert report.counted == report.asked, report
        times.append(time.monotonic())
    (home / "pace").write_text(str(min(after - before for before, after in pairwise(times))))
    memories = [bits(node.memory) for node in made.link.members.values()]
    every = [*bits(made.server.office.store.state), *(leaf for each in memories for leaf in each)]
    (home / "hash").write_text(hashlib.sha256(b"".join(every)).hexdigest())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
