"""The best approximation of one table, or of two that share a factor, by a product of fewer columns.

From a Gram matrix, or from the singular values of the rows themselves where these are fewer than the columns.

One table E [V, D], or two side by side, M = [E_in / s_in, E_out / s_out] [V, 2D], is approximated by A B, with r columns in A
and r rows in B. Each of the two is divided by the root s of its own sum of squares, so that both count the same: the table of
larger norms would otherwise fill the factor that they share.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import linalg

from tiejax.checkpoints.hub.tables import HubTable

BLOCK_BYTES = 64 * 2**20  # of rows, as float32
MOST_EXACT = 1024  # columns whose products are summed in float64; of more they are float32, at half the time
ARRAYS = 3  # of the size of the Gram matrix, or of the few rows, that are in memory at one time

NOT_FINITE = "squares do not add up to a finite number above 0: all are zeros, or too large or small for float32"

Table = HubTable | Float[np.ndarray, "rows width"]


class Spectrum(NamedTuple):
    """Eigenvalues, the largest first and adding up to 1, and eigenvectors, in columns, of the Gram matrix of M.

    There are as many as M has columns, or rows where these are fewer. scales: s of each table; widths: its columns in M.
    precision: of the energies, which cannot be told from 1 when they are so close to it.
    """

    values: Float[np.ndarray, "directions"]
    vectors: Float[np.ndarray, "all_widths directions"]
    scales: tuple[float, ...]
    widths: tuple[int, ...]
    precision: float

    @property
    def scale(self) -> float:
        """The scale of A, in which B has entries of order one whatever the tables' norms."""
        return float(np.sqrt(np.mean(np.square(self.scales))))


def spectrum(tables: Sequence[Table], weights: Float[np.ndarray, "rows"] | None = None) -> Spectrum:
    """Return the spectrum of M^T diag(w) M.

    Its r eigenvectors V_r of the largest eigenvalues minimise sum_i w_i |m_i - a_i V_r^T|^2, where a_i = m_i V_r whatever the
    weights, since every row has its own a_i. Tables have the same number of rows, V; weights: w [V] above 0, all equal if None.
    Raises ValueError where squares do not add up to a finite number above 0.
    """
    widths = tuple(table.shape[1] for table in tables)
    few = tables[0].shape[0] < sum(widths)
    values, vectors, scales = _of_rows(tables, weights, widths) if few else _of_gram(tables, weights, widths)
    # What products round is noise: its eigenvalues, as many as there are columns, are each its size by the root of that number.
    rounding = float(np.finfo(np.float64 if few or _exact(widths) else np.float32).eps)
    precision = rounding * np.sqrt(sum(widths))
    return Spectrum(values / values.sum(), vectors, tuple(map(float, scales)), widths, float(precision))


def bytes_needed(rows: int, width: int) -> int:
    """Return about how much memory the spectrum of so many rows and columns takes, beside the blocks that are read."""
    return ARRAYS * 8 * width * min(rows, width)


def energy_kept(found: Spectrum) -> Float[np.ndarray, "directions"]:
    """Return the energy that every rank from 1 keeps: 1 - |M - A B|^2 / |M|^2, the sum of the largest eigenvalues."""
    return _shares(found.values, found.precision)


def energies_by_table(found: Spectrum) -> list[Float[np.ndarray, "directions"]]:
    """Return the energy that every rank from 1 keeps of each table alone, 1 - |E - A B|^2 / |E|^2.

    With v the table's part of an eigenvector, this is the sum of eigenvalue x |v|^2 over its sum at full rank.
    """
    energies = []
    for part in _parts(found.widths):
        shares = found.values * np.einsum("ij,ij->j", found.vectors[part], found.vectors[part])
        energies.append(_shares(shares, found.precision))
    return energies


def _shares(parts: np.ndarray, precision: float) -> np.ndarray:
    """Return which share of the whole the first one, the first two, ... are, and 1 for those that cannot be told from it."""
    sums = np.cumsum(parts)
    shares: np.ndarray = sums / sums[-1]
    return np.where(shares > 1 - precision, 1.0, shares)


def rank_for(energies: Float[np.ndarray, "ranks"], wanted: float) -> int:
    """Return the lowest rank that keeps this energy, the full one where rounding leaves none."""
    return min(int(np.searchsorted(energies, wanted)), len(energies) - 1) + 1


def maps(found: Spectrum, rank: int) -> list[Float[np.ndarray, "rank width"]]:
    """Return B of each table, [r, D], in float32: s / scale times its part of the eigenvectors."""
    parts = zip(found.scales, _parts(found.widths), strict=True)
    return [(s / found.scale * found.vectors[part, :rank].T).astype(np.float32) for s, part in parts]


def factor_rows(tables: Sequence[Table], found: Spectrum, rank: int) -> Iterator[Float[np.ndarray, "block rank"]]:
    """Return A [V, r], in float32 and block by block: scale x M V_r."""
    by_column = found.scale / np.repeat(found.scales, found.widths)
    basis = (by_column[:, None] * found.vectors[:, :rank]).astype(np.float32)
    return (block @ basis for _, block in _blocks(tables))


def _of_gram(tables: Sequence[Table], weights: np.ndarray | None, widths: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Return eigenvalues, eigenvectors and scales from the Gram matrix, [all_widths, all_widths]."""
    gram = _gram(tables, weights, widths)
    scales = _scales([float(np.trace(gram[part, part])) for part in _parts(widths)])
    by_column = _by_column(scales, widths)
    gram /= by_column[:, None]
    gram /= by_column
    if not np.isfinite(gram).all():
        raise ValueError(NOT_FINITE)
    # The transpose of a symmetric matrix is in LAPACK's order, so that nothing is copied; `evr` needs the least memory.
    values, vectors = linalg.eigh(gram.T, overwrite_a=True, driver="evr", check_finite=False)
    return np.clip(values[::-1], 0, None), vectors[:, ::-1], scales


def _gram(tables: Sequence[Table], weights: np.ndarray | None, widths: Sequence[int]) -> np.ndarray:
    """Return [E_in, E_out]^T diag(w) [E_in, E_out]: sums over blocks of rows in float64, of products in float64 or float32."""
    gram = np.zeros((sum(widths), sum(widths)))
    for start, block in _blocks(tables, np.float64 if _exact(widths) else np.float32):
        if weights is not None:
            block *= np.sqrt(weights[start : start + len(block), None]).astype(block.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            gram += block.T @ block
    return gram


def _of_rows(tables: Sequence[Table], weights: np.ndarray | None, widths: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Return the same from the singular values of all rows at once, [rows, all_widths], where these are few."""
    m = np.concatenate([block for _, block in _blocks(tables, np.float64)])
    if weights is not None:
        m *= np.sqrt(weights)[:, None]
    scales = _scales([float(np.vdot(m[:, part], m[:, part])) for part in _parts(widths)])
    m /= _by_column(scales, widths)
    _, singular, vectors = linalg.svd(m, full_matrices=False, overwrite_a=True, check_finite=False)
    return singular**2, vectors.T, scales


def _exact(widths: Sequence[int]) -> bool:
    return sum(widths) <= MOST_EXACT


def _scales(squares: Sequence[float]) -> np.ndarray:
    if not all(0 < square < np.inf for square in squares):
        raise ValueError(NOT_FINITE)
    return np.sqrt(squares)


def _by_column(scales: np.ndarray, widths: Sequence[int]) -> np.ndarray:
    """Return the number by which every column is divided, so that all squares add up to 1."""
    columns: np.ndarray = np.repeat(scales, widths) * np.sqrt(len(widths))
    return columns


def _blocks(tables: Sequence[Table], dtype: type[np.floating[Any]] = np.float32) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first row of each block, and the block's rows of all tables side by side, which may be written to."""
    rows, width = tables[0].shape[0], sum(table.shape[1] for table in tables)
    step = max(BLOCK_BYTES // (4 * width), 1)
    for start in range(0, rows, step):
        yield start, np.concatenate([table[start : start + step] for table in tables], axis=1, dtype=dtype)


def _parts(widths: Sequence[int]) -> list[slice]:
    """Return the columns that each table has in M."""
    stops = np.cumsum(widths)
    return [slice(int(stop) - width, int(stop)) for stop, width in zip(stops, widths, strict=True)]
