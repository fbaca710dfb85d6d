"""Files: checked reads (only regular files, no larger than memory allows), atomic writes, names, and errors with a name."""

import contextlib
import errno
import gzip
import hashlib
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from tiejax.system.memory import machine_memory

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}
# One file may take 1/SHARE of the memory, because several copies of its text exist: bytes, characters and sentences.
SHARE = 4
# A .gz file may unpack to this many times its size. Prose unpacks to about 3 times its size.
MOST_UNPACKED = 100
ALWAYS_UNPACKED = 2**26  # bytes that any .gz file may unpack to; small files can be more repetitive
BLOCK = 2**20
MOST_NAME_BYTES = 255


def check_file(path: Path) -> None:
    """Raise OSError unless `path` is a regular file, without opening it: a pipe would block, and a device might act."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {KINDS.get(stat.S_IFMT(mode), 'a special file')}, not a file", str(path))


def read_own_file(path: Path, most: int) -> bytes:
    """Read a file that tiejax wrote, if nothing else has taken its place.

    Raises ValueError if it is not a regular file or has more than `most` bytes, the largest size that tiejax writes; OSError if
    it is missing or not readable.
    """
    try:
        return read_bytes(path, most)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EFBIG, errno.EISDIR, errno.ENOTDIR, errno.ELOOP):
            raise ValueError(error.strerror) from None
        raise


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Read a regular file of at most `most` bytes (default: a quarter of the memory); raises OSError."""
    check_file(path)
    most = _memory_share() if most is None else most
    if (size := path.stat().st_size) > most:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes; at most {most:,} are read into memory", str(path))
    return path.read_bytes()


def sha256(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def gunzip(packed: bytes) -> bytearray:
    """Decompress the bytes of a .gz file, with a limit.

    The limit is 100 times the compressed size (but at least 64 MiB), or a quarter of the memory if that is less;
    decompression stops there. Raises ValueError if the file is damaged or exceeds the limit.
    """
    if not packed:
        raise ValueError("is not a complete .gz file: it is empty")
    most = min(max(MOST_UNPACKED * len(packed), ALWAYS_UNPACKED), _memory_share())
    content = bytearray()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            while block := file.read(BLOCK):
                content += block
                if len(content) > most:
                    raise ValueError(
                        f"its {len(packed):,} bytes unpack to more than the limit of {most:,} bytes "
                        f"({MOST_UNPACKED} times the packed size, or a quarter of the memory); split it into smaller files"
                    )
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"is not a complete .gz file: {error}") from None
    return content


def _memory_share() -> int:
    return (machine_memory() or sys.maxsize) // SHARE


def is_name(text: str) -> bool:
    """Return whether a text is the name of one file in a folder, not a path, on every operating system."""
    if text in ("", ".", "..") or set("/\\\0") & set(text):
        return False
    try:
        return len(text.encode()) <= MOST_NAME_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


@contextlib.contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add `path` to OSErrors without a filename that are raised in this context, such as those of a failed write."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically: a killed process leaves the old or the new content. Raises OSError with the path."""
    replace_with(path, lambda file: file.write(content))


def replace_with(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file atomically by the bytes that `write` writes."""
    part = path.with_name(f".{path.name}.part")
    with naming_file(path):
        try:
            with part.open("wb") as file:
                write(file)
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
