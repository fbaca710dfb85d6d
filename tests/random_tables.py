"""Embedding tables for tests, and slow loops as oracles."""

import math

import numpy as np
from scipy import linalg

from tiejax.geometry.cross_products import cross_products
from tiejax.geometry.linear_maps import correlations_of, whitening


def gaussian(rows, width, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def rotation(width, seed=9):
    return linalg.qr(gaussian(width, width, seed).astype(float))[0]


def centred(table):
    table = np.asarray(table, float)
    return table - table.mean(0)


def mean_cosine(mapped, target):
    """Return the mean cosine by a loop over tokens, without tokens that have a zero row."""
    pairs = [(x, y) for x, y in zip(mapped, target, strict=True) if x.any() and y.any()]
    return np.mean([x @ y / math.sqrt(x @ x) / math.sqrt(y @ y) for x, y in pairs])


def canonical_correlations(first, second):
    """Return the canonical correlations of two tables, in descending order."""
    products = cross_products(first, second)
    return correlations_of(products, (whitening(products.source_gram), whitening(products.target_gram)))


class Reader:
    """A table that is not an array: it returns rows in a given dtype and records the largest number of rows requested."""

    def __init__(self, table, dtype=np.float32):
        self.stored = table.astype(dtype)
        self.shape = table.shape
        self.largest = 0

    def __getitem__(self, rows):
        found = self.stored[rows]
        self.largest = max(self.largest, len(found))
        return found


def shares_by_loop(first, second, k):
    """Return the share of common neighbours of every row, by sorting all cosines: larger first, then lower row numbers."""

    def neighbours(table, i):
        norms = [math.sqrt(row @ row) for row in table]
        if norms[i] == 0:
            return set()
        cosines = [(-(table[i] @ table[j]) / norms[i] / norms[j], j) for j in range(len(table)) if j != i and norms[j]]
        return {j for _, j in sorted(cosines)[:k]}

    first, second = np.asarray(first, float), np.asarray(second, float)
    return np.array([len(neighbours(first, i) & neighbours(second, i)) / k for i in range(len(first))])


def sampled(rows, number, seed=0):
    return np.random.default_rng(seed).choice(rows, number, replace=False)
