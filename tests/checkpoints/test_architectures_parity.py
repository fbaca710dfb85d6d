"""Every architecture of the transformers library: its checkpoints as saved, damaged, sharded and untied."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from architectures.merge import merged  # noqa: E402
from architectures.rows import row_of  # noqa: E402
from architectures.small_models import FLAG, Model, build, save  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tiejax.checkpoints.check import check_folder  # noqa: E402
from tiejax.checkpoints.hub.architectures import Architecture, known  # noqa: E402
from tiejax.checkpoints.hub.checkpoint import INDEX, WEIGHTS, open_checkpoint  # noqa: E402
from tiejax.checkpoints.hub.errors import CheckpointError  # noqa: E402
from tiejax.checkpoints.hub.families import states_of  # noqa: E402
from tiejax.checkpoints.hub.stored import stored_tables  # noqa: E402
from tiejax.checkpoints.rewrite.fix import fix  # noqa: E402
from tiejax.checkpoints.rewrite.tie import tie  # noqa: E402
from tiejax.checkpoints.rewrite.untie import untie  # noqa: E402

pytestmark = pytest.mark.parity
MAJOR = transformers.__version__.split(".")[0]
HERE = {*dir(transformers)}  # unlike hasattr, does not import the modules of all classes
WITH_HEAD = [name for name, one in known().items() if MAJOR in one.ties and name in HERE]


@pytest.fixture(scope="module", params=WITH_HEAD)
def saved(request, tmp_path_factory):
    """Both models of an architecture, saved: {tied by the flag: (model, names of its tables in the file, folder)}."""
    kind, built = getattr(transformers, request.param), {}
    for flag in (True, False):
        model, folder = build(kind, flag), tmp_path_factory.mktemp(request.param)
        built[flag] = model, save(model, folder), folder
    return built


@pytest.fixture(scope="module")
def models(saved):
    """Both models of an architecture: {tied by the flag: (model, folder)}."""
    return {flag: (model, folder) for flag, (model, _, folder) in saved.items()}


def expected(models: Mapping[bool, tuple[Model, Path]], tied: bool, folder: Path, saved: bool | None = None) -> str:
    """Return the answer for a checkpoint that stores one table if `tied`, or two different ones, under its configuration.

    It is what every major version of the library does with it, or "cannot say", also where one is not known. saved: the flag
    under which the file was written, if other tensors in it depend on that.
    """
    states = states_of(json.loads((folder / "config.json").read_text()))
    one = known()[type(models[True][0].module).__name__]
    found = set()
    for version, ties in one.ties.items():
        flag = one.tied(version, states)
        further = saved in (None, states[0] is not False) or version not in one.more
        kept = tied or states[0] is False
        agrees = {"by flag": None if flag is None else tied == flag, "always": kept, "never": not tied}[ties]
        one_table = {"by flag": flag, "always": True, "never": False}[ties]
        found.add(agrees and further and (one_table or not drops(one, version, folder)))
    return "cannot say" if len(found) > 1 or None in found else "agrees" if found.pop() else "disagrees"


def drops(one: Architecture, version: str, folder: Path) -> bool:
    """Return whether a file stores different tensors that are one in every model of a version, also an untied one."""
    stored = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    copies = [*one.input[:1], *(name for name in one.inner if name not in (*one.separate.get(version, ()), *one.output))]
    groups = [copies, *(group for group in one.groups if group not in one.more.get(version, ()))]
    present = ([stored[name] for name in group if name in stored] for group in groups)
    return any(not torch.equal(values[0], other) for values in present if values for other in values[1:])


def by_flag(models: Mapping[bool, tuple[Model, Path]]) -> bool:
    """Return whether all versions of the library tie the tables by the flag, which changes nothing else."""
    one = known()[type(models[True][0].module).__name__]
    return one.only("by flag") and not (one.scaled or one.unlike or {"?"} in map(set, one.flag.values()))


def with_flag(folder: Path, flag: bool, out: Path) -> Path:
    """Copy a checkpoint with the flag set at every level that has one, and at the top."""
    config = json.loads((folder / "config.json").read_text())
    inner = {name: {**part, FLAG: flag} for name, part in config.items() if isinstance(part, dict) and FLAG in part}
    out.mkdir()
    (out / "config.json").write_text(json.dumps({**config, **inner, FLAG: flag}))
    (out / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    return out


def names_in(folder: Path) -> set[str]:
    with safe_open(folder / WEIGHTS, framework="pt") as opened:
        return set(opened.keys())


@pytest.mark.parametrize("flag", [True, False], ids=["tied", "untied"])
def test_as_saved(models, flag):
    model, folder = models[flag]
    one = check_folder(folder)
    assert one.answer == expected(models, model.tied, folder), one
    assert one.stored.startswith("one table" if model.tied else "two "), one


@pytest.mark.parametrize("flag", [True, False], ids=["tied", "untied"])
def test_flag_flipped(models, flag, tmp_path):
    model, folder = models[flag]
    flipped = with_flag(folder, not flag, tmp_path / "c")
    one = check_folder(flipped)
    assert one.answer == expected(models, model.tied, flipped, flag), one


def test_head_removed(models, tmp_path):
    model, folder = models[False]
    if model.tied:
        pytest.skip("the library ties it whatever the flag says")
    output = stored_tables(open_checkpoint(folder)).output
    copy = with_flag(folder, False, tmp_path / "c")
    tensors = load_file(copy / WEIGHTS)
    del tensors[output.name]
    save_file(tensors, copy / WEIGHTS)
    one = check_folder(copy)
    assert (one.answer, one.stored) == (expected(models, True, copy), "one table"), one
    assert one.answer != "agrees"
    with pytest.raises(CheckpointError, match="cannot be untied"):
        untie(copy, tmp_path / "untied")


def test_sharded(models, tmp_path):
    _, folder = models[False]
    tensors = load_file(folder / WEIGHTS)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    files = {name: f"model-{place % 3}.safetensors" for place, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    assert check_folder(tmp_path)[1:] == check_folder(folder)[1:]


def test_untied_copy_has_the_names_that_the_library_writes(models, tmp_path):
    (tied, folder), (_, other) = models[True], models[False]
    if not by_flag(models):
        with pytest.raises(CheckpointError, match=r"cannot be untied|is not tied"):
            untie(folder, tmp_path / "untied")
        return
    untie(folder, tmp_path / "untied")
    one = check_folder(tmp_path / "untied")
    assert (one.answer, one.stored) == (expected(models, False, tmp_path / "untied"), "two equal tables"), one
    assert names_in(tmp_path / "untied") == names_in(other)
    assert tied.tied


def test_repaired_copies_have_the_names_that_the_library_writes(models, tmp_path):
    """A lone output table, or a copy, under a prefix; and a flag that says tied although two tables are stored."""
    (_, tied), (_, untied) = models[True], models[False]
    if not by_flag(models) or check_folder(untied).answer == "cannot say":
        return
    assert fix(tied, tmp_path / "out") == fix(untied, tmp_path / "out") == ()
    shared, head = stored_tables(open_checkpoint(tied)).input.name, stored_tables(open_checkpoint(untied)).output.name
    tensors, copy = load_file(tied / WEIGHTS), with_flag(tied, True, tmp_path / "c")
    alone = {head if name == shared else name: tensor for name, tensor in tensors.items()}
    for number, damaged in enumerate((alone, tensors | {head: tensors[shared].clone()})):
        save_file({f"module.{name}": tensor for name, tensor in damaged.items()}, copy / WEIGHTS)
        fix(copy, tmp_path / str(number))
        assert names_in(tmp_path / str(number)) == names_in(tied)
        assert check_folder(tmp_path / str(number)).answer == "agrees"
    fix(with_flag(untied, True, tmp_path / "two"), tmp_path / "flag")
    assert names_in(tmp_path / "flag") == names_in(untied)
    assert check_folder(tmp_path / "flag").answer == "agrees"


def test_data_is_that_of_the_installed_version(saved, tmp_path):
    """What the installed version does is part of the map."""
    kind = type(saved[True][0].module)
    row = row_of(kind, tmp_path, {flag: one[:2] for flag, one in saved.items()}) | {"version": transformers.__version__}
    found, ours = merged([[row]])["heads"][kind.__name__], known()[kind.__name__]
    assert ours.ties[MAJOR] == found["ties"][MAJOR]
    assert set(found["input"]) <= set(ours.input)
    assert set(found["output"]) <= set(ours.output)


def test_tied_copy_has_the_names_that_the_library_writes(models, tmp_path):
    """An untied checkpoint whose tensors are equal wherever the flag makes them one, but for the bias of the logits."""
    (_, tied), (_, folder) = models[True], models[False]
    stored = stored_tables(open_checkpoint(folder))
    one = stored.architecture
    if not by_flag(models) or stored.relation == "shapes":
        with pytest.raises(CheckpointError, match="cannot be tied"):
            tie(folder, tmp_path / "tied")
        return
    copy = with_flag(folder, False, tmp_path / "c")
    tensors = load_file(copy / WEIGHTS)
    bias = stored.output.name.removesuffix("weight") + "bias"
    for names in ((stored.input.name, stored.output.name, *one.inner, *one.kept), *one.groups):
        present = [name for name in names if name in tensors and bias not in names]
        tensors |= {name: tensors[present[0]].clone() for name in present}
    save_file(tensors, copy / WEIGHTS)
    tie(copy, tmp_path / "tied")
    assert check_folder(tmp_path / "tied").answer == "agrees"
    found, expected = names_in(tmp_path / "tied"), names_in(tied)
    # Where an untied model has a further copy that it does not use, the tied copy keeps the name of the one that it uses.
    assert {*found, *one.kept} - {stored.input.name} == {*expected, *one.kept} - {stored.input.name}
    assert len(found) == len(expected)
    if bias in tensors:
        assert any(torch.equal(value, tensors[bias]) for value in load_file(tmp_path / "tied" / WEIGHTS).values())
    further = {name for names in one.groups for name in names if bias not in names} & set(tensors)
    for name in {*one.inner, *one.kept, *further} & set(tensors) - {stored.input.name, stored.output.name}:
        save_file(tensors | {name: tensors[name] + 1}, copy / WEIGHTS)
        with pytest.raises(CheckpointError, match=r"cannot be tied: .* differs from .*, and a flag that says tied"):
            tie(copy, tmp_path / "other")
