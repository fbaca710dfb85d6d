"""Copying a checkpoint's folder: what is copied, where the copy may be, and what a failure leaves behind."""

import errno
import functools
import json
import os
import pathlib
import re
import socket
import stat
import sys

import numpy as np
import pytest
from hub_checkpoints import checkpoint, values
from safetensors.numpy import load_file

from tiejax.checkpoints.check import check_folder
from tiejax.checkpoints.hub.checkpoint import INDEX, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.rewrite import rewrite as rewriting
from tiejax.checkpoints.rewrite.factorise import factorise
from tiejax.checkpoints.rewrite.rewrite import Part, rewrite
from tiejax.checkpoints.rewrite.tie import tie
from tiejax.checkpoints.rewrite.untie import untie
from tiejax.text.stored import atomic_folder

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CONFIG = {"model_type": "llama", "tie_word_embeddings": True, "vocab_size": 23}
REWRITES = {"tie": tie, "untie": untie, "factorise": functools.partial(factorise, rank=2)}


def equal(folder, config=CONFIG):
    """A checkpoint with two equal tables, which every rewrite accepts."""
    return checkpoint(folder, {EMBED: values(), HEAD: values()}, config)


def refused(name, folder, out, words):
    """Assert that a rewrite is refused in one line and writes nothing."""
    before = set(folder.parent.iterdir())
    with pytest.raises(CheckpointError, match=words) as error:
        REWRITES[name](folder, out)
    assert len(str(error.value).splitlines()) == 1
    assert set(folder.parent.iterdir()) == before


def link_to_a_device(folder):
    (folder / "x.txt").symlink_to("/dev/zero")


def link_to_a_file_elsewhere(folder):
    (folder / "x.txt").symlink_to("/etc/passwd")


def link_to_itself(folder):
    (folder / "loop").symlink_to(".")


def link_to_a_folder(folder):
    (folder / "x").symlink_to("/etc")


def link_to_nothing(folder):
    (folder / "x").symlink_to("/nowhere/x")


def looping_link(folder):
    (folder / "x").symlink_to("x")


def pipe(folder):
    os.mkfifo(folder / "x")


def socket_file(folder):
    here = os.getcwd()
    os.chdir(folder)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("x")
    os.chdir(here)


@pytest.mark.parametrize("depth", ["", "a/b"], ids=["at the top", "below"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (link_to_a_device, "x.txt: cannot be copied: it is a link to /dev/zero"),
        (link_to_a_file_elsewhere, "x.txt: cannot be copied: it is a link to /etc/passwd"),
        (link_to_itself, "loop: cannot be copied: it is a link to /"),
        (link_to_a_folder, "x: cannot be copied: it is a link to /etc"),
        (link_to_nothing, "x: cannot be copied: No such file"),
        (looping_link, "x: cannot be copied: Too many levels"),
        (pipe, "x: cannot be copied: it is a named pipe"),
        (socket_file, "x: cannot be copied: it is a socket"),
    ],
)
def test_other_than_files_is_refused_before_writing(tmp_path, make, words, depth):
    folder = equal(tmp_path / "c")
    (folder / depth).mkdir(parents=True, exist_ok=True)
    make(folder / depth)
    for name in REWRITES:
        refused(name, folder, tmp_path / "out", f"{depth}.*{words}")


def test_links_within_the_folder_and_the_hub_cache_are_copied_as_files(tmp_path):
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "revision"
    blobs.mkdir()
    (folder / "deep").mkdir(parents=True)
    equal(blobs / "made")
    for name in ("config.json", "model.safetensors"):
        os.rename(blobs / "made" / name, blobs / f"hash-{name}")
        (folder / name).symlink_to(f"../../blobs/hash-{name}")
    (blobs / "notes").write_text("mine")
    (folder / "deep" / "notes").symlink_to("../../../blobs/notes")
    (folder / "again").symlink_to("deep/notes")
    for name, rewritten in REWRITES.items():
        out = tmp_path / name
        rewritten(folder, out)
        assert not any(path.is_symlink() for path in out.rglob("*"))
        assert (out / "deep" / "notes").read_text() == (out / "again").read_text() == "mine"
    assert set(open_checkpoint(tmp_path / "tie").tensors) == {EMBED}


def test_deeply_nested_folders(tmp_path):
    folder = equal(tmp_path / "c")
    deep = folder.joinpath(*["d"] * 64)
    deep.mkdir(parents=True)
    untie(folder, tmp_path / "out")
    assert (tmp_path / "out" / deep.relative_to(folder)).is_dir()
    (deep / "d").mkdir()
    refused("tie", folder, tmp_path / "more", "has folders nested more than 64 deep")


def test_folder_named_like_a_leftover_is_not_touched(tmp_path):
    folder = equal(tmp_path / "c")
    (tmp_path / "incomplete-out").mkdir()
    (tmp_path / "incomplete-out" / "thesis.txt").write_text("mine")
    tie(folder, tmp_path / "out")
    assert (tmp_path / "incomplete-out" / "thesis.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "incomplete-out", "out"]


def test_concurrent_writers(tmp_path):
    with atomic_folder(tmp_path / "out") as first:
        (first / "x").write_text("first")
        with pytest.raises(KeyError), atomic_folder(tmp_path / "out"):
            raise KeyError
        assert list(tmp_path.iterdir()) == [first]
    assert (tmp_path / "out" / "x").read_text() == "first"
    with pytest.raises(OSError, match="not empty"), atomic_folder(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_permissions_are_those_of_the_original(tmp_path):
    folder = equal(tmp_path / "c")
    (folder / "parts").mkdir()
    (folder / "parts" / "run.sh").write_text("")
    (folder / "README.md").write_text("read me")
    modes = {
        "parts/run.sh": 0o755,
        "README.md": 0o440,
        "model.safetensors": 0o600,
        "config.json": 0o644,
        "parts": 0o500,
        "": 0o700,
    }
    for name, mode in modes.items():
        (folder / name).chmod(mode)
    untie(folder, tmp_path / "out")
    assert {name: stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) for name in modes} == modes
    assert (tmp_path / "out" / "README.md").read_text().startswith("read me\n\n## Changed")
    (tmp_path / "out" / "parts").chmod(0o700)
    (folder / "parts").chmod(0o700)


def test_file_system_without_permissions(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, "not permitted")

    folder = equal(tmp_path / "c")
    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(pathlib.Path, "chmod", refuse)
    untie(folder, tmp_path / "out")
    assert check_folder(tmp_path / "out").answer == "agrees"


def test_folder_named_like_weights_in_another_format_is_left_out(tmp_path):
    folder = equal(tmp_path / "c")
    (folder / "last.ckpt" / "deep").mkdir(parents=True)
    (folder / "last.ckpt" / "deep" / "meta.pt").write_bytes(b"old")
    for name, rewritten in REWRITES.items():
        rewritten(folder, tmp_path / name)
        assert not (tmp_path / name / "last.ckpt").exists()
        assert "`last.ckpt`" in (tmp_path / name / "README.md").read_text()


@pytest.mark.parametrize("name", REWRITES)
def test_refused_outputs(tmp_path, name):
    folder = equal(tmp_path / "c")
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for out, words in (
        ("dangling", "dangling: already exists"),
        ("loop", "loop: already exists"),
        ("loop/out", "loop/out: cannot be created: Too many levels"),
        ("file/out", "file/out: cannot be created: Not a directory"),
        ("x" * 300, "x: cannot be created: File name too long"),
        ("c/out", "lies in .*/c, which is only read"),
    ):
        refused(name, folder, tmp_path / out, words)


def test_longest_names(tmp_path):
    folder = equal(tmp_path / "c")
    for name in ("x" * 255, "語" * 85):
        untie(folder, tmp_path / name)
        assert (tmp_path / name / "config.json").exists()


def test_failed_write_names_the_output_and_leaves_nothing(tmp_path):
    folder = equal(tmp_path / "c")

    def full():
        yield b"x"
        raise OSError(28, "No space left on device")

    part = Part("w", "F32", (2,), 8, full)
    with pytest.raises(OSError, match="No space left") as error:
        rewrite(open_checkpoint(folder), tmp_path / "p1" / "p2" / "out", {}, {folder / "model.safetensors": [part]}, (), "")
    assert error.value.filename == str(tmp_path / "p1" / "p2" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_existing_parents_stay(tmp_path):
    folder = equal(tmp_path / "c", CONFIG)
    (tmp_path / "p1").mkdir()
    with pytest.raises(KeyError), atomic_folder(tmp_path / "p1" / "p2" / "out"):
        raise KeyError
    assert list((tmp_path / "p1").iterdir()) == []
    untie(folder, tmp_path / "p1" / "p2" / "out")


def test_unreadable_source_is_named(tmp_path, monkeypatch):
    """A file that disappears after it was listed (permissions would not stop root, who may run the tests)."""
    folder = equal(tmp_path / "c")
    (folder / "notes.txt").write_text("mine")
    listed = rewriting.entries

    def list_and_remove(root):
        found = listed(root)
        (root / "notes.txt").unlink()
        return found

    monkeypatch.setattr(rewriting, "entries", list_and_remove)
    with pytest.raises(CheckpointError, match=r"c/notes\.txt: cannot be read: No such file"):
        untie(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("index", ["{}", '{"weight_map": []}', '{"weight_map": null}', "[]", "{"])
def test_unused_index_is_copied(tmp_path, index):
    folder = equal(tmp_path / "c")
    (folder / INDEX).write_text(index)
    for name, rewritten in REWRITES.items():
        rewritten(folder, tmp_path / name)
        assert (tmp_path / name / INDEX).read_text() == index


def test_index_beside_a_single_file_lists_what_the_copy_stores(tmp_path):
    """As mlx-lm writes one: `total_size` is that of all tensors, and some engines read only what is listed."""
    folder = checkpoint(tmp_path / "c", {EMBED: values()}, CONFIG)
    index = {"metadata": {"total_size": values().nbytes}, "weight_map": {EMBED: "model.safetensors"}}
    (folder / INDEX).write_text(json.dumps(index))
    untie(folder, tmp_path / "untied")
    tie(tmp_path / "untied", tmp_path / "tied")
    for name, stored in (("untied", 2), ("tied", 1)):
        found = json.loads((tmp_path / name / INDEX).read_text())
        assert found["weight_map"] == dict.fromkeys(load_file(tmp_path / name / "model.safetensors"), "model.safetensors")
        assert (found["metadata"]["total_size"], len(found["weight_map"])) == (stored * values().nbytes, stored)


def test_configuration_with_a_lone_surrogate(tmp_path):
    folder = equal(tmp_path / "c", CONFIG | {"name": "\ud800 語"})
    tie(folder, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == CONFIG | {"name": "\ud800 語"}


@pytest.mark.parametrize("depth", [300, 900, 930, 960, 980, 5000, 500_000])
def test_deeply_nested_configuration_is_written_or_refused(tmp_path, depth):
    """Python's recursion limit is reached at a depth that depends on the caller."""
    folder = equal(tmp_path / "c")
    (folder / "config.json").write_text(json.dumps(CONFIG)[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}")
    message = ""
    try:
        untie(folder, tmp_path / "out")
    except CheckpointError as error:
        message = str(error)
    written = [path.name for path in tmp_path.iterdir()] != ["c"]
    assert written == (not message)
    if message:
        assert depth > 300
        assert re.search(r"config\.json: (nested too deeply|invalid JSON)", message)
    else:
        assert depth < (500_000 if sys.version_info >= (3, 12) else 5000)  # limited in C from Python 3.12 on
        assert (tmp_path / "out" / "config.json").read_text().count("[") == depth


EMPTY = np.zeros(0, np.float32)
PLACINGS = {
    "input": {EMBED: EMPTY, HEAD: values()},
    "head": {EMBED: values(), HEAD: EMPTY},
    "both": {EMBED: EMPTY, HEAD: EMPTY},
    "of a tied model": {EMBED: EMPTY},
    "without rows": {EMBED: np.zeros((0, 4), np.float32), HEAD: np.zeros((0, 4), np.float16)},
    "encoder": {"model.shared.weight": values(), "model.encoder.embed_tokens.weight": EMPTY},
}


@pytest.mark.parametrize("shards", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("place", PLACINGS)
def test_tables_that_were_not_gathered(tmp_path, place, shards):
    """As DeepSpeed ZeRO-3 saves a partitioned model: loaders fail on the shape."""
    tensors = PLACINGS[place]
    config = CONFIG | ({"model_type": "bart"} if place == "encoder" else {})
    folder = tmp_path / "c"
    if shards:
        files = {name: f"model-{number}.safetensors" for number, name in enumerate(tensors)}
        for name, file in files.items():
            checkpoint(folder, {name: tensors[name]}, config, file)
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": files}))
    else:
        checkpoint(folder, tensors, config)
    for name in REWRITES:
        refused(name, folder, tmp_path / "out", r"has the shape \[0(, 4)?\]: the tables were not gathered when this was saved")
    assert check_folder(folder).answer == "cannot say"


@pytest.mark.parametrize(
    "rest", ["_weight_qdata", "q_weight", "trellis", "qweight", "weight.absmax", "weight_scale_inv", "new"]
)
@pytest.mark.parametrize("stem", ["lm_head.", "model.embed_tokens."])
def test_tables_in_another_form(tmp_path, stem, rest):
    """Any tensor of a table's module but a plain weight means that its values do not follow from one tensor."""
    tensors = {EMBED: values(), HEAD: values()} | {stem + rest: np.ones((2, 2), np.int8)}
    folder = checkpoint(tmp_path / "c", tensors, CONFIG)
    for name in REWRITES:
        refused(name, folder, tmp_path / "out", re.escape(f"({stem}{rest})"))
    assert check_folder(folder).answer == "cannot say"


def test_two_sets_of_weights_are_refused(tmp_path):
    folder = equal(tmp_path / "c")
    checkpoint(folder, {EMBED: values(seed=3)}, CONFIG, "model-00001-of-00001.safetensors")
    for name in REWRITES:
        words = r"model\.safetensors and model-00001-of-00001\.safetensors are two sets .* loaders read model\.safetensors"
        refused(name, folder, tmp_path / "out", words)
    assert any("are two sets of weights" in line for line in check_folder(folder).follows)


def test_index_is_rebuilt(tmp_path):
    """A head that the index omits is the head: it is neither replaced nor lost."""
    folder = checkpoint(tmp_path / "c", {EMBED: values(), HEAD: values(seed=1)}, CONFIG, "a.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {EMBED: "a.safetensors", "x": "a.safetensors"}}))
    refused("untie", folder, tmp_path / "out", "is not tied: it has two different tables")
    tie(folder, tmp_path / "tied", keep="output", force=True)
    index = {"metadata": {"total_size": values().nbytes}, "weight_map": {EMBED: "a.safetensors"}}
    assert json.loads((tmp_path / "tied" / INDEX).read_text()) == index
    np.testing.assert_array_equal(load_file(tmp_path / "tied" / "a.safetensors")[EMBED], values(seed=1))
