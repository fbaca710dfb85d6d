"""Every command as a user who may read and write little: one line with status 2 or 4, and nothing is written.

One process for each command runs all its arguments, as the user `nobody`.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
from hub_checkpoints import checkpoint, values
from processes import tree

from tiejax.lab.command import COMMANDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]
NOBODY = 65534
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 23}
# Runs each list of arguments as the command would be run, and prints its status and what it wrote on standard error.
RUN = """
import contextlib, io, json, sys
from tiejax.lab import command
for words in json.load(sys.stdin):
    sys.argv = ["tiejax", *words]
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            command.main()
        except SystemExit as ended:
            status = ended.code
        except BaseException as error:
            status = f"a traceback of {error!r}"
    print(json.dumps([status, errors.getvalue(), out.getvalue()]), flush=True)
"""
# Settings of runs that would take a second.
SMALL = {
    "exor": ["--bits", "4", "--seeds", "1", "--steps", "10"],
    "untying": ["--bits", "4", "--seeds", "1", "--steps", "10"],
    "text-mlm": ["--vocab_size", "400", "--steps", "10", "--seeds", "1"],
    "layer-tying": ["--vocab_size", "300", "--steps", "10"],
    "embedding-coupling": ["--vocab_size", "400", "--steps", "10", "--seeds", "1"],
    "causal-untying": ["--vocab_size", "300", "--steps", "10", "--seeds", "1"],
}
ON_TEXT = ("text-mlm", "layer-tying", "embedding-coupling", "causal-untying")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with files of which the user may read only some, and in which he may write nothing but `free`."""
    here = tmp_path_factory.mktemp("unprivileged")
    for folder in (here, *here.parents):
        if folder.is_relative_to(tempfile.gettempdir()):
            folder.chmod(folder.stat().st_mode | 0o055)
    for name, tensors in (("tied", {EMBED: values()}), ("untied", {EMBED: values(), HEAD: values(seed=1)})):
        for part in ("", "model.safetensors", "config.json", "README.md", "more", "more/notes.txt", "."):
            folder = here / f"{name}-without-{part.replace('/', '-')}" if part else here / name
            checkpoint(folder, tensors, CONFIG | {"tie_word_embeddings": name == "tied"})
            (folder / "README.md").write_text("A model.")
            (folder / "more").mkdir()
            (folder / "more" / "notes.txt").write_text("Notes.")
            (folder / "model.safetensors").chmod(0o644)  # which safetensors makes private
            if part:
                (folder / part).chmod(0)
    checkpoint(here / "wrong", {EMBED: values(), HEAD: values(seed=1)}, CONFIG | {"tie_word_embeddings": True})
    (here / "wrong" / "model.safetensors").chmod(0o644)
    (here / "secret").mkdir(mode=0o700)
    (here / "text.txt").write_text("The cat sat on the mat. " * 500)
    (here / "private.txt").write_text("The cat sat on the mat. " * 500)
    (here / "private.txt").chmod(0)
    (here / "run").mkdir()  # whose files may not be read
    for name in ("run.json", "config.yaml", "results.json"):
        (here / "run" / name).write_text("{}")
        (here / "run" / name).chmod(0)
    (here / "loop").symlink_to(here / "loop")
    (here / "locked").mkdir(mode=0o555)
    return here


@pytest.fixture(scope="module")
def interpreter():
    """A Python that the user can run: that of the tests, or that of the system if the former is in root's home."""
    found = [sys.executable, *filter(None, [shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")])]
    for python in found:
        if as_nobody(python, "-c", "import jax, tiejax").returncode == 0:
            return python
    return pytest.skip(f"no other user can run {' or '.join(found)} with these packages")


def as_nobody(*command, **options):
    """Run a command as the user `nobody`, in an environment in which he has no home."""
    environment = {"HOME": "/nonexistent", "JAX_ENABLE_COMPILATION_CACHE": "false", "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), sysconfig.get_path("purelib")])}
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return subprocess.run(
        [*user, *command], env=own | environment, capture_output=True, text=True, timeout=600, check=False, **options
    )


def places(here):
    """Return paths at which nothing can be written, and paths at which nothing can be read."""
    homes = ["~nobody/x", "~no-such-user/x"]
    written = [*homes, here / "locked" / "x", here / "secret" / "x", here / "text.txt" / "x", "/proc/x", "/dev/null/x"]
    return written, [
        *homes,
        here / "loop",
        here / "loop" / "x",
        here / "secret",
        here / "secret" / "x",
        here / "private.txt",
        here / "private.txt" / "x",
    ]


def arguments(here):
    """Return lists of arguments of every command, each of which cannot be carried out."""
    written, unread = places(here)
    tied, untied, text = here / "tied", here / "untied", here / "text.txt"
    parts = ("model.safetensors", "config.json", "README.md", "more", "more-notes.txt", ".")
    damaged = {name: [here / f"{name}-without-{part}" for part in parts] for name in ("tied", "untied")}
    runs = [*unread, here / "run"]
    found = {
        "check": [[path] for path in (*unread, *(damaged["tied"][place] for place in (0, 1, 5)))]
        + [["--fix", "out", path] for path in (*unread, *(damaged["tied"][place] for place in (0, 1, 5)))]
        + [["--fix", path, here / "wrong"] for path in written],
        "tie": [[untied, path, "--force"] for path in written]
        + [[path, "out", "--force"] for path in (*unread, *damaged["untied"])]
        + [[untied, "--hidden", path] for path in unread]
        + [[untied, "--text", path] for path in unread],
        "untie": [[tied, path] for path in written] + [[path, "out"] for path in (*unread, *damaged["tied"])],
        "factorise": [[untied, path, "--rank", "2"] for path in written]
        + [[untied, "--report", path] for path in written]
        + [[untied, "--corpus", path] for path in unread]
        + [[path, "out", "--rank", "2"] for path in (*unread, *damaged["untied"])]
        + [[untied]],
        "diagnose": [[untied, "--out", path] for path in written]
        + [[untied, "--corpus", path] for path in unread]
        + [[untied, "--tokenizer", path] for path in unread]
        + [[path] for path in (*runs, *(damaged["untied"][place] for place in (0, 1, 5)))]
        + [[untied]],
        "theory": [[path] for path in runs],
        "share": [[path, "--map", "all-one"] for path in runs],
        "compare": [[here / "run", path] for path in unread],
        "join": [[path, here / "run", "--out", "out"] for path in runs],
        "runs": [[path] for path in unread],
    }
    for name, small in SMALL.items():
        own = ["--corpus", text, "--data_dir", here / "locked"] if name in ON_TEXT else []
        found[name] = [[*small, *own, "--out", path] for path in written]
        found[name] += [[*small, *own]]  # the default, in a folder that cannot be written
        found[name] += [["--config", path] for path in unread]
        found[name] += [[*small, "--resume", "--out", path] for path in (here / "secret", here / "run")]
        if name in ON_TEXT:
            found[name] += [[*small, "--corpus", path, "--data_dir", here / "locked", "--out", "out"] for path in unread]
            found[name] += [[*small, "--corpus", text, "--data_dir", path, "--out", "out"] for path in written]
            found[name] += [[*small, "--corpus", text, "--out", "out"]]  # text is prepared in a home that does not exist
    return {name: [[name, *map(str, words)] for words in found[name]] for name in found}


def test_every_command_has_arguments(place):
    assert arguments(place).keys() == COMMANDS.keys()


def test_runs_names_a_folder_that_it_cannot_read(place, interpreter):
    ended = as_nobody(interpreter, "-m", "tiejax", "runs", place, cwd=place / "locked")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"{place / 'secret'}  run.json cannot be read: Permission denied" in ended.stdout.splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_in_one_line(place, interpreter, command):
    before = tree(place)
    words = arguments(place)[command]
    ended = as_nobody(interpreter, "-c", RUN, cwd=place / "locked", input=json.dumps(words))
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stderr == ""
    results = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(results) == len(words)
    for argv, (status, errors, out) in zip(words, results, strict=True):
        said = out if command == "check" and status == 2 and not errors else errors
        assert status in (2, 4), (argv, status, errors[-2000:])
        assert len(said.splitlines()) == 1, (argv, said)
        assert command == "check" or f"tiejax {command}: error: " in said, (argv, said)
    assert tree(place) == before
