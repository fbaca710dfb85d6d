"""Files that somebody else wrote, opened for reading: regular ones, and no larger than the memory can bear."""

import errno
import gzip
import io
import stat
import sys
import zlib
from pathlib import Path

from tiejax.system.memory import machine_memory

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}
# Of the memory, what one file may take: its text is then there several times, as bytes, characters and sentences.
SHARE = 4
# How many times its size a .gz may take unpacked: prose takes 3 times, what is a hundredth of its size says nothing.
MOST_UNPACKED = 100
ALWAYS_UNPACKED = 2**26  # bytes; a small file may well be more repetitive
BLOCK = 2**20


def check_file(path: Path) -> None:
    """Raise OSError, before the file is opened, unless it is a regular one: a pipe would be waited for, a device might act."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file", str(path))


def content_of(path: Path, most: int) -> bytes:
    """Return what a file holds that we wrote, or somebody in its place.

    Raises ValueError where it is no regular file or has more than `most` bytes, which we never write; OSError where it is gone
    or the system lets nobody read it.
    """
    try:
        return read_bytes(path, most)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EFBIG, errno.EISDIR, errno.ENOTDIR, errno.ELOOP):
            raise ValueError(error.strerror) from None
        raise


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Return what a regular file holds, if it has at most `most` bytes (default: a quarter of the memory); raises OSError."""
    check_file(path)
    most = _share() if most is None else most
    if (size := path.stat().st_size) > most:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes; at most {most:,} are read into memory", str(path))
    return path.read_bytes()


def unpacked(packed: bytes) -> bytearray:
    """Return what the bytes of a .gz file unpack to; raises ValueError where they do not, or to too much.

    Too much is more than 100 times their number (and than 64 MiB), or than a quarter of the memory. No more than that is
    ever unpacked.
    """
    most = min(max(MOST_UNPACKED * len(packed), ALWAYS_UNPACKED), _share())
    content = bytearray()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            while block := file.read(BLOCK):
                content += block
                if len(content) > most:
                    raise ValueError(
                        f"its {len(packed):,} bytes unpack to more than {most:,}, the most that is read of them "
                        f"({MOST_UNPACKED} times their number, or a quarter of the memory); cut it into smaller files"
                    )
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"is no whole .gz file: {error}") from None
    return content


def _share() -> int:
    """Return the bytes that one file may take."""
    return (machine_memory() or sys.maxsize) // SHARE
