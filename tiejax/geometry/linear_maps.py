"""Linear maps between two centred tables X and Y, from their cross-products; matrices in float64."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import linalg

from tiejax.geometry.cross_products import CrossProducts

# Eigenvalues of a correlation matrix below this part of the largest are rounding errors of products in float32.
RANK_CUT = 1e-6

# The iteration converges quadratically, in about ten steps for any matrix that can be inverted: after a step that changed
# little, what is left to change is about its square.
NEWTON_STEPS = 20
NEWTON_CHANGE = 1e-5
TOLERANCE = 1e-8  # of what characterises the limit


class Maps(NamedTuple):
    """One array for each map between two tables: the map itself, or what is measured under it.

    procrustes: the orthogonal one, from the source. from_source, from_target: least squares.
    """

    procrustes: np.ndarray
    from_source: np.ndarray
    from_target: np.ndarray


def whitening(gram: Float[np.ndarray, "width width"]) -> Float[np.ndarray, "width rank"]:
    """Return L with L^T (X^T X) L = 1 from X^T X: X L is an orthonormal basis of what the columns of X span.

    X L L^T X^T is the projection onto that span, so that L L^T X^T Y are coefficients of least squares, whatever the rank.
    Columns are brought to one scale first: the rounding errors of their products are relative to their norms.
    """
    scale = np.sqrt(np.diag(gram))
    scale[scale == 0] = 1
    correlation = gram / np.outer(scale, scale)
    factor, failed = linalg.lapack.dpotrf(correlation)
    if not failed and linalg.lapack.dpocon(factor, np.abs(correlation).sum(axis=0).max())[0] > RANK_CUT:
        return linalg.solve_triangular(factor, np.eye(len(gram))) / scale[:, None]
    # The columns are dependent, or nearly so: eigenvalues say which directions are there, at many times the price.
    values, vectors = linalg.eigh(correlation, driver="evd")
    kept = values > max(RANK_CUT * values[-1], 0)
    return vectors[:, kept] / np.sqrt(values[kept]) / scale[:, None]


def least_squares_map(products: CrossProducts) -> Float[np.ndarray, "source target"]:
    """Return W = (X^T X)^+ X^T Y, which maps centred source rows to target rows with the least squared error."""
    return _least_squares(whitening(products.source_gram), products.cross)


def maps_between(
    products: CrossProducts, bases: tuple[Float[np.ndarray, "source kept"], Float[np.ndarray, "target held"]]
) -> Maps:
    """Return the orthogonal map of the source, and the maps of least squares to and fro; bases: `whitening` of both Grams."""
    source, target = bases
    return Maps(
        orthogonal_map(products.cross), _least_squares(source, products.cross), _least_squares(target, products.cross.T)
    )


def _least_squares(basis: np.ndarray, cross: np.ndarray) -> np.ndarray:
    return basis @ (basis.T @ cross)


def orthogonal_map(cross: Float[np.ndarray, "source target"]) -> Float[np.ndarray, "source target"]:
    """Return the W = U V^T of orthogonal Procrustes, where U S V^T = X^T Y is the thin SVD (Schoenemann 1966).

    It minimises |X W - Y| among orthogonal W. Square, it is the limit of Newton's iteration, at a fraction of an SVD's price;
    what that iteration gave is checked, and where it failed an SVD is computed.
    """
    try:
        nearest = _newton(cross)
        # Characterises U V^T for the limit of the iteration: it is orthogonal, and its transpose times X^T Y symmetric.
        stretch = nearest.T @ cross
        asymmetry = np.abs(stretch - stretch.T).max() / np.abs(stretch).max()
        if max(np.abs(nearest.T @ nearest - np.eye(len(cross))).max(), asymmetry) < TOLERANCE:
            return nearest
    except linalg.LinAlgError:  # not square, or singular
        pass
    left, _, right = linalg.svd(cross, full_matrices=False)
    return left @ right


def _newton(matrix: np.ndarray) -> np.ndarray:
    """Iterate Q <- (a Q + Q^-T / a) / 2 with a = (|Q^-1| / |Q|)^(1/2), of Frobenius norms (Higham 2008, chapter 8)."""
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
    """Return the inverse without a word where it is nearly singular; LinAlgError where it is singular or not square."""
    if matrix.shape[0] != matrix.shape[1]:
        raise linalg.LinAlgError("not square")
    factors, pivots, singular = linalg.lapack.dgetrf(matrix)
    if singular:
        raise linalg.LinAlgError("singular")
    return linalg.lapack.dgetri(factors, pivots, lwork=64 * len(matrix), overwrite_lu=1)[0]
