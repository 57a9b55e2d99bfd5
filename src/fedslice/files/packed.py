"""One file of a data set: loose on disk, a member of a zip (read in place), or with gzip."""

import gzip
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from fedslice.errors import InputError
from fedslice.files.guard import check_unpacked, unreadable

WHOLE = 64 << 20  # bytes up to which a fingerprint reads everything
BLOCK, BLOCKS = 64 << 10, 64  # above that it reads so many bytes at so many places
_CHUNK = 1 << 20
_MARK = b"\xef\xbb\xbf"  # UTF-8 byte order mark
_GZIP = b"\x1f\x8b"
# RuntimeError: a zip with a password
DAMAGE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError)


@dataclass(frozen=True)
class File:
    """A file to read: on disk, or the ``member`` of the zip at ``path``.  Gzip is undone, by
    content or by name.

    >>> path = Path(getfixture("tmp_path")) / "a.csv.gz"
    >>> _ = path.write_bytes(gzip.compress(b"user,item\\r\\n1,2\\r\\n"))
    >>> file = File(path)
    >>> file.name, list(file.lines())
    ('a.csv.gz', ['user,item', '1,2'])
    """

    path: Path
    member: str = ""

    @property
    def name(self) -> str:
        """The name without folders, as packed: ``a.csv.gz``."""
        return self.address.rpartition("/")[2]

    @property
    def address(self) -> str:
        """The name with folders, on disk or in the zip."""
        return self.member or self.path.as_posix()

    def __str__(self) -> str:
        return f"{self.member} in {self.path}" if self.member else str(self.path)

    def open(self) -> BinaryIO:
        """The unpacked bytes as a stream; a damaged archive is an InputError when the damage is
        reached."""
        try:
            raw, packed = self._raw()
            head = raw.peek(2)[:2]
        except DAMAGE as error:
            raise self.damaged(error) from error
        compressed = head == _GZIP
        if self.name.endswith(".gz") and not compressed:
            raw.close()
            raise self.damaged("it does not begin like a gzip file")
        if not compressed and not self.member:
            return raw
        inner = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if compressed else raw
        return io.BufferedReader(_Checked(self, inner, raw, packed), _CHUNK)

    def _raw(self) -> tuple[io.BufferedReader, int]:
        """The bytes before gzip is undone, and how many there are on disk."""
        size = self.path.stat().st_size
        if not self.member:
            return self.path.open("rb"), size
        with zipfile.ZipFile(self.path) as archive:  # the member keeps the archive's file open
            packed = min(size, archive.getinfo(self.member).compress_size)
            return io.BufferedReader(cast(io.RawIOBase, archive.open(self.member)), _CHUNK), packed

    def damaged(self, why: object) -> InputError:
        """The error to raise when it cannot be read."""
        return unreadable(self, why)

    def read(self) -> bytes:
        """All unpacked bytes."""
        with self.open() as stream:
            return stream.read()

    def text(self, encoding: str = "utf-8") -> str:
        """All text, without byte order mark; line ends are ``\\n``."""
        content = self.read().removeprefix(_MARK)
        try:
            return content.decode(encoding).replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise self._undecodable(error) from error

    def lines(self, encoding: str = "utf-8") -> Iterator[str]:
        """Line after line, without byte order mark and line ends, in little memory.

        A CSV whose quoted fields contain line ends is to be read from ``io.StringIO(file.text())``.
        """
        stream = self.open()
        with io.TextIOWrapper(stream, encoding, newline="\n") as reader:
            if cast(io.BufferedReader, stream).peek(3)[:3] == _MARK:
                stream.read(3)
            try:
                for line in reader:
                    yield line.removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise self._undecodable(error) from error

    def _undecodable(self, error: UnicodeDecodeError) -> InputError:
        return InputError(
            f"{self} is not text in {error.encoding} ({error.reason}). Convert it, or download it"
            " again"
        )

    def fingerprint(self) -> str:
        """A short text that changes with the packed content.

        Up to 64 MB it depends on every byte; above, on the size, the time of modification and
        evenly spaced blocks.
        """
        try:
            large = self.path.stat().st_size > WHOLE
            packed = (
                f"{sample(self.path)} {self.path.stat().st_mtime_ns}"
                if large
                else digest(self.path, "blake2b")
            )
        except OSError as error:
            raise self.damaged(error) from error
        return hashlib.blake2b(f"{packed} {self.member}".encode(), digest_size=16).hexdigest()


class _Checked(io.RawIOBase):
    """A stream whose decompression errors become an InputError that names the file, and whose size
    is bounded."""

    def __init__(self, file: File, inner: BinaryIO, raw: BinaryIO, packed: int):
        self._file, self._inner, self._raw, self._packed = file, inner, raw, packed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._inner.seekable()

    def read(self, size: int = -1, /) -> bytes:
        try:
            content = self._inner.read(size)
        except DAMAGE as error:
            raise self._file.damaged(error) from error
        check_unpacked(self._file, self._inner.tell(), self._packed)
        return content

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self.read(_CHUNK), b""))  # in pieces, to stop in time

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        try:
            return self._inner.seek(offset, whence)
        except DAMAGE as error:
            raise self._file.damaged(error) from error

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
            self._raw.close()  # GzipFile leaves it open
        super().close()


def digest(path: Path, kind: str) -> str:
    """The checksum of a file in hexadecimal, ``kind`` being ``md5``, ``sha256`` or ``blake2b``."""
    with path.open("rb") as stream:
        return hashlib.file_digest(
            stream, lambda: hashlib.new(kind, usedforsecurity=False)
        ).hexdigest()


def checksum(path: Path) -> str:
    """Size and CRC-32 of all bytes, at 2 GB a second: it is against damage, not against forgers.

    >>> path = Path(getfixture("tmp_path")) / "a"
    >>> _ = path.write_bytes(b"123456789")
    >>> checksum(path)
    '9 cbf43926'
    """
    size = state = 0
    with path.open("rb") as stream:
        while block := stream.read(_CHUNK):
            size, state = size + len(block), zlib.crc32(block, state)
    return f"{size} {state:08x}"


def sample(path: Path) -> str:
    """A checksum of the size and 64 evenly spaced blocks, the first and the last included: of all
    of a small file."""
    size = path.stat().st_size
    state = hashlib.blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as stream:
        if size <= BLOCK * BLOCKS:
            state.update(stream.read())
        else:
            for index in range(BLOCKS):
                stream.seek((size - BLOCK) * index // (BLOCKS - 1))
                state.update(stream.read(BLOCK))
    return state.hexdigest()
