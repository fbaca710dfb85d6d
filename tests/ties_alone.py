"""Ties with jax and numpy only; run as a script by test_wheel.py and, with the oldest jax, by .github/workflows/ci.yml.

Prints the number of installed packages.
"""

import importlib.metadata

import jax
import numpy as np

from tiejax import Tie, assert_tied, find_ties, retie, store, untie, view


class sgd:  # an optimizer without state, in the form of optax
    init = staticmethod(lambda params: ())
    update = staticmethod(lambda grads, state, params=None: (grads, state))


params = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((3, 2), np.float32)}
ties = [Tie("a", "b", transform="transpose")]
stored = store(params, ties)
assert stored["b"] is None
assert jax.grad(lambda stored: view(stored, ties)["b"].sum() + stored["a"].sum())(stored)["a"].tolist() == [[2.0] * 3] * 2
untied, state = untie(sgd, stored, (), ties)
assert untied["b"].tolist() == [[0, 3], [1, 4], [2, 5]]
assert [(tie.source, tie.target) for tie in find_ties(untied)] == [("a", "b")]
assert_tied(untied, ties)
tied, state = retie(sgd, untied, state, ties)
assert tied["b"] is None
print(len([one for one in importlib.metadata.distributions() if one.name not in ("pip", "setuptools")]))
