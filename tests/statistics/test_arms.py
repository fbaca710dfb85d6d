"""Seeds that stayed finite in all arms, and selection of seeds, on tiny arrays."""

import numpy as np

from tiejax.statistics.arms import finite_seeds, select_seeds


def test_seeds_are_finite_if_all_arms_are_and_the_first_non_finite_step_is_reported():
    finite = np.ones((2, 3, 4), bool)
    finite[0, 1, 2:] = False
    finite[1, 1, 3] = False
    finite[1, 2, 0] = False  # only one record; later ones are finite
    metrics = {
        "arms": np.array(["untied", "tied"]),
        "seeds": np.array([5, 7, 9]),
        "step": np.array([0, 10, 20, 25]),
        "finite": finite,
    }
    lasting, facts = finite_seeds(metrics)
    assert lasting.tolist() == [True, False, False]
    assert facts == {
        "seeds": [5],
        "excluded_seeds": [7, 9],
        "non_finite": [
            {"arm": "untied", "seed": 7, "step": 20},
            {"arm": "tied", "seed": 7, "step": 25},
            {"arm": "tied", "seed": 9, "step": 0},
        ],
    }


def test_select_seeds():
    metrics = {
        "arms": np.array(["untied", "tied"]),
        "seeds": np.array([5, 7, 9]),
        "pairs": np.arange(6).reshape(2, 3),  # as in EXor: no axis is the seed axis
        "loss": np.arange(24).reshape(2, 3, 4),
    }
    chosen = np.array([True, False, True])
    selected = select_seeds(metrics, chosen)
    assert selected["seeds"].tolist() == [5, 9]
    assert selected["arms"].tolist() == ["untied", "tied"]
    np.testing.assert_array_equal(selected["pairs"], metrics["pairs"])
    np.testing.assert_array_equal(selected["loss"], metrics["loss"][:, [0, 2]])
    # With least_axes=2, arrays [arm, seed] have a seed axis too.
    np.testing.assert_array_equal(select_seeds(metrics, chosen, least_axes=2)["pairs"], [[0, 2], [3, 5]])
    assert select_seeds(metrics, chosen, least_axes=2)["seeds"].tolist() == [5, 9]
