"""Gradients of the two uses of a table, against numpy formulae."""

import jax.numpy as jnp
import numpy as np
import pytest

from tiejax.geometry import uses


def test_norms_ratio_and_cosine_by_bucket(x64):
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 6, 3))
    bucket = np.array([0, 2, 2, 0, 1, 2])
    found = uses.use_gradients(jnp.asarray(first), jnp.asarray(second), bucket, 3)
    rows = {"": np.ones(6, bool)} | {f"{number}": bucket == number for number in range(3)}
    for name, chosen in rows.items():
        a, b = first[chosen].ravel(), second[chosen].ravel()
        norms = np.linalg.norm(a), np.linalg.norm(b)
        expected = {"input": norms[0], "output": norms[1], "ratio": norms[1] / norms[0], "cosine": a @ b / norms[0] / norms[1]}
        for measure, value in expected.items():
            own = found[measure] if not name else found[f"bucket_{measure}"][int(name)]
            np.testing.assert_allclose(own, value, rtol=1e-12)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_of_many_rows_in_half_precision(dtype):
    first = jnp.asarray(np.random.default_rng(0).normal(size=(50_000, 4)), dtype)
    found = uses.use_gradients(first, first / 2, np.zeros(50_000, int), 1)
    np.testing.assert_allclose(found["input"], np.linalg.norm(np.asarray(first, float)), rtol=1e-4)
    np.testing.assert_allclose([found["ratio"], found["cosine"]], [0.5, 1], rtol=1e-3)


def test_windows_of_steps_are_as_published():
    steps = np.array([0, 5, 50, 60, 2_000, 20_000])
    ratio = np.array([[[9.0, 2, 3, 5, 1, 4]], [[9.0, 4, 6, 10, 2, 8]]])
    rows = uses.over_training(steps, ratio, ratio / 100, ("untied", "tied"))
    assert [(row["from"], row["to"], row["published"]) for row in rows] == [
        (0, 1, None),
        (1, 10, 7.4),
        (10, 100, 10.0),
        (1_000, 10_000, 1.7),
        (10_000, None, None),
    ]
    assert [row["tied"]["ratio"] for row in rows] == [9, 4, 8, 2, 8]
    assert rows[2]["untied"] == {"ratio": 4.0, "share": 0.8, "cosine": 0.04}
