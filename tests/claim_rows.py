"""Claims as returned by `assess`, with a statement that needs escaping in HTML.

`agrees` compares the verdict of a claim with its interval.
"""

import numpy as np

CLAIM = {
    "id": "output-conditional",
    "statement": "Zero <farther> than one.",
    "family": "registered",
    "kind": "mean",
    "goal": "difference",
    "sign": 1,
    "estimand": "the relative distance, zero - one",
    "unit": "",
    "differences": [0.2, 0.3, 0.5],
    "n": 8,
    "estimate": 1 / 3,
    "interval": [0.1, 0.5],
    "interval_adjusted": [0.05, 0.55],
    "adjusted_level": 0.99,
    "p": 0.0041,
    "p_adjusted": 0.0123,
    "skewness": None,
    "margin": 0.05,
    "equivalence": {"p": 1.0, "p_adjusted": 1.0, "verdict": "undecided", "look": 8},
    "smallest_detectable": 0.12,
    "seeds_needed": 40,
    "look": 8,
    "last_look": 8,
    "verdict": "supported",
    "note": None,
    "one_arm": False,
}
EXPLORATORY = CLAIM | {
    "id": "first-look", "family": "exploratory", "verdict": "exploratory", "interval_adjusted": None, "adjusted_level": None,
    "p": None, "p_adjusted": None, "smallest_detectable": None, "seeds_needed": None, "equivalence": None,
}  # fmt: skip


def agrees(row):
    """Whether the verdict is that of the adjusted interval, or the interval says nothing (its level is that of Bonferroni)."""
    low, high = row["interval_adjusted"] or (None, None)
    low, high = -np.inf if low is None else low, np.inf if high is None else high
    decided = row["verdict"] in ("supported", "contradicted")
    supported = row["verdict"] == "supported"
    if row["goal"] == "difference":
        excludes = low > 0 or high < 0
        return not excludes or (decided and supported == (np.sign(low + high) == row["sign"]))
    margin = row["margin"]
    if row["goal"] == "equivalence":
        inside, outside = low > -margin and high < margin, low > margin or high < -margin
    else:
        inside = low > -margin if row["sign"] > 0 else high < margin
        outside = high < -margin if row["sign"] > 0 else low > margin
    return not (inside or outside) or (decided and supported == inside)
