"""Factors from the spectrum of tables, against numpy's SVD."""

import numpy as np
import pytest
from hub_checkpoints import values
from small_tables import ROWS, WIDTH, residual, table, truncated

from tiejax.checkpoints.rewrite import spectrum as spectra
from tiejax.checkpoints.rewrite.spectrum import energies_by_table, energy_kept, factor_rows, maps, rank_for, spectrum


def products(tables, found, rank):
    rows = np.concatenate(list(factor_rows(tables, found, rank)))
    return [rows @ one for one in maps(found, rank)]


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_one_table_is_the_truncated_svd(rank):
    one = table()
    found = spectrum([one])
    (product,) = products([one], found, rank)
    np.testing.assert_allclose(product, truncated(one, rank), atol=2e-6)
    assert energy_kept(found)[rank - 1] == pytest.approx(1 - residual(one, product), abs=1e-6)
    squares = np.linalg.svd(one, compute_uv=False) ** 2
    np.testing.assert_allclose(energy_kept(found), np.cumsum(squares) / squares.sum(), atol=1e-6)


def test_map_of_one_table_is_orthonormal():
    (b,) = maps(spectrum([100 * table()]), 3)
    np.testing.assert_allclose(b @ b.T, np.eye(3), atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_weighted_rows_are_the_svd_of_scaled_rows(rank):
    one, weights = table(), np.random.default_rng(3).uniform(0.1, 50, ROWS)
    root = np.sqrt(weights)[:, None]
    found = spectrum([one], weights)
    (product,) = products([one], found, rank)
    best = truncated(root * one, rank) / root
    np.testing.assert_allclose(product, best, atol=1e-5)
    assert energy_kept(found)[rank - 1] == pytest.approx(1 - residual(root * one, root * product), abs=1e-6)
    assert np.abs(best - truncated(one, rank)).max() > 1e-2  # so that ignored weights would be noticed


@pytest.mark.parametrize("rank", [1, 4, 7, 12])
def test_two_tables_are_the_svd_of_both_normalised(rank):
    first, second = table(), 7 * table(1)
    norms = [np.linalg.norm(one) for one in (first, second)]
    joint = truncated(np.concatenate([first / norms[0], second / norms[1]], axis=1), rank)
    found = spectrum([first, second])
    one, other = products([first, second], found, rank)
    np.testing.assert_allclose(one, norms[0] * joint[:, :WIDTH], atol=1e-5)
    np.testing.assert_allclose(other, norms[1] * joint[:, WIDTH:], atol=1e-4)
    alone = [1 - residual(first, one), 1 - residual(second, other)]
    np.testing.assert_allclose([energies[rank - 1] for energies in energies_by_table(found)], alone, atol=1e-6)
    assert energy_kept(found)[rank - 1] == pytest.approx(np.mean(alone), abs=1e-6)


def test_tables_equal_up_to_a_map_need_the_width_of_one():
    first = table()
    second = first @ values(WIDTH, WIDTH, seed=5)
    found = spectrum([first, second])
    assert energy_kept(found)[WIDTH - 1] == pytest.approx(1, abs=1e-6)
    assert energy_kept(found)[WIDTH - 2] < 1 - 1e-5
    one, other = products([first, second], found, WIDTH)
    np.testing.assert_allclose(one, first, atol=1e-5)
    np.testing.assert_allclose(other, second, atol=1e-5)


def test_blocks_of_rows_change_nothing(monkeypatch):
    tables, weights = [table(), table(1)], np.arange(1.0, ROWS + 1)
    whole = spectrum(tables, weights)
    expected = products(tables, whole, 4)
    monkeypatch.setattr(spectra, "BLOCK_BYTES", 7 * 4 * 2 * WIDTH)
    cut = spectrum(tables, weights)
    assert [len(block) for block in factor_rows(tables, cut, 4)] == [7, 7, 7, 7, 7, 5]
    np.testing.assert_allclose(cut.values, whole.values, atol=1e-6)
    np.testing.assert_allclose(products(tables, cut, 4), expected, atol=1e-5)


def test_lowest_rank_that_keeps_an_energy():
    energies = np.array([0.5, 0.9, 0.99, 1 - 1e-16])
    assert [rank_for(energies, wanted) for wanted in (0.1, 0.5, 0.51, 0.9, 0.991, 1.0)] == [1, 1, 2, 2, 4, 4]


def test_exact_low_rank_is_found():
    """With products summed in float32, rank 15 was found instead of 3."""
    one = (values(300, 3) @ values(3, 64, seed=2)).astype(np.float32)
    for tables in ([one], [one, one]):
        energies = energy_kept(spectrum(tables))
        assert [rank_for(energies, wanted) for wanted in (0.9999, 0.9999999, 1.0)] == [3, 3, 3]


@pytest.mark.parametrize(("most", "error"), [(64, 1e-13), (63, 1e-6)], ids=["float64", "float32"])
def test_energies_are_precise_for_similar_rows(monkeypatch, most, error):
    monkeypatch.setattr(spectra, "MOST_EXACT", most)
    one = values(2000, 64) + 10
    squares = np.linalg.svd(one.astype(np.float64), compute_uv=False) ** 2
    found = spectrum([one])
    np.testing.assert_allclose(energy_kept(found), np.cumsum(squares) / squares.sum(), rtol=0, atol=error)
    assert found.precision < error


@pytest.mark.parametrize("rows", [1, 3, 11])
def test_fewer_rows_than_columns(rows):
    """Two tables of 6 columns have as many ranks as rows."""
    first, second = table(rows=rows), 7 * table(1, rows)
    weights = np.arange(1.0, rows + 1)
    found = spectrum([first, second], weights)
    root = np.sqrt(weights)[:, None]
    norms = [np.linalg.norm(root * one) for one in (first, second)]
    joint = np.concatenate([root * first / norms[0], root * second / norms[1]], axis=1)
    squares = np.linalg.svd(joint, compute_uv=False) ** 2
    np.testing.assert_allclose(energy_kept(found), np.cumsum(squares) / 2, atol=1e-6)
    one, other = products([first, second], found, rows)
    np.testing.assert_allclose(one, first, atol=1e-5)
    np.testing.assert_allclose(other, second, atol=1e-4)


@pytest.mark.parametrize("most", [0, 1024])
@pytest.mark.parametrize("scale", [1e-33, 1e-23, 1e20, 1e30, 1e37])
def test_squares_outside_the_range_of_float32(scale, most, monkeypatch):
    monkeypatch.setattr(spectra, "MOST_EXACT", most)  # 0: the path of wide tables
    (one,) = products([np.float32(scale) * table()], spectrum([np.float32(scale) * table()]), 3)
    np.testing.assert_allclose(one / scale, truncated(table(), 3), atol=2e-6)
