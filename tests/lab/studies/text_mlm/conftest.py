"""Fixtures of the text study: a corpus, its command run in this process, and finished runs."""

import contextlib
import gzip
import io
import pydoc_data.topics
import shlex

import pytest
from text_runs import arguments

from tiejax.lab.runs import entry
from tiejax.lab.studies.text_mlm.settings import STUDY

ADJECTIVES = ("one", "good", "new", "late", "old", "small", "long", "wide")
NAMES = ("cat", "dog", "cow", "man", "hen")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with a corpus of English text in two files, in which runs also store the prepared text."""
    folder = tmp_path_factory.mktemp("text")
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    (folder / "corpus").mkdir()
    (folder / "corpus" / "first.txt").write_text("\n\n".join(topics[:12]))
    (folder / "corpus" / "second.txt.gz").write_bytes(gzip.compress("\n\n".join(topics[12:24]).encode()))
    return folder


@pytest.fixture(scope="session")
def launched():
    """Return a function that runs the study's command in this process and then restores the environment."""

    def run(argv: list[str]) -> int:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("JAX_NUM_CPU_DEVICES", "1")
            return entry.main(STUDY, argv)

    return run


@pytest.fixture(scope="session")
def run(data, launched):
    """The directory and the output of a run of two seeds with event files."""
    out, output = data / "run", io.StringIO()
    with contextlib.redirect_stdout(output):
        argv = arguments(data, "--seeds", "[3,0]", "--steps", 50, "--tracker", "tensorboard", "--out", out)
        assert launched(argv) == 0
    return out, output.getvalue()


@pytest.fixture(scope="session")
def epochs_run(tmp_path_factory, launched):
    """A run with separate epochs on the lines of a file: 40 lines, 28 for training in batches of 12, 12 and 4, two epochs."""
    folder = tmp_path_factory.mktemp("rows")
    lines = [f"The {name} said it is {word}. It is no other." for word in ADJECTIVES for name in NAMES]
    (folder / "lines.txt").write_text("\n".join(lines))
    model = "--layers 1 --width 16 --heads 2 --feed_forward 32 --max_length 32 --batch_size 12 --vocab_size 80 --seeds 1"
    rows = "--rows_are_sentences true --min_length 2 --packing padded --epochs 2 --epochs_apart true"
    records = "--record_every 2 --validate_every epoch --validation_batches all"
    places = ["--corpus", folder / "lines.txt", "--data_dir", folder / "prepared", "--out", folder / "run"]
    assert launched([str(word) for word in [*places, *shlex.split(f"{model} {rows} {records}")]]) == 0
    return folder / "run"
