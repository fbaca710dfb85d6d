"""The best approximation of one table, or of two that share a factor, by a product of fewer columns: from a Gram matrix.

One table E [V, D], or two side by side, M = [E_in / s_in, E_out / s_out] [V, 2D], is approximated by A B, with r columns in A
and r rows in B. Each of the two is divided by the root s of its own sum of squares, so that both count the same: the table of
larger norms would otherwise fill the factor that they share.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import linalg

from tiejax.hub.tables import HubTable

BLOCK_BYTES = 64 * 2**20  # of rows, as float32

Table = HubTable | Float[np.ndarray, "rows width"]


class Spectrum(NamedTuple):
    """Eigenvalues, the largest first and adding up to 1, and eigenvectors, in columns, of the Gram matrix of M.

    scales: s of each table; widths: its columns in M.
    """

    values: Float[np.ndarray, "all_widths"]
    vectors: Float[np.ndarray, "all_widths all_widths"]
    scales: tuple[float, ...]
    widths: tuple[int, ...]

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
    gram = _gram(tables, weights)
    widths = tuple(table.shape[1] for table in tables)
    parts = _parts(widths)
    squares = [float(np.trace(gram[part, part])) for part in parts]
    if not all(0 < square < np.inf for square in squares) or not np.isfinite(gram).all():
        raise ValueError("squares do not add up to a finite number above 0: all are zeros, or too large or small for float32")
    scales = np.sqrt(squares)
    by_column = np.repeat(scales, widths) * np.sqrt(len(tables))
    gram /= by_column[:, None]
    gram /= by_column
    # The transpose of a symmetric matrix is in LAPACK's order, so that nothing is copied; `evr` needs the least memory.
    values, vectors = linalg.eigh(gram.T, overwrite_a=True, driver="evr", check_finite=False)
    values = np.clip(values[::-1], 0, None)
    return Spectrum(values / values.sum(), vectors[:, ::-1], tuple(map(float, scales)), widths)


def energy_kept(found: Spectrum) -> Float[np.ndarray, "all_widths"]:
    """Return the energy that every rank from 1 keeps: 1 - |M - A B|^2 / |M|^2, the sum of the largest eigenvalues."""
    return np.minimum(np.cumsum(found.values), 1.0)


def energies_of_tables(found: Spectrum) -> list[Float[np.ndarray, "all_widths"]]:
    """Return the energy that every rank from 1 keeps of each table alone, 1 - |E - A B|^2 / |E|^2.

    With v the table's part of an eigenvector, this is the sum of eigenvalue x |v|^2 over its sum at full rank.
    """
    energies = []
    for part in _parts(found.widths):
        shares = found.values * np.einsum("ij,ij->j", found.vectors[part], found.vectors[part])
        energies.append(np.minimum(np.cumsum(shares) / shares.sum(), 1.0))
    return energies


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


def _gram(tables: Sequence[Table], weights: np.ndarray | None) -> np.ndarray:
    """Return [E_in, E_out]^T diag(w) [E_in, E_out]: float32 products within a block of rows, float64 sums over blocks."""
    width = sum(table.shape[1] for table in tables)
    gram = np.zeros((width, width))
    for start, block in _blocks(tables):
        if weights is not None:
            block *= np.sqrt(weights[start : start + len(block), None]).astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            gram += block.T @ block
    return gram


def _blocks(tables: Sequence[Table]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first row of each block, and the block's rows of all tables side by side, which may be written to."""
    rows, width = tables[0].shape[0], sum(table.shape[1] for table in tables)
    step = max(BLOCK_BYTES // (4 * width), 1)
    for start in range(0, rows, step):
        yield start, np.concatenate([table[start : start + step] for table in tables], axis=1, dtype=np.float32)


def _parts(widths: Sequence[int]) -> list[slice]:
    """Return the columns that each table has in M."""
    stops = np.cumsum(widths)
    return [slice(int(stop) - width, int(stop)) for stop, width in zip(stops, widths, strict=True)]
