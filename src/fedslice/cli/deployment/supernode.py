"""Flower's SuperNode, which looks for letters every quarter of a second.

    python .../supernode.py ARGUMENTS OF flower-supernode

A SuperNode of flwr 1.41 sleeps three seconds when there is no letter, and half a second until it
looks again whether its app has replied.  A secure sum has five turns, and in each of them all nodes
wait for the last one: the sleeping was more than half of a round.  There is no option for it, so
its ``time.sleep`` is replaced, in the one module that has these loops.  On a loopback looking costs
nobody anything; for far nodes ``flower-supernode`` itself is as good.

This file is run by its path, and imports nothing of fedslice: a SuperNode needs none of it.
"""

import sys
import time
from types import SimpleNamespace

PAUSE = 0.25  # seconds, at most


def main() -> None:
    """Start the SuperNode."""
    from flwr.supernode import start_client_internal as loops
    from flwr.supernode.cli import flower_supernode

    shorter = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, PAUSE)))
    loops.__dict__["time"] = shorter
    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()
