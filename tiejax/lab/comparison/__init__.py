"""Comparisons of ways to tie a model: arms, training, learning rates, claims and report."""
