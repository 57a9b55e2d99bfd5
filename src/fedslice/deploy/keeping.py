"""What a coordinator keeps in its folder: its secret, and after every round all that it needs to go
on."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedslice.deploy.office import Office
from fedslice.errors import CheckpointError
from fedslice.files.writing import atomic_write
from fedslice.simulation import checkpoint

SECRET = "secret"


class Standing(NamedTuple):
    """How far a run is: its round, the nonce of each node's last answer that counted, bytes in all,
    and in how many rounds each node was asked."""

    round: int = 0
    accepted: Mapping[str, bytes] = {}
    totals: Mapping[str, int] = {}
    asked: Mapping[str, int] = {}


def there(folder: Path | None) -> bool:
    """Whether a run is kept in the folder.

    >>> there(None)
    False
    """
    return folder is not None and (folder / checkpoint.NAME).exists()


def secret(folder: Path | None) -> int:
    """The server's secret of 64 bits, from the folder; or a new one.

    >>> home = getfixture("tmp_path")
    >>> secret(home) == secret(home)
    True
    """
    if folder is None:
        return secrets.randbits(64)
    file = folder / SECRET
    if not file.exists():
        if there(folder):
            raise CheckpointError(f"{file} is gone, and the run cannot go on without it")
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(file, f"{secrets.randbits(64):016x}".encode(), private=True)
    try:
        return int(file.read_text(), 16)
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: restore it from a copy") from error


def write(folder: Path, identity: Mapping[str, Any], office: Office, standing: Standing) -> None:
    """Keep a run after a round."""
    where = {
        **standing._asdict(),
        "room": office.room,
        "accepted": {name: nonce.hex() for name, nonce in standing.accepted.items()},
    }
    checkpoint.write(folder, dict(identity), office.store, checkpoint.Saved(where, (), b""))


def read(folder: Path, identity: Mapping[str, Any], office: Office) -> Standing:
    """Put the state that is kept in the folder into the office; how far it is."""
    where, _, _ = checkpoint.read(folder, dict(identity), office.store, ())
    office.own()
    office.room = dict(where["room"])
    accepted = {name: bytes.fromhex(nonce) for name, nonce in where["accepted"].items()}
    return Standing(where["round"], accepted, dict(where["totals"]), dict(where.get("asked", {})))
