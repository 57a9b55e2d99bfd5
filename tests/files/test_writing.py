"""Files that are replaced whole: what reaches the disk when, and what an error says."""

import errno
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from fedslice.errors import CheckpointError, InputError, WriteError
from fedslice.files.sealed import load, raw, seal
from fedslice.files.writing import atomic_write, replacing, writing


def test_the_file_is_on_disk_before_it_takes_its_name_and_the_name_before_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in between leaves the old file or the new one: first the content is synced, then the
    folder, in which the name is."""
    file, seen, sync = tmp_path / "f", [], os.fsync
    file.write_bytes(b"old")

    def noting(handle: int) -> None:
        seen.append((stat.S_ISDIR(os.fstat(handle).st_mode), file.read_bytes()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    atomic_write(file, b"new")
    assert seen == [(False, b"old"), (True, b"new")]


def test_a_file_has_the_mode_of_the_umask_whoever_wrote_it(tmp_path: Path) -> None:
    """Some libraries make files for their owner alone."""
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "f") as temporary:
        temporary.write_bytes(b"x")
        temporary.chmod(0o600)
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_error_names_the_file_and_the_reason(tmp_path: Path) -> None:
    """Once, in words, and what became of the old file; nothing is left behind."""
    file = tmp_path / "f"
    file.write_bytes(b"old")

    def half() -> None:
        with replacing(file) as temporary:
            temporary.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(WriteError) as caught:
        half()
    assert str(caught.value) == (
        f"{file} could not be written: No space left on device. If there was one before, it is"
        " intact; make room or mend the disk and try again."
    )
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (b"old", [file])


def test_an_error_that_says_what_to_do_is_left_as_it_is(tmp_path: Path) -> None:
    """Of one file within another, too: the inner one is named."""
    inner = tmp_path / "inner"
    with pytest.raises(InputError, match=r"^clean it$"), writing(tmp_path / "f"):
        raise InputError("clean it")
    with (
        pytest.raises(WriteError, match=rf"^{re.escape(str(inner))} could not be written: gone$"),
        writing(tmp_path / "outer"),
        writing(inner),
    ):
        raise OSError("gone")


def test_arrays_of_any_layout_are_sealed(tmp_path: Path) -> None:
    """Every second number, columns first, a single number, none: bytes are those of a copy in
    order."""
    grid = np.arange(12.0).reshape(3, 4)
    leaves = {"line": np.arange(10)[::2], "turned": grid.T, "one": np.array(3.0), "none": grid[:0]}
    for leaf in leaves.values():
        assert bytes(raw(leaf)) == leaf.tobytes()
    seal(tmp_path / "f", {"a": 1}, {name: leaf.copy("C") for name, leaf in leaves.items()})
    about, found = load(tmp_path / "f")
    assert about["a"] == 1
    assert all(np.array_equal(found[name], leaf) for name, leaf in leaves.items())


@pytest.mark.parametrize(
    "changed",
    [
        {"b": np.arange(4, dtype=np.int32)},
        {"a": np.arange(4, dtype=np.int32).view(np.float32)},
        {"a": np.arange(4, dtype=np.int32).reshape(2, 2)},
        {"a": np.array([0, 1, 2, 4], np.int32)},
    ],
    ids=["name", "type", "shape", "value"],
)
def test_the_checksum_is_of_names_types_shapes_and_values(
    changed: dict[str, np.ndarray], tmp_path: Path
) -> None:
    """The same bytes under another name, or read as something else, are not what was sealed."""
    file = tmp_path / "f"
    seal(file, {}, {"a": np.arange(4, dtype=np.int32)})
    with safe_open(file, "np") as handle:
        header = handle.metadata()
    save_file(changed, file, header)
    with pytest.raises(CheckpointError, match="checksum does not match"):
        load(file)
