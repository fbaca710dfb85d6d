"""The best rank-r approximation of one table, or of two tables that share a factor.

It is computed from a Gram matrix, or from the singular values of the rows if there are fewer rows than columns.

M is one table E [V, D], or two side by side, M = [E_in / s_in, E_out / s_out] [V, 2D]. It is approximated by A B, with r
columns in A and r rows in B. Each of two tables is divided by its Frobenius norm s, so that both have equal weight; otherwise
the table of larger norm would dominate the shared factor.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import linalg

from tiejax.checkpoints.hub.reading import steps
from tiejax.checkpoints.hub.tables import HubTable
from tiejax.geometry.table_rows import exponents

BLOCK_BYTES = 64 * 2**20  # size of a block of rows in float32
MOST_EXACT = 1024  # columns up to which products are computed in float64; beyond, in float32, which halves the time
ARRAYS = 3  # number of arrays in memory at one time, each of the size of the Gram matrix, or of all rows if they are few

NOT_FINITE = "the sum of squares is not a finite number above 0: all values are zero"

Table = HubTable | Float[np.ndarray, "rows width"]


class Spectrum(NamedTuple):
    """Eigenvalues and eigenvectors of the Gram matrix of M: as many as M has columns, or rows if these are fewer.

    values: descending, with sum 1. vectors: the eigenvectors, in columns. scales: s of each table. widths: number of columns of
    each table in M. precision: numerical error of the energies; energies closer to 1 than this count as 1.
    """

    values: Float[np.ndarray, " directions"]
    vectors: Float[np.ndarray, "all_widths directions"]
    scales: tuple[float, ...]
    widths: tuple[int, ...]
    precision: float

    @property
    def scale(self) -> float:
        """The factor moved from B to A, so that the entries of B are of order one for tables of any norm."""
        return float(np.sqrt(np.mean(np.square(self.scales))))


def spectrum(tables: Sequence[Table], weights: Float[np.ndarray, " rows"] | None = None) -> Spectrum:
    """Return the spectrum of M^T diag(w) M.

    The r eigenvectors V_r of the largest eigenvalues minimise sum_i w_i |m_i - a_i V_r^T|^2. The optimal a_i = m_i V_r does not
    depend on the weights, since every row has its own a_i. The tables have the same number of rows, V; weights: w [V] above 0,
    all equal if None. Raises ValueError if the sum of squares is not a finite number above 0.
    """
    widths = tuple(table.shape[1] for table in tables)
    few = tables[0].shape[0] < sum(widths)
    values, vectors, scales = _of_rows(tables, weights, widths) if few else _of_gram(tables, weights, widths)
    # Rounding of the products acts as a noise matrix, whose eigenvalues grow with the square root of the number of columns.
    rounding = float(np.finfo(np.float64 if few or _exact(widths) else np.float32).eps)
    precision = rounding * np.sqrt(sum(widths))
    return Spectrum(values / values.sum(), vectors, tuple(map(float, scales)), widths, float(precision))


def bytes_needed(rows: int, width: int) -> int:
    """Estimate the bytes needed for the spectrum of a table [rows, width], without the blocks of rows that are read."""
    return ARRAYS * 8 * width * min(rows, width)


def energy_kept(found: Spectrum) -> Float[np.ndarray, " directions"]:
    """Return the energy kept at ranks 1, 2, ...: 1 - |M - A B|^2 / |M|^2, the sum of the largest eigenvalues."""
    return _shares(found.values, found.precision)


def energies_by_table(found: Spectrum) -> list[Float[np.ndarray, " directions"]]:
    """Return, for each table alone, the energy kept at ranks 1, 2, ...: 1 - |E - A B|^2 / |E|^2.

    With v the table's part of an eigenvector, this is the sum of eigenvalue * |v|^2, divided by its value at full rank.
    """
    energies = []
    for part in _parts(found.widths):
        shares = found.values * np.einsum("ij,ij->j", found.vectors[part], found.vectors[part])
        energies.append(_shares(shares, found.precision))
    return energies


def _shares(parts: np.ndarray, precision: float) -> np.ndarray:
    """Return the cumulative shares of the total, set to 1 where they differ from 1 by less than `precision`."""
    sums = np.cumsum(parts)
    shares: np.ndarray = sums / sums[-1]
    return np.where(shares > 1 - precision, 1.0, shares)


def rank_for(energies: Float[np.ndarray, " ranks"], wanted: float) -> int:
    """Return the lowest rank that keeps the energy `wanted`, or the full rank if rounding errors leave none."""
    return min(int(np.searchsorted(energies, wanted)), len(energies) - 1) + 1


def maps(found: Spectrum, rank: int) -> list[Float[np.ndarray, "rank width"]]:
    """Return B [r, D] of each table, in float32: s / scale times the table's part of the eigenvectors."""
    parts = zip(found.scales, _parts(found.widths), strict=True)
    return [(s / found.scale * found.vectors[part, :rank].T).astype(np.float32) for s, part in parts]


def factor_rows(tables: Sequence[Table], found: Spectrum, rank: int) -> Iterator[Float[np.ndarray, "block rank"]]:
    """Return A [V, r] = scale * M V_r in blocks of rows, in float32."""
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
    # The transpose of a symmetric matrix has LAPACK's memory order, which saves a copy; `evr` needs the least memory.
    values, vectors = linalg.eigh(gram.T, overwrite_a=True, driver="evr", check_finite=False)
    return np.clip(values[::-1], 0, None), vectors[:, ::-1], scales


def _gram(tables: Sequence[Table], weights: np.ndarray | None, widths: Sequence[int]) -> np.ndarray:
    """Return [E_in, E_out]^T diag(w) [E_in, E_out]: products of blocks in float64 or float32, summed in float64."""
    gram = np.zeros((sum(widths), sum(widths)))
    for start, block in _blocks(tables, np.float64 if _exact(widths) else np.float32):
        if weights is not None:
            block *= np.sqrt(weights[start : start + len(block), None]).astype(block.dtype)
        power = exponents(block, axis=0)
        if power.any():
            block = np.ldexp(block, -power)
            gram += np.ldexp((block.T @ block).astype(np.float64), np.add.outer(power, power))
        else:
            gram += block.T @ block
    return gram


def _of_rows(tables: Sequence[Table], weights: np.ndarray | None, widths: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Return eigenvalues, eigenvectors and scales from the singular values of all rows at once, [rows, all_widths]."""
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
    """Return the divisor of each column, which makes the sum of all squares 1."""
    columns: np.ndarray = np.repeat(scales, widths) * np.sqrt(len(widths))
    return columns


def _blocks(tables: Sequence[Table], dtype: type[np.floating[Any]] = np.float32) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first row of each block, and a new array with the block's rows of all tables side by side."""
    rows, width = tables[0].shape[0], sum(table.shape[1] for table in tables)
    number = max(BLOCK_BYTES // (4 * width), 1)
    total = sum(table.nbytes for table in tables)
    step = steps("products of the rows", total)
    for start in range(0, rows, number):
        block = np.concatenate([table[start : start + number] for table in tables], axis=1, dtype=dtype)
        yield start, block
        step(len(block) * total // rows)


def _parts(widths: Sequence[int]) -> list[slice]:
    """Return the columns of each table in M."""
    stops = np.cumsum(widths)
    return [slice(int(stop) - width, int(stop)) for stop, width in zip(stops, widths, strict=True)]
