"""Fixtures: a working directory with valid and invalid files, rejected commands, run directories."""

import dataclasses
import os

import pytest
from processes import assert_refused, command_here, tree

from tiejax.lab.runs import resume
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.studies.exor.settings import STUDY, Settings

FIELDS = [field.name for field in dataclasses.fields(Settings)]
FILES = {
    "comments.yaml": "# every line\n# a comment\n",
    "good.yaml": "steps: 5\nbits: 4\nseeds: 2\n",
    "unknown.yaml": "bits: 4\nrecord_evry: 10\n",
    "switch.yaml": "resume: true\n",
    "type.yaml": "steps: many\n",
    "fraction.yaml": "seeds: [1.5]\n",
    "null.yaml": "bits: null\n",
    "choice.yaml": "model: gru\n",
    "mapping.yaml": "steps: {a: 1}\n",
    "sum.yaml": "zero: [.5, .6]\n",
    "both.yaml": "variant: dh\none: [.5, .5]\n",
    "malformed.yaml": "seeds: 3\nsteps: [1\nbits: }\n",
    "tab.yaml": "seeds:\n\t- 3\n",
    "list.yaml": "- 3\n- 4\n",
    "text.yaml": "just words\n",
    "deep.yaml": "zero: " + "[" * 3000,
    "deep_mappings.yaml": "\n".join(f"{' ' * depth}a:" for depth in range(300)),
    "nul.yaml": "steps: 3\nout: a\0b\n",
    "escape.yaml": "\x1b: 3\n",
    "escaped_nul.yaml": r'out: "a\0b"',
    "surrogate.yaml": r'out: "\ud800"',
    "letter.yaml": r'out: "\UFFFFFFFF"',
    "escaped_control.yaml": r'steps: "\e[31m"',
    "twice.yaml": "steps: 3\nbits: 4\nsteps: 5\n",
    "set.yaml": "zero: !!set {.5, .4}\n",
    "set_without_a_tag.yaml": "zero: {.5, .4}\n",
    "tag.yaml": "steps: !!bool maybe\n",
    "laughs.yaml": "zero: &a [.5, .5]\none: [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n",
    "date.yaml": "steps: 2024-13-45\n",
    "key.yaml": "? [a]\n: b\n",
    "documents.yaml": "steps: 3\n---\nsteps: 4\n",
    "digits.yaml": f"steps: {'9' * 5000}\n",
    "bits.yaml": f"steps: 0x{'f' * 125}\n",
    "large.yaml": "#" * 2**20 + "\n",
    "object.yaml": "steps: !!python/object/apply:os.getpid []\n",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory that is empty except for a folder with the files above, so that tests notice a new run directory."""
    (tmp_path / "files").mkdir()
    for name, text in FILES.items():
        (tmp_path / "files" / name).write_text(text)
    (tmp_path / "files" / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80\xfd")
    (tmp_path / "files" / "directory.yaml").mkdir()
    os.mkfifo(tmp_path / "files" / "pipe.yaml")
    (tmp_path / "files" / "some_file").write_text("mine\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(here, monkeypatch, capsys):
    """Return a function that asserts that a command is rejected with given words and changes no file."""

    def run(argv, *words):
        before = tree(here)
        assert_refused(command_here(argv, monkeypatch, capsys), *words)
        assert tree(here) == before

    return run


def read(*argv):
    return resume.read(STUDY, argv).settings


def make_run(path, finished=False, results=None, **fields):
    """Create a run directory at `path`, with the `results` of a finished run (default: without claims)."""
    config = Settings(**fields, out=str(path)).resolved()
    run = RunDirectory.reserve(STUDY, config, False, False)
    run.checkpoints.mkdir()
    (run.checkpoints / "1").write_text("a checkpoint")
    run.figures.mkdir()
    if finished:
        run.write_results({"claims": []} if results is None else results)
    run.release()
    return path
