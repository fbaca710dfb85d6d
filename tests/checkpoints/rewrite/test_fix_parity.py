"""Repaired checkpoints: the transformers library loads them with nothing missing or unexpected, and with the right values."""

import itertools
import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from library_models import saved  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tiejax.checkpoints.check import check_folder  # noqa: E402
from tiejax.checkpoints.hub.checkpoint import CONFIG, INDEX, WEIGHTS, open_checkpoint  # noqa: E402
from tiejax.checkpoints.hub.errors import CheckpointError  # noqa: E402
from tiejax.checkpoints.hub.stored import stored_tables  # noqa: E402
from tiejax.checkpoints.rewrite.fix import fix  # noqa: E402
from tiejax.checkpoints.rewrite.untie import untie  # noqa: E402

pytestmark = pytest.mark.parity
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class Files:
    """The tensors of a sound checkpoint, and its configuration, to be damaged and written.

    places: the files, tensor -> file. listed: what the index lists, None without an index.
    """

    def __init__(self, kind, tied, folder):
        saved(kind, tied, folder)
        self.config = json.loads((folder / CONFIG).read_text())
        self.tensors = load_file(folder / WEIGHTS)
        tables = stored_tables(open_checkpoint(folder))
        self.tied, self.input, self.head = tied, tables.input.name, tables.architecture.output[0]
        self.places = dict.fromkeys(self.tensors, WEIGHTS)
        self.listed = None

    def rename(self, names):
        for old, new in names.items():
            self.tensors[new], self.places[new] = self.tensors.pop(old), self.places.pop(old)
            if self.listed and old in self.listed:
                self.listed[new] = self.listed.pop(old)

    def write(self, folder):
        folder.mkdir()
        (folder / CONFIG).write_text(json.dumps(self.config))
        for file in set(self.places.values()):
            tensors = {name: tensor for name, tensor in self.tensors.items() if self.places[name] == file}
            save_file(tensors, folder / file, metadata={"format": "pt"})
        if self.listed is not None:
            (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": self.listed}))


def flag(files):
    files.config["tie_word_embeddings"] = True


def head_alone(files):
    files.rename({files.input: files.head})


def copy(files):
    files.tensors[files.head] = files.tensors[files.input].clone()
    files.places[files.head] = files.places[files.input]
    if files.listed:
        files.listed[files.head] = files.places[files.input]


def prefix(files):
    files.rename({name: f"_orig_mod.{name}" for name in files.tensors})


def stale_index(files):
    for place, name in enumerate(sorted(files.tensors)):
        files.places[name] = SHARDS[place % 2]
    files.listed = {name: file for name, file in files.places.items() if name != sorted(files.tensors)[0]} | {"x": SHARDS[0]}


def no_index(files):
    stale_index(files)
    files.listed = None


# Damages, and whether they are those of a tied checkpoint; None: of both.
DAMAGES = {flag: False, head_alone: True, copy: True, prefix: None, stale_index: None, no_index: None}
SINGLE = [(one,) for one in DAMAGES]
# The index first, since others change names in it; a lone head has no copy.
PAIRS = [
    pair
    for pair in itertools.combinations([stale_index, no_index, head_alone, copy, flag, prefix], 2)
    if {DAMAGES[one] for one in pair} != {True, False} and pair not in ((head_alone, copy), (stale_index, no_index))
]


def loaded(folder):
    (kind,) = json.loads((folder / CONFIG).read_text())["architectures"]
    model, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def states(model):
    return {name: tensor for name, tensor in model.state_dict().items() if not name.endswith("position_ids")}


@pytest.mark.parametrize("kind", ["llama", "bert", "bart", "gpt2"])
@pytest.mark.parametrize("damages", [*SINGLE, *PAIRS], ids=lambda damages: "+".join(one.__name__ for one in damages))
def test_repaired_copy(tmp_path, kind, damages):
    asked = {DAMAGES[one] for one in damages} - {None}
    for tied in asked or (True, False):
        here = tmp_path / str(tied)
        here.mkdir()
        files = Files(kind, tied, here / "sound")
        for damage in damages:
            damage(files)
        files.write(here / "damaged")
        differs = (kind, tied) == ("bart", False)  # different tables of its encoder and its decoder are one in version 4
        if differs and not {one.__name__ for one in damages} <= {"stale_index", "no_index"}:
            with pytest.raises(CheckpointError, match=r'would say "cannot say": .* are one tensor in this version'):
                fix(here / "damaged", here / "fixed")
            assert not (here / "fixed").exists()
            continue
        changes = fix(here / "damaged", here / "fixed")
        assert len(changes) == len(damages), changes
        one = check_folder(here / "fixed")
        assert (one.answer, one.edit) == ("cannot say" if differs else "agrees", None), one
        expected, found = states(loaded(here / "sound")), states(loaded(here / "fixed"))
        assert expected.keys() == found.keys()
        assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
        assert "## Changed by tiejax" in (here / "fixed" / "README.md").read_text()
        if not differs:
            assert fix(here / "fixed", here / "again") == ()
        assert not (here / "again").exists()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "bert", "bart", "gpt2", "t5", "rembert", "gemma3_text"])
def test_sound_checkpoint_is_not_copied(tmp_path, kind, tied):
    folder = saved(kind, tied, tmp_path / "c")
    if (kind, tied) == ("bart", False):
        with pytest.raises(CheckpointError, match="are one tensor in this version"):  # version 4
            fix(folder, tmp_path / "out")
    else:
        assert fix(folder, tmp_path / "out") == ()
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("kind", ["llama", "bert", "bart", "gpt2"])
def test_head_trained_under_a_flag_that_says_tied(tmp_path, kind):
    """A tied checkpoint to which another output table was added: the library keeps both tables, and loads the copy alike."""
    files = Files(kind, True, tmp_path / "sound")
    copy(files)
    files.tensors[files.head] += torch.randn(files.tensors[files.head].shape)
    files.write(tmp_path / "damaged")
    edit = check_folder(tmp_path / "damaged").edit
    assert ("check --fix" if kind in ("bert", "bart") else "set tie_word_embeddings to false") in edit
    fix(tmp_path / "damaged", tmp_path / "fixed")
    assert check_folder(tmp_path / "fixed").answer == "agrees"
    expected, found = states(loaded(tmp_path / "damaged")), states(loaded(tmp_path / "fixed"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


@pytest.mark.parametrize("kind", ["llama", "bert", "bart", "gpt2"])
def test_the_library_logs_nothing_about_copies(tmp_path, caplog, kind):
    """Its warnings about tables that are tied, missing or unexpected; those of loading a damaged checkpoint are seen."""
    transformers.utils.logging.enable_propagation()  # other tests may have silenced it
    transformers.utils.logging.set_verbosity_warning()
    untie(saved(kind, True, tmp_path / "tied"), tmp_path / "untied")
    files = Files(kind, False, tmp_path / "c")
    sides = (name for name in files.tensors if name.endswith("embed_tokens.weight"))  # of BART, one tensor in version 4
    files.tensors |= {name: files.tensors[files.input].clone() for name in sides}
    flag(files)
    files.write(tmp_path / "damaged")
    fix(tmp_path / "damaged", tmp_path / "fixed")
    for name, logged in (("untied", False), ("fixed", False), ("damaged", True)):
        caplog.clear()
        loaded(tmp_path / name)
        assert any(record.name.startswith("transformers") for record in caplog.records) == logged, caplog.text
