"""Records in files: appended rows are read back, leftover rows are overwritten, and damage is detected."""

import os

import jax.numpy as jnp
import numpy as np
import pytest
from damage import flip
from processes import tree

from tiejax.training import Checkpoints
from tiejax.training.records import RecordFiles, RecordsInMemory


def rows(first, last):
    """Return records of the steps first, ..., last - 1, of several dtypes and shapes, one without elements."""
    values = np.random.default_rng(0).normal(size=(40, 2, 3))[first:last]
    record = {"step": np.arange(first, last, dtype=np.int32), "distance": values, "finite": values[:, :, 0] > 0}
    return {
        "record": record | {"half": np.asarray(jnp.asarray(values, jnp.bfloat16)), "empty": np.zeros((last - first, 2, 0))},
        "a/b": {"../risk": values.astype(np.float32)},
    }


def assert_same(found, expected):
    assert {name: list(fields) for name, fields in found.items()} == {name: list(fields) for name, fields in expected.items()}
    for name, fields in expected.items():
        for field, values in fields.items():
            assert (found[name][field].dtype, found[name][field].shape) == (values.dtype, values.shape), field
            assert found[name][field].tobytes() == values.tobytes(), field


@pytest.fixture
def files(tmp_path):
    """Return records of 12 steps, appended in three parts, one of them empty."""
    found = RecordFiles(tmp_path / "records")
    for first, last in ((0, 5), (5, 5), (5, 12)):
        found.append(rows(first, last))
    return found


def test_appended_records_are_read_back(files, tmp_path):
    assert_same(files, rows(0, 12))
    assert_same(RecordFiles.opened(tmp_path / "records", files.content()), rows(0, 12))
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_rows_after_the_last_checkpoint_are_overwritten(files, tmp_path):
    known = files.content()
    files.append(rows(20, 23))
    with (tmp_path / "records" / "record.step").open("ab") as file:
        file.write(b"ha")  # half a number, as a killed process leaves it
    again = RecordFiles.opened(tmp_path / "records", known)
    assert_same(again, rows(0, 12))
    again.append(rows(12, 14))
    assert_same(again, rows(0, 14))
    assert_same(RecordFiles.opened(tmp_path / "records", again.content()), rows(0, 14))
    assert (tmp_path / "records" / "record.step").stat().st_size == 4 * 14


def test_records_of_an_older_run_are_overwritten(files, tmp_path):
    new = RecordFiles(tmp_path / "records")
    new.append(rows(30, 32))
    assert_same(new, rows(30, 32))


def broken(path, how):
    if how == "flipped":
        flip(path, 8 * path.stat().st_size - 1)
    elif how == "short":
        os.truncate(path, path.stat().st_size - 1)
    else:
        path.unlink()
        if how == "a pipe":
            os.mkfifo(path)


@pytest.mark.parametrize("how", ["flipped", "short", "gone", "a pipe"])
@pytest.mark.parametrize("name", ["record.distance", "record.step", "a%2Fb.%2E%2E%2Frisk"])
def test_damaged_records_are_reported(files, tmp_path, name, how):
    known = files.content()
    broken(tmp_path / "records" / name, how)
    with pytest.raises(ValueError, match=f"{name} (differs|is not a file)"):
        RecordFiles.opened(tmp_path / "records", known)


def test_symbolic_link_is_refused_and_its_target_unchanged(files, tmp_path):
    """Full disks are tested in the fault suite."""
    (tmp_path / "precious").write_text("unchanged")
    path = tmp_path / "records" / "record.step"
    path.unlink()
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=f"{path}") as error:
        files.append(rows(12, 13))
    assert error.value.errno is not None
    assert (tmp_path / "precious").read_text() == "unchanged"


@pytest.mark.parametrize("how", ["short", "gone"])
def test_rows_lost_during_training_raise_an_error_with_the_path(files, tmp_path, how):
    """The gap is not filled with zeros, which a later checkpoint would take for records."""
    path = tmp_path / "records" / "record.distance"
    broken(path, how)
    left = tree(tmp_path)
    with pytest.raises(OSError, match=f"{path}"):
        files.append(rows(12, 14))
    assert tree(tmp_path).get("records/record.distance") == left.get("records/record.distance")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda new: new.pop("a/b"), r"records of .*cannot follow records of .*a/b/../risk"),
        (lambda new: new["record"].update(step=new["record"]["step"].astype(np.int64)), r"record\.step: rows of int64"),
        (lambda new: new["record"].update(finite=new["record"]["finite"][:, :1]), r"record\.finite: rows of bool \(1,\)"),
    ],
)
def test_rows_of_other_fields_dtypes_and_shapes_are_refused(files, change, message):
    new = rows(12, 14)
    change(new)
    with pytest.raises(ValueError, match=message):
        files.append(new)


@pytest.mark.parametrize("entry", [{"dtype": "object"}, {"rows": -1}, {"rows": 2.0}, {"shape": [-2, -3]}])
def test_invalid_entries_are_refused(files, tmp_path, entry):
    content = files.content()
    content["record"]["distance"] |= entry
    with pytest.raises(ValueError, match=r"record\.distance cannot hold"):
        RecordFiles.opened(tmp_path / "records", content)


def test_records_in_memory_are_copies():
    """A chunk's records are views of a larger buffer, which must not stay in memory."""
    chunk = rows(0, 4)
    records = RecordsInMemory(chunk)
    records.append(rows(4, 6))
    chunk["record"]["step"][:] = 99
    assert_same(records.all(), rows(0, 6))


@pytest.fixture
def run(tmp_path):
    """Yield the checkpoints of steps 10 and 20 of a run with records in files, and the list of its messages."""
    messages = []
    checkpoints = Checkpoints(tmp_path / "checkpoints", [], messages.append)
    files = RecordFiles(checkpoints.record_folder)
    for step in (10, 20):
        files.append(rows(step - 10, step))
        checkpoints.save(step, {"w": jnp.full(3, step)}, files)
    yield checkpoints, messages
    checkpoints.close()


def test_checkpoint_restores_its_records(run, tmp_path):
    checkpoints, messages = run
    step, state, records = checkpoints.restore({"w": jnp.zeros(3, jnp.int32)})
    assert (step, state["w"].tolist(), messages) == (20, [20, 20, 20], [])
    assert_same(records, rows(0, 20))


def test_reader_falls_back_to_the_previous_checkpoint_if_records_are_damaged(run, tmp_path):
    _, messages = run
    flip(tmp_path / "checkpoints/records/record.distance", 8 * (15 * 48))  # a row of the second checkpoint only
    before = tree(tmp_path)
    reader = Checkpoints(tmp_path / "checkpoints", [], messages.append, read_only=True)
    step, _, records = reader.restore({"w": jnp.zeros(3, jnp.int32)})
    reader.close()
    assert step == 10
    assert_same(records, rows(0, 10))
    assert [line.split("20 is damaged")[1] for line in messages] == [
        " (the digest of records/record.distance differs); using the previous one"
    ]
    assert tree(tmp_path) == before


def test_damage_of_the_first_records_invalidates_all_checkpoints(run, tmp_path):
    checkpoints, messages = run
    flip(tmp_path / "checkpoints/records/record.distance", 0)
    assert checkpoints.restore({"w": jnp.zeros(3, jnp.int32)}) is None
    assert len(messages) == 2
    assert messages[1].endswith("there is no previous one")


def test_records_in_memory_of_other_fields_are_refused():
    records, new = RecordsInMemory(rows(0, 4)), rows(4, 6)
    new["record"]["more"] = new["record"]["step"]
    with pytest.raises(ValueError, match=r"records of .*record/more.* cannot follow records of"):
        records.append(new)
    assert_same(records.all(), rows(0, 4))


@pytest.mark.parametrize("in_memory", [True, False])
def test_names_with_dots_are_kept_apart(tmp_path, in_memory):
    steps = np.arange(3)
    found = {"val": {"x.y": steps, "step": steps}, "val.x": {"y": steps + 7, "step": steps}}
    with_dots = RecordsInMemory({}) if in_memory else RecordFiles(tmp_path / "records")
    with_dots.append(found)
    checkpoints = Checkpoints(tmp_path, [], print)
    checkpoints.save(3, {"a": np.ones(2)}, with_dots.all())
    checkpoints.close()
    restored = Checkpoints(tmp_path, [], pytest.fail).restore({"a": np.ones(2)})
    assert restored is not None
    assert {name: dict(fields) for name, fields in restored[2].items()}.keys() == found.keys()
    for name, fields in found.items():
        for field, values in fields.items():
            np.testing.assert_array_equal(restored[2][name][field], values)
