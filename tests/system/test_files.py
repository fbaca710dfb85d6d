"""Checked reads of files: kinds of files, sizes, and decompression limits."""

import gzip
import os
import zlib
from pathlib import Path

import pytest
from corpora import python
from special_files import socket_at

from tiejax.system import files
from tiejax.system.files import check_file, gunzip, read_bytes


def test_regular_files_are_read_also_through_links(tmp_path):
    (tmp_path / "a").write_bytes(b"\0\xff")
    (tmp_path / "b").symlink_to("a")
    assert read_bytes(tmp_path / "b") == read_bytes(tmp_path / "a") == b"\0\xff"


def test_errors_name_pipes_sockets_devices_and_directories(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket_at(tmp_path, "socket"):
        for name, what in (("pipe", "named pipe"), ("link", "named pipe"), ("socket", "socket"), (".", "directory")):
            with pytest.raises(OSError, match=f"it is a {what}, not a file") as error:
                check_file(tmp_path / name)
            assert error.value.filename == str(tmp_path / name)
            with pytest.raises(OSError, match=what):
                read_bytes(tmp_path / name)
    with pytest.raises(OSError, match="it is a device"):
        read_bytes(Path("/dev/zero"))
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "none")


def test_files_larger_than_the_memory_are_not_read(tmp_path):
    """The file of 2^43 bytes is sparse and takes no space on the disk."""
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**43)
    with pytest.raises(OSError, match=r"it has 8,796,093,022,208 bytes; at most [\d,]+ are read into memory"):
        read_bytes(tmp_path / "huge")
    (tmp_path / "small").write_bytes(b"12345")
    assert read_bytes(tmp_path / "small", 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes; at most 4 are read"):
        read_bytes(tmp_path / "small", 4)


def test_gunzip(monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 7)
    content = os.urandom(1000)
    assert gunzip(gzip.compress(content)) == content
    assert gunzip(gzip.compress(b"one") + gzip.compress(b"two") + b"\0\0") == b"onetwo"
    assert gunzip(gzip.compress(b"")) == b""
    with pytest.raises(ValueError, match=r"is not a complete \.gz file"):
        gunzip(gzip.compress(content)[:-3])


BOMB = """
import resource, sys
from tiejax.system.files import gunzip
packed = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    gunzip(packed)
except ValueError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_decompression_stops_at_the_limit(tmp_path):
    packer = zlib.compressobj(wbits=31)
    block = bytes(2**24)
    packed = b"".join(packer.compress(block) for _ in range(16)) + packer.flush()
    (tmp_path / "bomb.gz").write_bytes(packed)
    assert len(packed) < 2**19
    ended = python(BOMB, tmp_path / "bomb.gz")
    line, megabytes = ended.out.splitlines()
    assert line.startswith(f"its {len(packed):,} bytes unpack to more than the limit of 67,108,864 bytes")
    assert "100 times" in line
    assert int(megabytes) < 160  # of 256


def test_limit_grows_with_the_file(monkeypatch):
    monkeypatch.setattr(files, "ALWAYS_UNPACKED", 1000)
    packed = gzip.compress(bytes(200_000))
    with pytest.raises(ValueError, match=f"unpack to more than the limit of {100 * len(packed):,} bytes"):
        gunzip(packed)
    noise = os.urandom(5000)
    assert gunzip(gzip.compress(noise)) == noise


def test_limit_is_at_most_a_quarter_of_the_memory(monkeypatch):
    monkeypatch.setattr(files, "machine_memory", lambda: 2**20)
    with pytest.raises(ValueError, match="unpack to more than the limit of 262,144 bytes"):
        gunzip(gzip.compress(bytes(300_000)))
