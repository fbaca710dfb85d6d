"""The measured memory of a computation."""

import numpy as np
import pytest

from experiments.bench import resident


@pytest.mark.skipif(not resident.CLEAR.exists(), reason="the measurement needs Linux")
@pytest.mark.parametrize("mebibytes", [64, 256])
def test_growth_is_the_memory_of_the_largest_moment(mebibytes):
    """An array that lives while a second one of half its size comes and goes."""

    def compute():
        kept = np.ones(2**17 * mebibytes)
        np.ones(2**16 * mebibytes)
        return np.ones(8) if kept.size else None

    assert resident.growth(compute) / 2**20 == pytest.approx(1.5 * mebibytes, rel=0.1, abs=4)
