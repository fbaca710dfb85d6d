"""Canonical correlations of two embedding tables: how well each direction of one can be predicted linearly from the other.

Source: H. Hotelling 1936; for embedding tables, A. Lopardo et al. 2026, arXiv:2603.26663.
"""

import math

import numpy as np
from jaxtyping import Float
from scipy import linalg

from tiejax.geometry.cross_products import CrossProducts, cross_products
from tiejax.geometry.linear_maps import whitening
from tiejax.geometry.table_rows import Table


def canonical_correlations(first: Table, second: Table) -> Float[np.ndarray, "min_width"]:
    """Return the canonical correlations of two tables, in descending order, in [0, 1].

    These are the singular values of (X^T X)^(-1/2) X^T Y (Y^T Y)^(-1/2) for tables centred on their means; there are as many as
    the width of the narrower table. Directions in which a table has no variance have correlation 0. If a table has at least as
    many columns as rows, all others are usually 1, whatever the tables. Raises ValueError if the numbers of rows differ.
    """
    products = cross_products(first, second)
    return correlations_of(products, (whitening(products.source_gram), whitening(products.target_gram)))


def correlations_of(
    products: CrossProducts, bases: tuple[Float[np.ndarray, "source source_rank"], Float[np.ndarray, "target target_rank"]]
) -> Float[np.ndarray, "min_width"]:
    """Return the canonical correlations of two tables from their cross-products; bases: `whitening` of both Gram matrices."""
    whitened = bases[0].T @ products.cross @ bases[1]
    if whitened.shape[0] < whitened.shape[1]:
        whitened = whitened.T
    # Eigenvalues of the Gram matrix take less time than an SVD; the precision lost is far below that lost in float32 products.
    squares = linalg.eigvalsh(whitened.T @ whitened)[::-1] if whitened.size else np.zeros(0)
    return np.pad(np.sqrt(np.clip(squares, 0, 1)), (0, min(products.cross.shape) - len(squares)))


def largest_chance(rows: int, first: int, second: int) -> float:
    """Return the approximate largest canonical correlation of unrelated tables of these widths, at most 1.

    sqrt(a (1 - b)) + sqrt(b (1 - a)), a = first / (rows - 1), b = second / (rows - 1) (Wachter 1980).
    """
    a, b = (min(width / max(rows - 1, 1), 1.0) for width in (first, second))
    return 1.0 if a + b >= 1 else math.sqrt(a * (1 - b)) + math.sqrt(b * (1 - a))
