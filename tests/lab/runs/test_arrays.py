"""Arrays as .npz files, in any memory order and of any size."""

import io

import numpy as np
import pytest

from tiejax.lab.runs.arrays import seed_by_seed, write_npz


def arrays(folder):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(7, 5, 2, 3)).astype(np.float32)
    file = np.memmap(folder / "rows", np.float32, "w+", shape=rows.shape)
    file[:] = rows
    return {
        "moved": np.moveaxis(file, (2, 1, 0), (0, 1, 2)),
        "fortran": np.asfortranarray(rows[..., 0]),
        "names": np.array(["untied", "tied"]),
        "flags": rows[:, :, 0, 0] > 0,
        "number": np.float64(3.5) + np.zeros(()),
        "none": np.zeros((3, 0)),
    }


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_numpy_reads_the_files(tmp_path, monkeypatch, compressed, in_files):
    monkeypatch.setattr("tiejax.lab.runs.arrays.MOST_BYTES", 500)  # larger ones are written seed by seed
    written, expected = io.BytesIO(), arrays(tmp_path)
    write_npz(written, expected, compressed, tmp_path if in_files else None)
    with np.load(io.BytesIO(written.getvalue()), allow_pickle=False) as found:
        assert found.files == list(expected)
        for name, values in expected.items():
            assert found[name].dtype == values.dtype
            np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("most", [1, 40, 500, 10**6])
def test_records_in_files_are_written_seed_by_seed(tmp_path, most):
    """As parts of a member, as blocks of members, and as a whole."""
    for name in ("moved", "fortran"):
        values = arrays(tmp_path)[name]
        parts = list(seed_by_seed(values, tmp_path, most))
        assert b"".join(part.tobytes() for part in parts) == values.tobytes(), name
    moved = list(seed_by_seed(arrays(tmp_path)["moved"], tmp_path, most))
    assert [part.shape for part in moved] == {
        1: [(1,)] * 210,
        40: [(10,), (10,), (1,)] * 10,
        500: [(5, 7, 3), (5, 7, 3)],
        10**6: [(10, 7, 3)],
    }[most]
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_objects_are_refused():
    with pytest.raises(ValueError, match=r"^bad: arrays of object cannot be written without pickles$"):
        write_npz(io.BytesIO(), {"bad": np.array([None])}, compressed=True)
