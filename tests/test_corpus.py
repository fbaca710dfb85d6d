"""Corpora: what is read, in which order, what counts as a sentence, and what is said of text that cannot be used."""

import contextlib
import gzip
import hashlib
import http.server
import importlib.util
import json
import re
import socket
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import Ended, end, start_python

from tiejax.text import corpus
from tiejax.text.corpus import CorpusError

NOVELS = Path(__file__).parents[2] / "shared" / "data" / "gutenberg-fiction"


def write(folder: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def python(code: str, *argv: object, env: dict[str, str] | None = None) -> Ended:
    """Run code in a process of its own, with the package of this checkout."""
    paths = {"PYTHONPATH": str(Path(__file__).parents[1])} | (env or {})
    return end(start_python("-W", "error", "-c", textwrap.dedent(code), *argv, env=paths))


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of an HTTP server of a folder's files."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: Quiet(*a, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


# Sentences.


def test_sentences_of_a_page():
    page = (
        "CHAPTER I\r\n\r\nMr. Bennet was among\r\nthe   earliest of those who\r\nwaited. "
        "He\thad always intended to\r\nvisit him.\r\n"
        ' \t\r\n"You do not know what I suffer," said she. "Ah!" he cried; "no?"\r\n\r\n\r\n'
    )
    assert corpus.sentences(page) == [
        "CHAPTER I",
        "Mr. Bennet was among the earliest of those who waited.",
        "He had always intended to visit him.",
        '"You do not know what I suffer," said she.',
        '"Ah!" he cried; "no?"',
    ]
    assert corpus.sentences(" \n\n\t\n") == corpus.sentences("") == []


@given(st.text(alphabet=" \n\r\t.!?\"'abcMrUS1,\u00e9\u201c\u3042", max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_word_is_lost_between_sentences(text):
    found = corpus.sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence and sentence == " ".join(sentence.split()) for sentence in found)


@pytest.mark.skipif(not NOVELS.is_dir(), reason="the novels of shared/data are not here")
def test_sentences_of_a_novel():
    """Against an independent estimate: ends of sentences, as a pattern of full stops before a capital, in Alice."""
    (text,) = corpus.documents([str(NOVELS / "carroll_alice-in-wonderland.txt")])
    found = corpus.sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]
    ends = sum(
        1 + len(re.findall(r"[.!?][\"'\u2019\u201d_)]*\s+[\"'\u2018\u201c_(]*[A-Z]", paragraph)) for paragraph in paragraphs
    )
    assert 0.8 * ends < len(found) < 1.2 * ends


# Files.


def test_folders_are_read_by_path_and_only_text_in_them(tmp_path):
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
    # By parts of the path: the folder `a` before the file `a.txt.gz`.
    assert list(corpus.documents([str(folder)])) == ["abc", "az", "a", "b"]
    assert list(corpus.documents([str(folder / "b.txt"), str(folder / "a")])) == ["b", "abc", "az"]


def test_a_byte_order_mark_is_no_text(tmp_path):
    write(tmp_path, {"a.txt": "\ufeffOne.".encode()})
    assert list(corpus.documents([str(tmp_path / "a.txt")])) == ["One."]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("latin.txt", "café".encode("latin-1"), ["latin.txt: byte 3 is not UTF-8 (0xe9"]),
        ("cut.txt", "12é".encode()[:-1], ["cut.txt: byte 2 is not UTF-8 (0xc3: unexpected end of data)"]),
        ("latin.gz", gzip.compress("café".encode("latin-1"), mtime=0), ["latin.gz: unpacked byte 3 is not UTF-8"]),
        ("program.txt", b"\x7fELF\0\1", ["program.txt: byte 4 is NUL: a binary file"]),
        ("wide.txt", "ab".encode("utf-16-le"), ["wide.txt: byte 1 is NUL"]),
        ("short.txt.gz", gzip.compress(b"a" * 1000, mtime=0)[:-9], ["short.txt.gz: is no whole .gz file"]),
        ("flipped.gz", gzip.compress(b"One.", mtime=0)[:-8] + b"\0" * 8, ["flipped.gz: is no whole .gz file: CRC"]),
        ("none.gz", b"One.", ["none.gz: is no whole .gz file: Not a gzipped file"]),
        ("blank.txt", " \n\n ", ["--corpus ", "blank.txt: there is no text in it"]),
        ("x.pdf/y.pdf", b"", ["x.pdf: the folder holds no *.txt, *.text, *.md nor any .gz of these"]),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_files_that_cannot_be_used_are_named(tmp_path, name, content, words):
    write(tmp_path, {name: content})
    refused([str(tmp_path / name.partition("/")[0])], *words)


def test_files_that_cannot_be_read_are_named(tmp_path):
    refused([str(tmp_path / "nothing.txt")], f"--corpus {tmp_path}/nothing.txt: there is no such file or folder")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    refused([str(tmp_path)], f"--corpus {tmp_path}/gone.txt: cannot be read: No such file or directory")
    refused(["/dev/null"], "--corpus /dev/null: is no file")
    with pytest.raises(CorpusError, match="--text_feature body: only a corpus tfds:NAME has features"):
        list(corpus.documents([], text_feature="body"))


def refused(names: list[str], *words: str, **options: str) -> None:
    with pytest.raises(CorpusError) as error:
        list(corpus.documents(names, **options))
    line = str(error.value)
    assert line.startswith("--")
    assert len(line.splitlines()) == 1
    for word in words:
        assert word in line


def test_fingerprint_tells_contents_and_their_order_and_no_names(tmp_path):
    write(tmp_path, {"a": "One.", "b": "Two.", "c": "One.", "ab": "One.Two.", "empty": ""})
    kind = type(corpus.sources([str(tmp_path / "a")])[0]).__name__
    write(tmp_path, {"as two": f"One.{kind}Two."})

    def of(*names):
        return corpus.fingerprint(corpus.sources([str(tmp_path / name) for name in names]))

    assert of("a", "b") == of("c", "b")
    assert len({of("a", "b"), of("b", "a"), of("ab"), of("as two"), of("a"), of("a", "b", "empty"), of("a", "a")}) == 7


def test_progress_ends_at_the_bytes_on_disk(tmp_path):
    write(tmp_path, {"a.txt": "One.", "b.txt": "", "c.txt.gz": gzip.compress(b"Three.")})
    found = corpus.sources([str(tmp_path)])
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert sum(source.size for source in found) == size
    for pass_over in (lambda seen: list(corpus.read(found, seen)), lambda seen: corpus.fingerprint(found, seen)):
        told: list[int] = []
        pass_over(told.append)
        assert told == sorted(told)
        assert told[-1] == size


# The default.


def test_the_default_is_prose_and_needs_nothing():
    ended = python(
        """
        import hashlib, json, socket, sys
        from tiejax.data import corpus
        def refuse(*_): raise AssertionError("the network was asked")
        socket.socket.connect = socket.getaddrinfo = refuse
        texts = list(corpus.documents([]))
        assert texts == list(corpus.documents([]))
        print(json.dumps({"texts": texts, "modules": [name.partition(".")[0] for name in sys.modules]}))
        """
    )
    assert ended.err == ""
    assert ended.status == 0
    found = json.loads(ended.out)
    assert not {"tensorflow", "tensorflow_datasets", "jax"} & set(found["modules"])
    text = "\n\n".join(found["texts"])
    paragraphs = text.split("\n\n")
    assert len(text) > 500_000
    assert len(set(paragraphs)) == len(paragraphs)
    assert ">>>" not in text
    # Of a module's docstring and of a topic.
    assert "Remove any common leading whitespace from every line in `text`." not in text, "markup stays"
    assert "Remove any common leading whitespace from every line in text." in text
    assert 'Assignments to "__debug__" are illegal.' in text


def test_prose_is_what_stays_of_documentation():
    documentation = """\
        urlopen(url, data=None) -> response

        Open the URL *url*, which can be
        either a string or a :class:`Request` object.

        The ``data`` must be an object. For example::

            response = urlopen("http://example.org", data={"a": 1})
            print(response.read())

        >>> Some words that look like a sentence are code.

        ======  =========
        Method  Meaning
        ======  =========

        Arguments
        ---------

        * The first one is a bullet.
        * The second one is another
          over two lines.

        1. A number may begin a sentence, too.
        lower-case words without an end
        """
    assert corpus.prose(textwrap.dedent(documentation)) == [
        "Open the URL url, which can be either a string or a Request object.",
        "The first one is a bullet.",
        "The second one is another over two lines.",
    ]


# TFDS.


class Fables(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Two splits in an order that is not the alphabet's, a text feature inside another, and one that is no text."""

    VERSION = tfds.core.Version("1.0.0")
    name = "fables"
    texts: ClassVar[dict[str, list[str]]] = {"train": ["One.", "Two, café."], "test": ["Three."]}
    features: ClassVar[dict[str, object]] = {"told": {"body": tfds.features.Text(), "words": tfds.features.Scalar(np.int64)}}

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(self.features), disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in self.texts}

    def _generate_examples(self, split):
        for index, text in enumerate(self.texts[split]):
            yield index, self.example(text)

    def example(self, text):
        return {"told": {"body": text, "words": len(text.split())}}

    def _log_download_bytes(self):
        pass

    _log_download_done = _log_download_bytes


class Titled(Fables):
    name = "titled"
    features: ClassVar[dict[str, object]] = {"title": tfds.features.Text(), "body": tfds.features.Text()}

    def example(self, text):
        return {"title": "A title.", "body": text}


class Numbers(Fables):
    name = "numbers"
    features: ClassVar[dict[str, object]] = {
        "number": tfds.features.Scalar(np.int64),
        "label": tfds.features.ClassLabel(num_classes=2),
    }

    def example(self, text):
        return {"number": 1, "label": 0}


def prepared(builder: type[Fables], folder: Path) -> Path:
    tfds.disable_progress_bar()
    built = builder(data_dir=folder, file_format="array_record")
    built.download_and_prepare(file_format="array_record")
    return Path(built.data_dir)


def test_every_split_of_a_tfds_data_set(tmp_path):
    prepared(Fables, tmp_path)
    expected = [
        text for split in tfds.builder_from_directory(tmp_path / "fables" / "1.0.0").info.splits for text in Fables.texts[split]
    ]
    assert sorted(expected) == ["One.", "Three.", "Two, café."]
    assert list(corpus.documents(["tfds:fables"], tfds_dir=str(tmp_path))) == expected
    assert list(corpus.documents(["tfds:fables"], "told/body", str(tmp_path))) == expected
    found = corpus.sources(["tfds:fables"], tfds_dir=str(tmp_path))
    assert corpus.fingerprint(found) == corpus.fingerprint(corpus.sources(["tfds:fables"], tfds_dir=str(tmp_path)))


def test_tfds_features_are_chosen_by_name(tmp_path):
    prepared(Titled, tmp_path)
    prepared(Numbers, tmp_path)
    there = {"tfds_dir": str(tmp_path)}
    refused(["tfds:titled"], "--text_feature: needed, since tfds:titled has the text features body, title", **there)
    refused(["tfds:titled"], "--text_feature text: tfds:titled has the text features body, title", text_feature="text", **there)
    refused(["tfds:numbers"], "tfds:numbers: none of its features is text (label, number)", **there)
    assert set(corpus.documents(["tfds:titled"], "title", str(tmp_path))) == {"A title."}
    body, title = (corpus.fingerprint(corpus.sources(["tfds:titled"], feature, str(tmp_path))) for feature in ("body", "title"))
    assert body != title


def test_tfds_names_that_do_not_exist_give_the_nearest(tmp_path):
    there = {"tfds_dir": str(tmp_path)}
    refused(["tfds:imdb_review"], "tfds:imdb_review: TFDS knows no data set of this name; the nearest is imdb_reviews", **there)
    refused(["tfds:imdb_reviews/plain"], "imdb_reviews has no configuration plain; the nearest is plain_text", **there)
    prepared(Fables, tmp_path)
    refused(["tfds:fable"], "the nearest is fables", **there)
    refused(["tfds:fables/long"], "tfds:fables/long: is prepared there only as fables/1.0.0", **there)


def test_a_damaged_tfds_data_set_is_named(tmp_path):
    (shard,) = prepared(Fables, tmp_path).glob("*-test.*")
    shard.write_bytes(shard.read_bytes()[:100])
    refused(["tfds:fables"], "--corpus tfds:fables: split test cannot be read", tfds_dir=str(tmp_path))


def test_a_tfds_data_set_in_another_format_says_so(tmp_path):
    info = prepared(Fables, tmp_path) / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    refused(["tfds:fables"], "as tfrecord, which only TensorFlow reads", tfds_dir=str(tmp_path))


DOWNLOADED = """
import tensorflow_datasets as tfds

class Downloaded(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(dl_manager.download("URL"))}

    def _generate_examples(self, path):
        NEEDED
        yield 0, {"text": path.read_text()}
"""
READ = """
    import sys, time
    import downloaded
    from tiejax.data import corpus
    begun = time.monotonic()
    try:
        print([*corpus.read(corpus.sources(["tfds:downloaded"], tfds_dir=sys.argv[1], say=print))])
    except corpus.CorpusError as error:
        print(error)
    assert time.monotonic() - begun < 5
    assert "tensorflow" not in sys.modules
"""


def catalogue(folder: Path, host: str, needed: str = "") -> dict[str, str]:
    """A data set of the catalogue that is downloaded from `host`, and the environment in which TFDS knows it."""
    url, content = f"{host}/prose.txt", b"One is here."
    checksum = f"{url}\t{len(content)}\t{hashlib.sha256(content).hexdigest()}\tprose.txt\n"
    code = DOWNLOADED.replace("URL", url).replace("NEEDED", needed)
    write(folder, {"site/prose.txt": content, "code/downloaded.py": code, "code/checksums.tsv": checksum})
    return {"PYTHONPATH": f"{folder / 'code'}:{Path(__file__).parents[1]}"}


def test_a_tfds_data_set_is_downloaded_and_prepared_without_tensorflow(tmp_path):
    with serving(tmp_path / "site") as host:
        ended = python(READ, tmp_path / "data", env=catalogue(tmp_path, host))
    said = f"TFDS downloads downloaded from {host.split('/')[2]} and prepares it in {tmp_path / 'data'}"
    assert ended == (0, f"{said}\n['One is here.']\n", "")
    # Now from disk: the server is gone, and nobody asks for it.
    again = python(READ, tmp_path / "data", env={"PYTHONPATH": str(tmp_path / "code") + f":{Path(__file__).parents[1]}"})
    assert again == (0, "['One is here.']\n", "")


def test_a_tfds_data_set_whose_host_does_not_answer(tmp_path):
    host = f"127.0.0.1:{closed_port()}"
    ended = python(READ, tmp_path, env=catalogue(tmp_path, f"http://{host}"))
    assert ended.out == (
        f"--corpus tfds:downloaded: is not prepared in {tmp_path}, and {host}, where it is downloaded, does not answer\n"
    )
    assert ended.status == 0
    assert ended.err == ""


def test_a_tfds_data_set_that_needs_tensorflow(tmp_path):
    if importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is installed here")
    with serving(tmp_path / "site") as host:
        needed = "from tensorflow_datasets.core.utils.lazy_imports_utils import tensorflow as tf; tf.io"
        ended = python(
            READ.replace("print))])", "lambda _: None))])"), tmp_path / "data", env=catalogue(tmp_path, host, needed)
        )
    assert ended == (0, "--corpus tfds:downloaded: preparing it needs TensorFlow, which is not installed\n", "")


def test_reachable_is_what_answers_in_time(tmp_path):
    with serving(tmp_path) as host:
        assert corpus.reachable(host)
        assert corpus.reachable(f"{host}/missing")
    assert not corpus.reachable(f"http://127.0.0.1:{closed_port()}")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begun = time.monotonic()
        assert not corpus.reachable(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - begun < 5
