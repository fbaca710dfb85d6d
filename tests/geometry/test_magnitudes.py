"""Tables of very small or very large numbers: scaling by powers of two, which is exact, changes no measure but the norms."""

import ml_dtypes
import numpy as np
import pytest
from random_tables import canonical_correlations, gaussian

from tiejax.geometry.alignment import alignment, mapped_cosines
from tiejax.geometry.cross_products import cross_products
from tiejax.geometry.linear_maps import maps_between, whitening
from tiejax.geometry.neighbours import neighbour_overlap
from tiejax.geometry.norms import norms_and_equality

POWERS = (-110, -83, -76, -50, 50, 66, 110)  # 1e-33, 1e-25, 1e-23, ..., 1e33
ROWS, WIDTH = 200, 6


def pair(dtype=np.float32):
    source = gaussian(ROWS, WIDTH, 1) + 0.3
    target = source @ gaussian(WIDTH, WIDTH, 2) + gaussian(ROWS, WIDTH, 3)
    source[7] = 0  # a row without a cosine
    return source.astype(dtype), target.astype(dtype)


def scaled(table, power):
    return np.ldexp(table.astype(np.float32), power).astype(table.dtype)


def measures(source, target):
    found = alignment(source, target)
    products = cross_products(source, target)
    maps = maps_between(products, (whitening(products.source_gram), whitening(products.target_gram)))
    cosines = mapped_cosines(source, target, np.arange(ROWS), (products.source_mean, products.target_mean), maps)
    return [
        *found[:3],
        *canonical_correlations(source, target),
        neighbour_overlap(source, target, k=5, sample=40).estimate,
        *np.concatenate(cosines),
        *norms_and_equality(source, target).cosine,
    ]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("power", POWERS)
def test_the_magnitude_of_a_table_does_not_matter(power, dtype):
    source, target = pair(dtype)
    wanted = measures(source, target)
    np.testing.assert_allclose(measures(scaled(source, power), target), wanted, atol=3e-5)
    np.testing.assert_allclose(measures(source, scaled(target, power)), wanted, atol=3e-5)
    np.testing.assert_allclose(measures(scaled(source, power), scaled(target, -power)), wanted, atol=3e-5)


@pytest.mark.parametrize("power", POWERS)
def test_norms_scale_with_a_table(power):
    source, target = pair()
    wanted = norms_and_equality(source, target)
    found = norms_and_equality(scaled(source, power), scaled(target, power))
    np.testing.assert_allclose(np.ldexp(found.first, -power), wanted.first, rtol=1e-6)
    np.testing.assert_allclose(np.ldexp(found.second, -power), wanted.second, rtol=1e-6)
    assert found.differing == wanted.differing
    assert np.ldexp(np.float32(found.largest), -power) == np.float32(wanted.largest)


@pytest.mark.parametrize("power", [-80, 80])
def test_rows_and_columns_of_one_table_may_differ_in_magnitude(power):
    source, target = pair()
    rows = scaled(source, power * (np.arange(ROWS) % 2)[:, None])
    same = norms_and_equality(source, target).cosine
    np.testing.assert_allclose(norms_and_equality(rows, target).cosine, same, atol=1e-6)
    whole = [neighbour_overlap(table, target, k=5, sample=40).estimate for table in (source, rows)]
    assert whole[0] == whole[1]
    columns = scaled(source, power * (np.arange(WIDTH) % 2))
    np.testing.assert_allclose(canonical_correlations(columns, target), canonical_correlations(source, target), atol=1e-5)


def test_the_largest_numbers_of_float32():
    source, target = pair()
    largest = np.finfo(np.float32).max
    source, target = (table / np.abs(table).max() * largest for table in (source, target))
    found = norms_and_equality(source, target)
    assert np.isfinite([*found.first, *found.second, found.largest]).all()
    np.testing.assert_allclose(measures(source, target), measures(source / largest, target / largest), atol=3e-5)
