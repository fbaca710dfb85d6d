"""Linear maps between two centred tables X and Y, from their cross-products; matrices in float64."""

import numpy as np
from jaxtyping import Float
from scipy import linalg

from tiejax.geometry.cross_products import CrossProducts

# Eigenvalues of a correlation matrix below this part of the largest are rounding errors of products in float32.
RANK_CUT = 1e-6

# The iteration converges quadratically, in about ten steps for any matrix that can be inverted.
NEWTON_STEPS = 20
NEWTON_TOLERANCE = 1e-8


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
    basis = whitening(products.source_gram)
    return basis @ (basis.T @ products.cross)


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
        if max(np.abs(nearest.T @ nearest - np.eye(len(cross))).max(), asymmetry) < NEWTON_TOLERANCE:
            return nearest
    except linalg.LinAlgError:  # not square, or singular
        pass
    left, _, right = linalg.svd(cross, full_matrices=False)
    return left @ right


def _newton(matrix: np.ndarray) -> np.ndarray:
    """Iterate Q <- (a Q + Q^-T / a) / 2 with a = (|Q^-1|_1 |Q^-1|_inf / |Q|_1 |Q|_inf)^(1/4) (Higham 2008, chapter 8)."""
    q = matrix
    for _ in range(NEWTON_STEPS):
        inverse = np.linalg.inv(q).T
        sizes = [np.linalg.norm(part, 1) * np.linalg.norm(part, np.inf) for part in (inverse, q)]
        scale = (sizes[0] / sizes[1]) ** 0.25
        before, q = q, (scale * q + inverse / scale) / 2
        if np.linalg.norm(q - before) < NEWTON_TOLERANCE * np.linalg.norm(q):
            break
    return q
