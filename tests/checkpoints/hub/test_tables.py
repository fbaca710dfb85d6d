"""Tables of a checkpoint: rows compared with the written arrays, and tensors that cannot be tables."""

import ml_dtypes
import numpy as np
import pytest
from hub_checkpoints import ROWS, WIDTH, checkpoint, refused, values

from tiejax.checkpoints.diagnose.tables import INPUT, OUTPUT
from tiejax.checkpoints.hub import tables
from tiejax.checkpoints.hub.arrays import read
from tiejax.checkpoints.hub.checkpoint import open_checkpoint
from tiejax.checkpoints.hub.tables import HubTable, table
from tiejax.geometry.table_rows import Table


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
def test_rows_equal_the_written_array(tmp_path, monkeypatch, dtype, transposed):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 5 * 4 * WIDTH)  # several blocks for a transposed table
    written = values(dtype=dtype)
    folder = checkpoint(tmp_path / "c", {"t": written.T if transposed else written, "other": values(3, 3)})
    found = table(open_checkpoint(folder), "t", INPUT, ROWS)
    expected = written.astype(np.float32)
    assert (found.shape, found.dtype, found.transposed) == ((ROWS, WIDTH), np.dtype(dtype).name, transposed)
    assert found.nbytes == written.nbytes
    for rows in (slice(0, ROWS), slice(3, 9), slice(20, 99), slice(5, 5)):
        np.testing.assert_array_equal(found[rows], expected[rows])
    for rows in ([0], [ROWS - 1], [1, 2, 3, 7, 9, 10, 22], range(ROWS), []):
        index = np.array(list(rows), np.int64)
        got = found[index]
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, expected[index])
        unconverted = found.as_stored()[index]
        assert unconverted.dtype == (dtype if dtype == ml_dtypes.bfloat16 else np.float32)
        np.testing.assert_array_equal(unconverted.astype(np.float32), expected[index])


def test_values_that_are_not_finite_are_refused(tmp_path):
    written = values()
    written[7, 2] = np.nan
    found = table(open_checkpoint(checkpoint(tmp_path / "c", {"t": written})), "t", INPUT)
    np.testing.assert_array_equal(found[0:7], written[:7])
    refused(lambda: found[5:9], "model.safetensors", "row 7 of t", "not finite")


def test_file_removed_while_reading(tmp_path):
    folder = checkpoint(tmp_path / "c", {"t": values()})
    found = table(open_checkpoint(folder), "t", INPUT)
    (folder / "model.safetensors").unlink()
    refused(lambda: found[0:2], "model.safetensors", "can no longer be read")


def test_tensors_that_cannot_be_tables(tmp_path):
    tensors = {"line": np.zeros(5, np.float32), "codes": np.zeros((5, 2), np.int8), "none": np.zeros((0, 2), np.float32)}
    opened = open_checkpoint(checkpoint(tmp_path / "c", tensors))
    refused(lambda: table(opened, "lime", INPUT), "--input_table lime", "no such tensor", "did you mean line?")
    refused(lambda: table(opened, "line", OUTPUT), "--output_table line", "[5]")
    refused(lambda: table(opened, "none", INPUT), "[0, 2]")
    refused(lambda: table(opened, "codes", INPUT), "I8", "quantised")


def test_dtype_unknown_to_numpy(tmp_path):
    folder = checkpoint(tmp_path / "c", {"t": np.ones(4, ml_dtypes.float8_e4m3fn)})
    refused(lambda: list(read(open_checkpoint(folder).tensors.values())), "model.safetensors", "cannot be read", "float8")


def test_table_satisfies_the_protocol_of_the_geometry(tmp_path):
    opened = open_checkpoint(checkpoint(tmp_path / "c", {"t": values()}))
    found = table(opened, "t", INPUT)
    assert isinstance(found, HubTable)
    assert isinstance(found, Table)
