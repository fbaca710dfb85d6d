"""Seeds that stayed finite in all arms, and selection of seeds, on tiny arrays."""

import numpy as np

from tiejax.statistics.arms import diverged_members, finite_seeds, replace_diverged, replace_undefined, select_seeds


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


def test_diverged_members_keep_their_seeds():
    finite = np.ones((2, 3, 4), bool)
    finite[1, 2, 1:] = False
    metrics = {
        "arms": np.array(["untied", "tied"]),
        "seeds": np.array([5, 7, 9]),
        "step": np.array([0, 10, 20, 25]),
        "finite": finite,
    }
    diverged, facts = diverged_members(metrics)
    assert np.argwhere(diverged).tolist() == [[1, 2]]
    assert (facts["seeds"], facts["excluded_seeds"]) == ([5, 7, 9], [9])
    assert facts["non_finite"] == [{"arm": "tied", "seed": 9, "step": 10}]


def test_diverged_members_have_the_worst_value_of_all():
    values = np.array([[1.0, 5.0, np.nan], [np.inf, 2.0, 3.0]])
    diverged = np.array([[False, False, True], [True, False, False]])
    assert replace_diverged(values, diverged, "high").tolist() == [[1, 5, 5], [5, 2, 3]]
    assert replace_diverged(values, diverged, "low").tolist() == [[1, 5, 1], [1, 2, 3]]
    # Hence a diverged member is never better than the other arm of its seed.
    replaced = replace_diverged(values, diverged, "high")
    assert (replaced[0, 2] >= replaced[1, 2]) & (replaced[1, 0] >= replaced[0, 0])
    assert np.isnan(replace_diverged(values, np.ones((2, 3), bool), "high")).all()


def test_undefined_differences_count_against_the_claim():
    differences = np.array([0.5, np.nan, -2.0, 1.0])
    assert replace_undefined(differences, 1).tolist() == [0.5, -2, -2, 1]
    assert replace_undefined(differences, -1).tolist() == [0.5, 1, -2, 1]
    assert replace_undefined(np.array([0.5, -np.inf, 2.0]), 1).tolist() == [0.5, 0.5, 2]
    assert np.isnan(replace_undefined(np.array([np.nan, np.nan]), 1)).all()
