"""Text files and folders: the files that are read, their order, and errors about unusable files."""

import gzip
import os

import pytest
from corpora import documents, refused, write


def test_text_files_of_a_folder_in_the_order_of_their_paths(tmp_path):
    files = {
        "b.txt": "b",
        "a/z.md": "az",
        "a/b/c.TEXT": "abc",
        "a.txt.gz": gzip.compress(b"a"),
        "a/notes.pdf": b"\0",
        "b.json.gz": b"\0",
        "empty.txt": "",
    }
    folder = write(tmp_path, files)
    # Sorted by the parts of the path: the folder `a` comes before the file `a.txt.gz`.
    assert list(documents([str(folder)])) == ["abc", "az", "a", "b"]
    assert list(documents([str(folder / "b.txt"), str(folder / "a")])) == ["b", "abc", "az"]


def test_folders_behind_links_are_read_and_hidden_files_are_not(tmp_path):
    folder = write(tmp_path, {"read/a.txt": "a", "read/.git/b.txt": "b", "read/.c.txt": "c", "other/d.txt": "d"})
    (tmp_path / "read" / "sub").symlink_to(tmp_path / "other")
    assert list(documents([str(folder / "read")])) == ["a", "d"]
    (tmp_path / "other" / "up").symlink_to(tmp_path)
    refused([str(folder)], "other/up: is a link to a folder that contains it")


def test_byte_order_mark_is_stripped(tmp_path):
    write(tmp_path, {"a.txt": "\ufeffOne.".encode()})
    assert list(documents([str(tmp_path / "a.txt")])) == ["One."]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("latin.txt", "café".encode("latin-1"), ["latin.txt: byte 3 is not UTF-8 (0xe9"]),
        ("cut.txt", "12é".encode()[:-1], ["cut.txt: byte 2 is not UTF-8 (0xc3: unexpected end of data)"]),
        ("latin.gz", gzip.compress("café".encode("latin-1"), mtime=0), ["latin.gz: unpacked byte 3 is not UTF-8"]),
        ("program.txt", b"\x7fELF\0\1", ["program.txt: byte 4 is NUL: a binary file"]),
        ("wide.txt", "ab".encode("utf-16-le"), ["wide.txt: byte 1 is NUL"]),
        ("short.txt.gz", gzip.compress(b"a" * 1000, mtime=0)[:-9], ["short.txt.gz: is not a complete .gz file"]),
        ("flipped.gz", gzip.compress(b"One.", mtime=0)[:-8] + b"\0" * 8, ["flipped.gz: is not a complete .gz file: CRC"]),
        ("no.txt.gz", b"", ["no.txt.gz: is not a complete .gz file: it is empty"]),
        ("none.gz", b"One.", ["none.gz: is not a complete .gz file: Not a gzipped file"]),
        ("blank.txt", " \n\n ", ["corpus ", "blank.txt: contains no text"]),
        ("x.pdf/y.pdf", b"", ["x.pdf: the folder contains no *.txt, *.text, *.md, *.tokens, *.raw, with or without .gz"]),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_unusable_files_are_named(tmp_path, name, content, words):
    write(tmp_path, {name: content})
    refused([str(tmp_path / name.partition("/")[0])], *words)


def test_unreadable_files_are_named(tmp_path):
    refused([str(tmp_path / "nothing.txt")], f"corpus {tmp_path}/nothing.txt: not found; name a file, a folder or tfds:NAME")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    refused([str(tmp_path)], f"corpus {tmp_path}/gone.txt: cannot be read: No such file or directory")
    refused(["/dev/null"], "corpus /dev/null: cannot be read: it is a device, not a file")


def test_pipes_are_refused_without_waiting(tmp_path):
    write(tmp_path, {"a.txt": "One."})
    os.mkfifo(tmp_path / "b.txt")
    for name in (tmp_path, tmp_path / "b.txt"):
        refused([str(name)], f"corpus {tmp_path}/b.txt: cannot be read: it is a named pipe, not a file")


def test_decompression_bomb(tmp_path):
    write(tmp_path, {"bomb.gz": gzip.compress(b"a" * 2**26 + b"b")})
    refused([str(tmp_path / "bomb.gz")], "bomb.gz: its ", "unpack to more than the limit of 67,108,864", "smaller files")


def test_file_larger_than_memory(tmp_path):
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(2**43)
    refused([str(tmp_path)], "huge.txt: cannot be read: it has 8,796,093,022,208 bytes")


@pytest.mark.parametrize("name", ["data.jsonl", "data.CSV", "data.jsonl.gz", "data.parquet"])
def test_files_of_records_are_no_text(tmp_path, name):
    (tmp_path / name).write_bytes(b'{"id": 0, "text": "some words"}')
    refused([str(tmp_path / name)], f"corpus {tmp_path / name}: a file of records; extract their texts into a .txt file")
