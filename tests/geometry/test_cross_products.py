"""Cross-products of centred tables against numpy in float64."""

import ml_dtypes
import numpy as np
import pytest
from random_tables import centred, gaussian

from tiejax.geometry import table_rows
from tiejax.geometry.cross_products import cross_products
from tiejax.geometry.linear_maps import RANK_CUT
from tiejax.geometry.products import row_products


def test_cross_products_keep_their_precision_far_from_the_origin(monkeypatch):
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", 4 * 6 * 70)
    # Rows drift from block to block, far from the origin: means of blocks differ by more than rows do.
    drift = np.linspace(0, 20, 500, dtype=np.float32)[:, None]
    source, target = gaussian(500, 6, 1) + 1000 + drift, gaussian(500, 5, 2) - 300 + drift
    found = cross_products(source, target)
    x, y = centred(source), centred(target)
    for mine, exact in ((found.source_gram, x.T @ x), (found.target_gram, y.T @ y), (found.cross, x.T @ y)):
        assert np.abs(mine - exact).max() < 1e-6 * np.abs(exact).max()
    np.testing.assert_allclose(found.source_mean, source.mean(0, dtype=float), rtol=1e-9)


@pytest.mark.parametrize("shift", [0, 0.9, 30])
def test_bfloat16_is_as_exact_as_float32(shift):
    """Near the origin, where rows are multiplied uncentred, and far from it, where they are centred; in several blocks."""
    far = np.where(np.arange(6) == 3, shift, 0)  # one column of the source, as of a real model
    source, target = (
        (gaussian(30_000, width, width) + move).astype(ml_dtypes.bfloat16) for width, move in ((6, far), (5, 0.3))
    )
    found, as_float32 = cross_products(source, target), cross_products(source.astype(np.float32), target.astype(np.float32))
    x, y = centred(source), centred(target)
    for name, exact in (("source_gram", x.T @ x), ("target_gram", y.T @ y), ("cross", x.T @ y)):
        scale = np.abs(exact).max()
        mistakes = [np.abs(getattr(each, name) - exact).max() / scale for each in (found, as_float32)]
        assert max(mistakes) < RANK_CUT  # directions below this are treated as rounding errors
    np.testing.assert_allclose(found.source_mean, source.astype(float).mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_constant_column_has_no_variance_in_any_number_of_blocks(monkeypatch, dtype):
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", 2 * 70)
    for value in np.linspace(0.1, 7, 40):
        source, target = gaussian(300, 2, 1).astype(dtype), gaussian(300, 2, 2).astype(dtype)
        source[:, 1] = value
        found = cross_products(source, target)
        assert found.source_gram[1, 1] == 0
        assert np.abs(found.source_gram[1]).max() <= 1e-5
        assert np.abs(found.cross[1]).max() <= 1e-5


def test_products_of_bfloat16_round_only_sums():
    """Each entry within the bound of a float32 sum, k 2^-24 sum_i |a_i b_i|, which rounding products or inputs would exceed."""
    a, b = (gaussian(*shape, seed).astype(ml_dtypes.bfloat16) for seed, shape in enumerate(((7, 256), (9, 256))))
    found = row_products(a, b)
    assert (found.dtype, found.shape) == (np.float32, (7, 9))
    x, y = a.astype(float), b.astype(float)
    assert (np.abs(found - x @ y.T) <= 16 * 2**-24 * (np.abs(x) @ np.abs(y).T)).all()
    mixed = row_products(a, b.astype(np.float32))
    assert (np.abs(mixed - x @ y.T) <= 16 * 2**-24 * (np.abs(x) @ np.abs(y).T)).all()
