"""Temporary arrays, in memory or in an unnamed file."""

import numpy as np
import pytest

from tiejax.system.scratch import scratch_array


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 2), (0, 4), ()])
def test_values_and_no_file_left(tmp_path, on_disk, shape):
    array = scratch_array(shape, tmp_path if on_disk else None)
    assert (array.shape, array.dtype) == (shape, np.float64)
    expected = np.random.default_rng(0).normal(size=shape)
    array[...] = expected
    np.testing.assert_array_equal(array, expected)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_an_error_before_anything_is_written(tmp_path):
    with pytest.raises(OSError, match=f"{tmp_path}") as error:
        scratch_array((2**50,), tmp_path)
    assert error.value.errno is not None
    assert list(tmp_path.iterdir()) == []
