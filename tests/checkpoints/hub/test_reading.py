"""Checkpoints whose headers claim large tables over a hole in the file: refused by size, or read in blocks with progress."""

import json
import re
import shutil

import pytest
from hub_checkpoints import checkpoint, refused, sparse_checkpoint, values
from processes import end, start_python

from tiejax.checkpoints.check import check_folder
from tiejax.checkpoints.diagnose.checkpoint import diagnose_checkpoint
from tiejax.checkpoints.hub import reading, stored
from tiejax.checkpoints.hub.weights import load
from tiejax.checkpoints.rewrite import factorise, tie, untie
from tiejax.system.memory import machine_memory, size_words

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
TIED, UNTIED = ({"model_type": "llama", "tie_word_embeddings": tied} for tied in (True, False))


@pytest.fixture
def memory():
    found = machine_memory()
    assert found is not None
    return found


@pytest.fixture
def unread(monkeypatch):
    """Fail if any tensor is read."""
    monkeypatch.setattr(stored, "blocks_of", lambda *_: pytest.fail("the file was read"))
    monkeypatch.setattr("tiejax.checkpoints.hub.tables.HubTable._runs", lambda *_: pytest.fail("the file was read"))


def test_a_row_larger_than_memory(tmp_path, memory, unread):
    """In every command that reads rows; its size is in the message."""
    width = memory // 4
    folder = sparse_checkpoint(tmp_path / "wide", {EMBED: (4, width), HEAD: (4, width), NORM: (width,)}, UNTIED)
    words = (f"[4, {width}]: takes {size_words(4 * width)} in memory", f"this machine has {size_words(memory)}")
    checked = check_folder(folder)
    assert checked.answer == "cannot say"
    assert all(word in checked.reason for word in words)
    refused(lambda: tie.tie(folder, tmp_path / "out"), *words)
    refused(lambda: untie.untie(folder, tmp_path / "out"), *words)
    refused(lambda: diagnose_checkpoint(folder), *words)
    refused(lambda: factorise.open_source(folder, None), f"the tables are {2 * width:,} wide in all")
    assert list(tmp_path.iterdir()) == [folder]


def test_more_rows_than_memory_holds_measures_of(tmp_path, memory, unread):
    rows = memory // 100
    folder = sparse_checkpoint(tmp_path / "tall", {EMBED: (rows, 1)}, TIED)
    refused(lambda: diagnose_checkpoint(folder), f"measures of {rows:,} rows: takes ", "in memory; this machine has")


def test_a_model_larger_than_memory(tmp_path, memory, unread):
    rows = memory // 256
    shapes = {"wte.weight": (rows, 64), "wpe.weight": (8, 64)}
    config = {"model_type": "gpt2", "vocab_size": rows, "n_embd": 64, "n_layer": 0, "n_head": 1, "n_positions": 8}
    folder = sparse_checkpoint(tmp_path / "model", shapes, config)
    refused(lambda: load(folder), f"{64 * (rows + 8):,} parameters: takes ", "in memory")


def test_a_copy_larger_than_the_disk(tmp_path, unread):
    """Refused before a byte is written."""
    free = shutil.disk_usage(tmp_path).free
    folder = sparse_checkpoint(tmp_path / "large", {EMBED: (free // 4 // 64, 64)}, TIED)
    with pytest.raises(OSError, match=r"No space left on device: the copy takes .* of which .* are free"):
        untie.untie(folder, tmp_path / "new" / "out")
    assert list(tmp_path.iterdir()) == [folder]


def test_progress_of_comparing_and_writing(tmp_path, monkeypatch):
    """The bytes that are reported are those of the tables and of the copy's files, as the operating system counts them."""
    monkeypatch.setattr(reading, "LARGE", 1)
    monkeypatch.setattr(stored, "BLOCK_BYTES", 2**12)
    table = values(5000, 8)
    folder = checkpoint(tmp_path / "two", {EMBED: table, HEAD: table, NORM: values(8, 1)[:, 0]}, UNTIED)
    seen = {}
    with reading.shown(lambda phase, done, total: seen.setdefault((phase, total), []).append(done)):
        tie.tie(folder, tmp_path / "out")
    phases = {re.sub(r" \(.*", "", phase): (total, done) for (phase, total), done in seen.items()}
    assert set(phases) == {f"comparing {EMBED} and {HEAD}", "differences of the tables", "logits", "writing out"}
    small = 1000  # bytes at most of the header and the texts of the copy
    for phase, (total, done) in phases.items():
        assert done[0] == 0
        assert done == sorted(done)
        assert total - done[-1] <= (small if phase == "writing out" else 0)
    assert phases[f"comparing {EMBED} and {HEAD}"][0] == 2 * table.nbytes
    assert len(phases[f"comparing {EMBED} and {HEAD}"][1]) > 10
    written = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert abs(phases["writing out"][0] - written) < small


@pytest.mark.slow
def test_a_file_larger_than_the_address_space(tmp_path):
    """By every command in a process with `ulimit -v`: one line, without a traceback."""
    folder = sparse_checkpoint(tmp_path / "large", {EMBED: (2**20, 1024), HEAD: (2**20, 1024)}, UNTIED)
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30,) * 2)\n"
        "from tiejax.lab import command\n"
        "folder = sys.argv[1]\n"
        "for name, *more in (['check'], ['tie'], ['untie', 'out'], ['factorise'], ['diagnose']):\n"
        "    sys.argv = ['tiejax', name, folder, *more]\n"
        "    try:\n"
        "        command.main()\n"
        "    except SystemExit as ended:\n"
        "        print(ended.code, file=sys.stderr)\n"
    )
    ended = end(start_python("-c", code, folder, cwd=tmp_path))
    message = f"{folder / 'model.safetensors'}: has 8 GiB, more than the address space of this process (ulimit -v)"
    assert ended.out.splitlines() == [message]
    assert ended.err.splitlines() == ["2"] + [
        line for name in ("tie", "untie", "factorise", "diagnose") for line in (f"tiejax {name}: error: {message}", "2")
    ]


@pytest.mark.slow
def test_a_large_hole_is_compared_in_little_memory_with_progress(tmp_path):
    """Two tables of 1.5 GiB each, by a process that may not have as much in memory; JSON stays alone on standard output."""
    folder = sparse_checkpoint(tmp_path / "large", {EMBED: (393_216, 1024), HEAD: (393_216, 1024)}, UNTIED)
    code = (
        "import re, sys\n"
        "from tiejax.lab import command\n"
        "status = command.start(sys.argv[1:])\n"
        # Not ru_maxrss, which begins with that of the parent.
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024, file=sys.stderr)\n"
    )
    ended = end(start_python("-c", code, "check", folder, "--json"))
    assert json.loads(ended.out)["checkpoints"][0]["stored"] == "two equal tables"
    first, *_, peak = ended.err.splitlines()
    assert first == f"comparing {EMBED} and {HEAD} (3 GiB)"
    assert int(peak) < 1024, "MiB"
