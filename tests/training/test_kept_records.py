"""Records in files: what is appended is what is read, and what is there besides, or not as it was, is known."""

import os

import jax.numpy as jnp
import numpy as np
import pytest
from damage import flip
from processes import tree

from tiejax.training import Checkpoints
from tiejax.training.kept_records import RecordFiles, RecordsInMemory


def rows(first, last):
    """Records of the steps from `first` to before `last`, of several types and shapes; some have no number at all."""
    values = np.random.default_rng(0).normal(size=(40, 2, 3))[first:last]
    record = {"step": np.arange(first, last, dtype=np.int32), "distance": values, "finite": values[:, :, 0] > 0}
    return {
        "record": record | {"half": np.asarray(jnp.asarray(values, jnp.bfloat16)), "nothing": np.zeros((last - first, 2, 0))},
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
    """Records of 12 steps, appended in three parts, one of them empty."""
    found = RecordFiles(tmp_path / "records")
    for first, last in ((0, 5), (5, 5), (5, 12)):
        found.append(rows(first, last))
    return found


def test_what_was_appended_is_read(files, tmp_path):
    assert_same(files, rows(0, 12))
    assert_same(RecordFiles.opened(tmp_path / "records", files.content()), rows(0, 12))
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_rows_that_no_checkpoint_knows_are_written_over(files, tmp_path):
    known = files.content()
    files.append(rows(20, 23))
    with (tmp_path / "records" / "record.step").open("ab") as file:
        file.write(b"ha")  # of a number, when the process was killed
    again = RecordFiles.opened(tmp_path / "records", known)
    assert_same(again, rows(0, 12))
    again.append(rows(12, 14))
    assert_same(again, rows(0, 14))
    assert_same(RecordFiles.opened(tmp_path / "records", again.content()), rows(0, 14))
    assert (tmp_path / "records" / "record.step").stat().st_size == 4 * 14


def test_records_of_an_older_run_there_are_written_over(files, tmp_path):
    anew = RecordFiles(tmp_path / "records")
    anew.append(rows(30, 32))
    assert_same(anew, rows(30, 32))


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
@pytest.mark.parametrize("name", ["record.distance", "record.step", "a%2Fb...%2Frisk"])
def test_records_that_are_not_as_they_were_are_told(files, tmp_path, name, how):
    known = files.content()
    broken(tmp_path / "records" / name, how)
    with pytest.raises(ValueError, match=f"{name} (differs|is no file)"):
        RecordFiles.opened(tmp_path / "records", known)


def test_a_link_in_place_of_a_file_is_named_and_what_it_leads_to_is_left(files, tmp_path):
    """As every error of the system; the fault suite takes the room away."""
    (tmp_path / "precious").write_text("as it was")
    path = tmp_path / "records" / "record.step"
    path.unlink()
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match=f"{path}") as error:
        files.append(rows(12, 13))
    assert error.value.errno is not None
    assert (tmp_path / "precious").read_text() == "as it was"


@pytest.mark.parametrize("how", ["short", "gone"])
def test_rows_that_are_lost_while_a_run_trains_end_it_by_name(files, tmp_path, how):
    """And are not written over with nothing, of which a checkpoint would say that it is whole."""
    path = tmp_path / "records" / "record.distance"
    broken(path, how)
    left = tree(tmp_path)
    with pytest.raises(OSError, match=f"{path}"):
        files.append(rows(12, 14))
    assert tree(tmp_path).get("records/record.distance") == left.get("records/record.distance")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda new: new.pop("a/b"), r"records of .*those before of .*a/b/../risk"),
        (lambda new: new["record"].update(step=new["record"]["step"].astype(np.int64)), r"record\.step: rows of int64"),
        (lambda new: new["record"].update(finite=new["record"]["finite"][:, :1]), r"record\.finite: rows of bool \(1,\)"),
    ],
)
def test_rows_of_other_fields_types_and_shapes_are_refused(files, change, said):
    new = rows(12, 14)
    change(new)
    with pytest.raises(ValueError, match=said):
        files.append(new)


@pytest.mark.parametrize("said", [{"dtype": "object"}, {"rows": -1}, {"rows": 2.0}, {"shape": [-2, -3]}])
def test_what_no_file_can_hold_is_told(files, tmp_path, said):
    content = files.content()
    content["record"]["distance"] |= said
    with pytest.raises(ValueError, match=r"record\.distance cannot hold"):
        RecordFiles.opened(tmp_path / "records", content)


def test_records_in_memory_are_their_own():
    """A chunk's are parts of a larger buffer, which must not stay for them."""
    chunk = rows(0, 4)
    kept = RecordsInMemory(chunk)
    kept.append(rows(4, 6))
    chunk["record"]["step"][:] = 99
    assert_same(kept.all(), rows(0, 6))


@pytest.fixture
def run(tmp_path):
    """The checkpoints of steps 10 and 20 of a run with its records in files, and what is said of them."""
    said = []
    checkpoints = Checkpoints(tmp_path / "checkpoints", [], said.append)
    files = RecordFiles(checkpoints.record_folder)
    for step in (10, 20):
        files.append(rows(step - 10, step))
        checkpoints.save(step, {"w": jnp.full(3, step)}, files)
    yield checkpoints, said
    checkpoints.close()


def test_a_checkpoint_gives_its_own_records_back(run, tmp_path):
    checkpoints, said = run
    step, state, records = checkpoints.restore({"w": jnp.zeros(3, jnp.int32)})
    assert (step, state["w"].tolist(), said) == (20, [20, 20, 20], [])
    assert_same(records, rows(0, 20))


def test_a_reader_takes_the_checkpoint_before_where_the_newest_records_are_damaged(run, tmp_path):
    _, said = run
    flip(tmp_path / "checkpoints/records/record.distance", 8 * (15 * 48))  # a row of the second checkpoint alone
    before = tree(tmp_path)
    reader = Checkpoints(tmp_path / "checkpoints", [], said.append, read_only=True)
    step, _, records = reader.restore({"w": jnp.zeros(3, jnp.int32)})
    reader.close()
    assert step == 10
    assert_same(records, rows(0, 10))
    assert [line.split("20 is damaged")[1] for line in said] == [
        " (the digest of records/record.distance differs); taking the one before it"
    ]
    assert tree(tmp_path) == before


def test_without_its_first_records_a_run_starts_anew(run, tmp_path):
    checkpoints, said = run
    flip(tmp_path / "checkpoints/records/record.distance", 0)
    assert checkpoints.restore({"w": jnp.zeros(3, jnp.int32)}) is None
    assert len(said) == 2
    assert said[1].endswith("there is none before it")
