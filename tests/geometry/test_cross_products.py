"""Cross-products of centred tables against numpy in float64."""

import numpy as np
from random_tables import centred, gaussian

from tiejax.geometry import table_rows
from tiejax.geometry.cross_products import cross_products


def test_cross_products_keep_their_digits_far_from_the_origin(monkeypatch):
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", 4 * 6 * 70)
    # Rows drift from block to block, far from the origin: means of blocks differ by more than rows do.
    drift = np.linspace(0, 20, 500, dtype=np.float32)[:, None]
    source, target = gaussian(500, 6, 1) + 1000 + drift, gaussian(500, 5, 2) - 300 + drift
    found = cross_products(source, target)
    x, y = centred(source), centred(target)
    for mine, exact in ((found.source_gram, x.T @ x), (found.target_gram, y.T @ y), (found.cross, x.T @ y)):
        assert np.abs(mine - exact).max() < 1e-6 * np.abs(exact).max()
    np.testing.assert_allclose(found.source_mean, source.mean(0, dtype=float), rtol=1e-9)
