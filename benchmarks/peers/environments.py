"""A virtual environment for each peer, by name and version from the package index.

    python benchmarks/peers/environments.py FOLDER [PEER ...]

FedJAX's last release is of the time of JAX 0.4, so that is what it gets.  fluke needs torchvision,
whose wheels on the index go with the index's own build of PyTorch: hence the three equals signs,
which refuse any other build.  An environment that cannot be made is left out with the reason."""

import subprocess
import sys
from pathlib import Path

PINS = {
    "torch": ("torch==2.13.0", "numpy==2.4.6"),
    "flower": ("flwr[simulation]==1.41.0", "torch==2.13.0"),
    "pfl": ("pfl==0.6.0", "torch==2.13.0"),
    "fluke": ("fluke-fl==0.8.1", "torch===2.13.0", "torchvision==0.28.0"),
    "fedjax": ("fedjax==0.0.17", "jax==0.4.38", "jaxlib==0.4.38"),
}


def make(name, folder):
    """The environment's Python; made if it is not there.  Raises RuntimeError with what to do."""
    place = Path(folder) / name
    python, ready = place / "bin" / "python", place / ".ready"
    pins = "\n".join(PINS[name])
    if ready.exists() and ready.read_text() == pins:
        return python
    print(f"{name}: installing {', '.join(PINS[name])}", flush=True)
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(python), "-m", "pip", "install", "--quiet", *PINS[name]],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeError(
                f"pip install {' '.join(PINS[name])} did not work with {sys.executable}: {reason}"
            )
    ready.write_text(pins)
    return python


if __name__ == "__main__":
    for peer in sys.argv[2:] or PINS:
        print(f"{peer}: {make(peer, sys.argv[1])}")
