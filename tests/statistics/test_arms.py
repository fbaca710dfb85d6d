"""Seeds that stayed finite in all arms, and the arrays of some seeds: tiny arrays, read off by eye."""

import numpy as np

from tiejax.statistics.arms import finite_seeds, select_seeds


def test_a_seed_is_finite_where_all_arms_are_and_the_step_is_that_of_the_first_record_that_is_not():
    finite = np.ones((2, 3, 4), bool)
    finite[0, 1, 2:] = False
    finite[1, 1, 3] = False
    finite[1, 2, 0] = False  # one record alone: it is finite again later
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


def test_the_arrays_of_some_seeds():
    metrics = {
        "arms": np.array(["untied", "tied"]),
        "seeds": np.array([5, 7, 9]),
        "pairs": np.arange(6).reshape(2, 3),  # of EXor: no axis of it is the seed's
        "loss": np.arange(24).reshape(2, 3, 4),
    }
    chosen = np.array([True, False, True])
    kept = select_seeds(metrics, chosen)
    assert kept["seeds"].tolist() == [5, 9]
    assert kept["arms"].tolist() == ["untied", "tied"]
    np.testing.assert_array_equal(kept["pairs"], metrics["pairs"])
    np.testing.assert_array_equal(kept["loss"], metrics["loss"][:, [0, 2]])
    # Arrays [arm, seed] are chosen from as well where it is said that they have a seed axis.
    np.testing.assert_array_equal(select_seeds(metrics, chosen, least_axes=2)["pairs"], [[0, 2], [3, 5]])
    assert select_seeds(metrics, chosen, least_axes=2)["seeds"].tolist() == [5, 9]
