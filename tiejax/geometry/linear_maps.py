"""Linear maps between two centred tables X and Y, and their canonical correlations, from their cross-products in float64.

Canonical correlations say how well each direction of one table can be predicted linearly from the other. Source: H. Hotelling
1936; for embedding tables, A. Lopardo et al. 2026, arXiv:2603.26663.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import linalg

from tiejax.geometry.cross_products import CrossProducts

# Eigenvalues of a correlation matrix below this fraction of the largest are rounding errors of float32 products.
RANK_CUT = 1e-6

# The iteration converges quadratically, in about ten steps for any invertible matrix: after a small change, the remaining error
# is about its square.
NEWTON_STEPS = 20
NEWTON_CHANGE = 1e-5
TOLERANCE = 1e-8  # for the conditions that characterise the limit


class Maps(NamedTuple):
    """One array for each map between two tables: the map itself, or a measurement under it.

    procrustes: the orthogonal map from the source. from_source, from_target: the least-squares maps.
    """

    procrustes: np.ndarray
    from_source: np.ndarray
    from_target: np.ndarray


def whitening(gram: Float[np.ndarray, "width width"]) -> Float[np.ndarray, "width rank"]:
    """Return L with L^T (X^T X) L = 1, given X^T X: the columns of X L are an orthonormal basis of the column space of X.

    X L L^T X^T is the projection onto that space, so L L^T X^T Y are the least-squares coefficients for any rank. Columns are
    normalised first, because the rounding errors of their products are relative to their norms.
    """
    scale = np.sqrt(np.diag(gram))
    scale[scale == 0] = 1
    correlation = gram / np.outer(scale, scale)
    factor, failed = linalg.lapack.dpotrf(correlation)
    if not failed and linalg.lapack.dpocon(factor, np.abs(correlation).sum(axis=0).max())[0] > RANK_CUT:
        return linalg.solve_triangular(factor, np.eye(len(gram))) / scale[:, None]
    # The columns are linearly dependent, or nearly so: an eigendecomposition finds the rank, at many times the cost.
    values, vectors = linalg.eigh(correlation, driver="evd")
    used = values > max(RANK_CUT * values[-1], 0)
    return vectors[:, used] / np.sqrt(values[used]) / scale[:, None]


def maps_between(
    products: CrossProducts, bases: tuple[Float[np.ndarray, "source source_rank"], Float[np.ndarray, "target target_rank"]]
) -> Maps:
    """Return the orthogonal map, and the least-squares maps in both directions; bases: `whitening` of both Gram matrices."""
    source, target = bases
    cross = products.cross
    return Maps(orthogonal_map(cross), source @ (source.T @ cross), target @ (target.T @ cross.T))


def orthogonal_map(cross: Float[np.ndarray, "source target"]) -> Float[np.ndarray, "source target"]:
    """Return W = U V^T, the solution of orthogonal Procrustes, where U S V^T = X^T Y is the thin SVD (Schoenemann 1966).

    It minimises |X W - Y| among orthogonal W. A square W is computed by Newton's iteration, at a fraction of the cost of an
    SVD. Its result is checked, and an SVD is computed if the check fails.
    """
    try:
        nearest = _newton(cross)
        # Two conditions characterise U V^T: it is orthogonal, and its transpose times X^T Y is symmetric.
        stretch = nearest.T @ cross
        asymmetry = np.abs(stretch - stretch.T).max() / np.abs(stretch).max()
        if max(np.abs(nearest.T @ nearest - np.eye(len(cross))).max(), asymmetry) < TOLERANCE:
            return nearest
    except linalg.LinAlgError:  # not square, or singular
        pass
    left, _, right = linalg.svd(cross, full_matrices=False)
    return left @ right


def _newton(matrix: np.ndarray) -> np.ndarray:
    """Iterate Q <- (a Q + Q^-T / a) / 2 with a = (|Q^-1| / |Q|)^(1/2) in Frobenius norms (Higham 2008, chapter 8)."""
    q = matrix.copy()
    for _ in range(NEWTON_STEPS):
        inverse = _inverse(q).T
        scale = math.sqrt(np.linalg.norm(inverse) / np.linalg.norm(q))
        before, q = q, (scale * q + inverse / scale) / 2
        before -= q
        if np.linalg.norm(before) < NEWTON_CHANGE:
            break
    return q


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """Return the inverse, without a warning if the matrix is nearly singular; raises LinAlgError if singular or not square."""
    if matrix.shape[0] != matrix.shape[1]:
        raise linalg.LinAlgError("not square")
    factors, pivots, singular = linalg.lapack.dgetrf(matrix)
    if singular:
        raise linalg.LinAlgError("singular")
    return linalg.lapack.dgetri(factors, pivots, lwork=64 * len(matrix), overwrite_lu=1)[0]


def correlations_of(
    products: CrossProducts, bases: tuple[Float[np.ndarray, "source source_rank"], Float[np.ndarray, "target target_rank"]]
) -> Float[np.ndarray, " min_width"]:
    """Return the canonical correlations of two tables, in descending order, in [0, 1].

    bases: `whitening` of both Gram matrices. The correlations are the singular values of (X^T X)^(-1/2) X^T Y (Y^T Y)^(-1/2),
    as many as the width of the narrower table. Directions in which a table has no variance have correlation 0. If a table has
    at least as many columns as rows, all others are usually 1, whatever the tables.
    """
    whitened = bases[0].T @ products.cross @ bases[1]
    if whitened.shape[0] < whitened.shape[1]:
        whitened = whitened.T
    # Eigenvalues of the Gram matrix take less time than an SVD; the precision lost is far below that lost in float32 products.
    squares = linalg.eigvalsh(whitened.T @ whitened)[::-1] if whitened.size else np.zeros(0)
    return np.pad(np.sqrt(np.clip(squares, 0, 1)), (0, min(products.cross.shape) - len(squares)))
