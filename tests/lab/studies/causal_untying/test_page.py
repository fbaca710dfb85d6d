"""Tables and figures of results that lack a value or an arm."""

import numpy as np

from tiejax.lab.comparison.figures import plot_course
from tiejax.lab.studies.causal_untying.figures import plot_final
from tiejax.lab.studies.causal_untying.natural import LISTS
from tiejax.lab.studies.causal_untying.page import _explored_rows, _natural_tables


def test_values_that_are_not_defined_are_dashes():
    natural = {
        "seeds": [1000, 1001],
        "pairs": [{"words": ["he", "she"], "semantic": None, "conditional": 0.5, "list": LISTS[0]}],
        "agreement": {"semantic": None, "conditional": 0.25},
        "correlation": None,
        "tables": {"tied": {"input": {LISTS[0]: None}, "output": {LISTS[0]: 0.5}}},
    }
    facts, of_pairs, distances = (rows for _, rows in _natural_tables(natural).values())
    assert [value for _, value in facts] == ["1", "1000, 1001", "1", "-", "0.250", "-"]
    assert of_pairs == [[LISTS[0], "he / she", "-", "0.500"]]
    assert distances == [["tied", "input", "-"], ["tied", "output", "0.500"]]


def test_exploratory_arms_are_compared_with_the_same_seeds():
    arms = {
        "tied": [4.0, 5.0, 6.0],
        "untie-2/3": [4.5, 5.5, 6.5],
        "explore-zero": [4.25],
        "explore-long-tied": [3.0, 4.0],
        "explore-long-early": [3.5, 4.25],
    }
    rows = _explored_rows({"arms": {arm: {"loss": losses} for arm, losses in arms.items()}})
    assert [[row[0], *row[2:]] for row in rows] == [
        ["zero", "1", "4.2500", "-0.2500", "+0.2500"],
        ["long-tied", "2", "3.5000", "-", "-"],
        ["long-early", "2", "3.8750", "-", "+0.3750"],
    ]


def ticks(losses):
    return [label.get_text() for label in plot_final(losses).figure.axes[0].get_xticklabels()]


def test_ticks_name_the_arms():
    losses = {arm: np.ones(2) for arm in ("tied", "untie-1/3", "untie-2/3", "never-independent")}
    expected = ["never,\nindependent", "1/3", "2/3", "always"]
    assert ticks(losses) == expected
    assert ticks({**losses, "never-equal": np.ones(2)}) == [expected[0], "never,\nequal", *expected[1:]]


def test_the_course_of_losses_has_the_losses_to_be_beaten():
    steps = np.arange(1, 5)
    arrays = {f"{arm}/validation_{what}": values for arm, start in (("tied", 5.0), ("never-equal", 4.5))
              for what, values in (("step", steps), ("loss", start - 0.1 * np.ones((2, 1)) * steps))}  # fmt: skip
    plot = plot_course(arrays, {"tied": "black", "never-equal": "grey"}, "tied", "nats", {}, {"bigram": 4.2})
    whole, less = plot.figure.axes
    (bound,) = [line for line in whole.lines if line.get_label() == "bigram"]
    assert set(bound.get_ydata()) == {4.2}
    assert not [line for line in less.lines if line.get_label() == "bigram"]
