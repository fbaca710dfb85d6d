"""Helpers for tests of corpora: files, a local HTTP server, and Python in other processes."""

import contextlib
import http.server
import socket
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Ended, end, start_python

from tiejax.text import corpus
from tiejax.text.errors import CorpusError

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
NOVELS = SHARED / "gutenberg-fiction"
FIELDS = ("corpus", "text_feature", "tfds_dir")  # settings that messages begin with
NEEDS_TFDS = "needs the extra `tfds`: pip install 'tiejax[tfds]' (tensorflow_datasets is not installed)"


def without_tfds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports fail as if the extra `tfds` were not installed."""
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    monkeypatch.delitem(sys.modules, "tiejax.text.data_sets", raising=False)


def write(folder: Path, files: dict[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def python(code: str, *argv: object, env: dict[str, str] | None = None) -> Ended:
    """Run code in another process, with the package of this checkout."""
    paths = {"PYTHONPATH": str(ROOT)} | (env or {})
    return end(start_python("-W", "error", "-c", textwrap.dedent(code), *argv, env=paths))


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the files of a folder over HTTP; yield the address."""

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


def documents(names: list[str], text_feature: str | None = None, tfds_dir: str | None = None) -> Iterator[str]:
    """The documents of a corpus, in order."""
    return corpus.read(corpus.sources(names, text_feature, tfds_dir))


def refused(names: list[str], *words: str, **options: str) -> None:
    """Assert that reading these raises a CorpusError of one line that begins with a setting and contains all of `words`."""
    with pytest.raises(CorpusError) as error:
        list(documents(names, **options))
    line = str(error.value)
    assert line.partition(" ")[0].removesuffix(":") in FIELDS
    assert len(line.splitlines()) == 1
    for word in words:
        assert word in line
