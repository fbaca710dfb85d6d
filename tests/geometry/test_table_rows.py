"""Tables read in blocks: every measure is independent of the block size, reads one block at a time, and checks shapes."""

import ml_dtypes
import numpy as np
import pytest
from random_tables import Reader, canonical_correlations, centred, gaussian, mean_cosine, sampled, shares_by_loop
from scipy import linalg

from tiejax.geometry import table_rows
from tiejax.geometry.alignment import alignment, mapped_cosines
from tiejax.geometry.cross_products import cross_products
from tiejax.geometry.linear_maps import Maps
from tiejax.geometry.neighbours import neighbour_overlap
from tiejax.geometry.norms import norms_and_equality

MEANS, MAPS = (np.zeros(4), np.zeros(4)), Maps(np.eye(4), np.eye(4), np.eye(4))  # of tables of width 4


@pytest.mark.slow
def test_the_block_size_does_not_change_results(monkeypatch):
    source = gaussian(300, 6, 1)
    target = source @ gaussian(6, 6, 2) + gaussian(300, 6, 3)

    def everything():
        found = alignment(source, target)
        return [
            *found,
            *norms_and_equality(source, target).cosine,
            *canonical_correlations(source, target),
            neighbour_overlap(source, target, k=5, sample=40).estimate,
        ]

    whole = everything()
    for size in (1, 4 * 6 * 7, 4 * 6 * 128):
        monkeypatch.setattr(table_rows, "BLOCK_BYTES", size)
        np.testing.assert_allclose(everything(), whole, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_a_reader_is_asked_only_for_blocks(monkeypatch, dtype):
    rows, width = 400, 8
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", 4 * width * 25)
    source, target = Reader(gaussian(rows, width, 1), dtype), Reader(gaussian(rows, width, 2), dtype)
    x, y = source.stored.astype(np.float32), target.stored.astype(np.float32)
    cross_products(source, target)
    overlap = neighbour_overlap(source, target, k=3, sample=60)
    assert overlap.estimate == pytest.approx(np.mean(shares_by_loop(x, y, 3)[sampled(rows, 60)]))
    assert 25 < source.largest == target.largest <= 4 * 25
    found = alignment(source, target)
    assert found.identity == pytest.approx(mean_cosine(x, y), abs=1e-6)
    assert found.procrustes == pytest.approx(
        mean_cosine(centred(x) @ linalg.orthogonal_procrustes(centred(x), centred(y))[0], centred(y)), abs=1e-6
    )
    assert source.largest == target.largest <= 4 * 25
    source.largest = target.largest = 0
    norms_and_equality(source, target)
    assert 0 < source.largest == target.largest <= 25


def test_an_error_about_a_value_that_is_not_finite_names_its_row(monkeypatch):
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", 4 * 4 * 3)
    table, spoilt = gaussian(10, 4), gaussian(10, 4)
    spoilt[7, 2] = np.nan
    with pytest.raises(ValueError, match="row 7 of a table"):
        alignment(table, spoilt)
    with pytest.raises(ValueError, match="row 7 of a table"):
        mapped_cosines(table, spoilt, np.array([1, 2, 4, 7, 8]), MEANS, MAPS)
    with pytest.raises(ValueError, match="row 7 of a table"):
        neighbour_overlap(spoilt, table, k=2, sample=3)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_held_rows_stay_bfloat16(dtype, value):
    table = gaussian(10, 4).astype(dtype)
    stored = table_rows.stored_rows(table, slice(2, 5))
    assert stored.dtype == (dtype if dtype == ml_dtypes.bfloat16 else np.float32)
    np.testing.assert_array_equal(stored.astype(np.float64), table[2:5].astype(np.float64))
    table[7, 1] = value
    with pytest.raises(ValueError, match="row 7 of a table"):
        table_rows.stored_rows(table, slice(5, 9))


def test_reading_ahead_keeps_the_order_and_raises_errors():
    blocks = list(table_rows.row_blocks(10, table_rows.BLOCK_BYTES // 3))
    assert [(block.start, read) for block, read in table_rows.read_ahead(lambda rows: rows.stop, blocks)] == [
        (0, 3), (3, 6), (6, 9), (9, 10)
    ]  # fmt: skip

    def fail(rows):
        raise ValueError(f"no row {rows.start}")

    with pytest.raises(ValueError, match="no row 0"):
        list(table_rows.read_ahead(fail, blocks))
