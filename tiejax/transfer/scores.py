"""Scores of a task from confusion matrices."""

import numpy as np
from jaxtyping import Float, Int


def accuracy(confusion: Int[np.ndarray, "*members labels labels"]) -> Float[np.ndarray, "*members"]:
    """Return the share of correct predictions, trace / sum. confusion: label (first axis) x prediction (second)."""
    counts = np.asarray(confusion, float)
    right: np.ndarray = np.trace(counts, axis1=-2, axis2=-1)
    return np.asarray(right / counts.sum((-2, -1)))


def macro_f1(confusion: Int[np.ndarray, "*members labels labels"]) -> Float[np.ndarray, "*members"]:
    """Return the mean F1 over the labels that occur: F1_l = 2 correct_l / (occurrences_l + predicted_l)."""
    counts = np.asarray(confusion, float)
    right: np.ndarray = np.diagonal(counts, axis1=-2, axis2=-1)
    asked, predicted = counts.sum(-1), counts.sum(-2)
    f1 = np.where(asked > 0, 2 * right / np.maximum(asked + predicted, 1), np.nan)
    return np.asarray(np.nanmean(f1, axis=-1))
