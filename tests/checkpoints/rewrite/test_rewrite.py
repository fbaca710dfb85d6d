"""What a checkpoint's folder may hold and is copied, where the new one may be, and what a failure leaves."""

import json
import os
import re
import socket

import numpy as np
import pytest
from hub_checkpoints import checkpoint, values

from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.rewrite import rewrite as rewriting
from tiejax.checkpoints.rewrite.new_folder import new_folder
from tiejax.checkpoints.rewrite.rewrite import Part, rewrite
from tiejax.lab.commands import factorise, tie, untie
from tiejax.lab.commands.check import checked
from tiejax.lab.settings.command_line import BadInput

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CONFIG = {"model_type": "llama", "tie_word_embeddings": True, "vocab_size": 23}
COMMANDS = {"tie": (tie, []), "untie": (untie, []), "factorise": (factorise, ["--rank", "2"])}


def equal(folder, config=CONFIG):
    """Two equal tables, which every command takes."""
    return checkpoint(folder, {EMBED: values(), HEAD: values()}, config)


def refused(name, folder, out, words):
    """Refused in one line, with nothing written, and the old folder as it was."""
    module, flags = COMMANDS[name]
    beside = set(folder.parent.iterdir())
    with pytest.raises(BadInput, match=words) as error:
        module.main([str(folder), str(out), *flags])
    assert len(str(error.value).splitlines()) == 1
    assert set(folder.parent.iterdir()) == beside


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
    os.chdir(folder)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("x")
    os.chdir(here)


@pytest.mark.parametrize("depth", ["", "a/b"], ids=["at the top", "below"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (link_to_a_device, "x.txt: is not copied: it is a link to /dev/zero"),
        (link_to_a_file_elsewhere, "x.txt: is not copied: it is a link to /etc/passwd"),
        (link_to_itself, "loop: is not copied: it is a link to /"),
        (link_to_a_folder, "x: is not copied: it is a link to /etc"),
        (link_to_nothing, "x: cannot be copied: No such file"),
        (looping_link, "x: cannot be copied: Too many levels"),
        (pipe, "x: is not copied: it is a named pipe"),
        (socket_file, "x: is not copied: it is a socket"),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused_before_anything_is_written(tmp_path, make, words, depth):
    folder = equal(tmp_path / "c")
    (folder / depth).mkdir(parents=True, exist_ok=True)
    make(folder / depth)
    for name in COMMANDS:
        refused(name, folder, tmp_path / "out", f"{depth}.*{words}")


def test_links_to_files_of_the_folder_and_of_the_hubs_cache_are_copied_as_files(tmp_path):
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
    for name, (module, flags) in COMMANDS.items():
        out = tmp_path / name
        assert module.main([str(folder), str(out), *flags]) == 0
        assert not any(path.is_symlink() for path in out.rglob("*"))
        assert (out / "deep" / "notes").read_text() == (out / "again").read_text() == "mine"
    assert set(open_checkpoint(tmp_path / "tie").tensors) == {EMBED}


def test_folders_that_nobody_could_remove_again(tmp_path):
    folder = equal(tmp_path / "c")
    deep = folder.joinpath(*["d"] * 64)
    deep.mkdir(parents=True)
    assert untie.main([str(folder), str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / deep.relative_to(folder)).is_dir()
    (deep / "d").mkdir()
    refused("tie", folder, tmp_path / "more", "holds folders more than 64 deep")


def test_what_looks_like_a_leftover_is_not_touched(tmp_path):
    folder = equal(tmp_path / "c")
    (tmp_path / "incomplete-out").mkdir()
    (tmp_path / "incomplete-out" / "thesis.txt").write_text("mine")
    assert tie.main([str(folder), str(tmp_path / "out")]) == 0
    assert (tmp_path / "incomplete-out" / "thesis.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "incomplete-out", "out"]


def test_two_at_a_time_do_not_touch_each_other(tmp_path):
    with new_folder(tmp_path / "out") as first:
        (first / "x").write_text("first")
        with pytest.raises(KeyError), new_folder(tmp_path / "out"):
            raise KeyError
        assert list(tmp_path.iterdir()) == [first]
    assert (tmp_path / "out" / "x").read_text() == "first"
    with pytest.raises(Exception, match="is there already"), new_folder(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_folder_may_be_read_by_whom_a_new_folder_may(tmp_path):
    untie.main([str(equal(tmp_path / "c")), str(tmp_path / "out")])
    (tmp_path / "usual").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("name", COMMANDS)
def test_places_where_no_new_folder_can_be(tmp_path, name):
    folder = equal(tmp_path / "c")
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    for out, words in (
        ("dangling", "dangling: is there already"),
        ("loop", "loop: is there already"),
        ("loop/out", "loop/out: no folder can be made there: Too many levels"),
        ("file/out", "file/out: no folder can be made there: Not a directory"),
        ("x" * 300, "x: no folder can be made there: File name too long"),
        ("c/out", "lies in .*/c, which is not written to"),
    ):
        refused(name, folder, tmp_path / out, words)


def test_names_as_long_as_the_system_takes(tmp_path):
    folder = equal(tmp_path / "c")
    for name in ("x" * 255, "語" * 85):
        assert untie.main([str(folder), str(tmp_path / name)]) == 0
        assert (tmp_path / name / "config.json").exists()


def test_a_write_that_fails_leaves_no_new_folder_and_blames_the_new_one(tmp_path):
    folder = equal(tmp_path / "c")

    def full():
        yield b"x"
        raise OSError(28, "No space left on device")

    part = Part("w", "F32", (2,), 8, full)
    with pytest.raises(OSError, match="No space left") as error:
        rewrite(open_checkpoint(folder), tmp_path / "p1" / "p2" / "out", {}, {folder / "model.safetensors": [part]})
    assert error.value.filename == str(tmp_path / "p1" / "p2" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_parents_that_were_there_stay(tmp_path):
    folder = equal(tmp_path / "c", CONFIG)
    (tmp_path / "p1").mkdir()
    with pytest.raises(KeyError), new_folder(tmp_path / "p1" / "p2" / "out"):
        raise KeyError
    assert list((tmp_path / "p1").iterdir()) == []
    assert untie.main([str(folder), str(tmp_path / "p1" / "p2" / "out")]) == 0


def test_a_source_that_cannot_be_read_is_blamed_itself(tmp_path, monkeypatch):
    """A file that is gone once it was looked at: rights stop no root, who runs tests."""
    folder = equal(tmp_path / "c")
    (folder / "notes.txt").write_text("mine")
    listed = rewriting.entries

    def then_gone(root):
        found = listed(root)
        (root / "notes.txt").unlink()
        return found

    monkeypatch.setattr(rewriting, "entries", then_gone)
    with pytest.raises(BadInput, match=r"c/notes\.txt: cannot be read: No such file"):
        untie.main([str(folder), str(tmp_path / "out")])
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": None}])
def test_an_index_that_nobody_reads_is_copied(tmp_path, index):
    folder = equal(tmp_path / "c")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, (module, flags) in COMMANDS.items():
        assert module.main([str(folder), str(tmp_path / name), *flags]) == 0
        assert json.loads((tmp_path / name / "model.safetensors.index.json").read_text()) == index


def test_a_configuration_that_utf8_cannot_hold(tmp_path):
    folder = equal(tmp_path / "c", CONFIG | {"name": "\ud800 語"})
    assert tie.main([str(folder), str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == CONFIG | {"name": "\ud800 語"}


@pytest.mark.parametrize("depth", [300, 900, 930, 960, 980, 5000])
def test_a_configuration_that_is_nested_deep_is_written_or_refused(tmp_path, depth):
    """Where Python's own limit lies depends on who calls."""
    folder = equal(tmp_path / "c")
    (folder / "config.json").write_text(json.dumps(CONFIG)[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}")
    said = ""
    try:
        untie.main([str(folder), str(tmp_path / "out")])
    except BadInput as error:
        said = str(error)
    written = [path.name for path in tmp_path.iterdir()] != ["c"]
    assert written == (not said)
    if said:
        assert depth > 300
        assert re.search(r"config\.json: is (nested too deep|not JSON)", said)
    else:
        assert depth < 5000
        assert (tmp_path / "out" / "config.json").read_text().count("[") == depth


def test_an_empty_table_is_refused(tmp_path):
    tensors = {EMBED: np.zeros((0, 4), np.float32), HEAD: np.zeros((0, 4), np.float16)}
    folder = checkpoint(tmp_path / "c", tensors, CONFIG)
    for name in COMMANDS:
        refused(name, folder, tmp_path / "out", r"has the shape \[0, 4\]; there is nothing in it")
    assert checked(folder).answer == "cannot say"
