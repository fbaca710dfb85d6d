"""Claims as returned by `assess`, with a statement that needs escaping in HTML; one as written by earlier versions."""

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
    "margin": 0.05,
    "smallest_detectable": 0.12,
    "seeds_needed": 40,
    "look": 8,
    "verdict": "supported",
    "note": None,
}
EXPLORATORY = CLAIM | {
    "id": "first-look", "family": "exploratory", "verdict": "exploratory", "interval_adjusted": None, "adjusted_level": None,
    "p": None, "p_adjusted": None, "smallest_detectable": None, "seeds_needed": None,
}  # fmt: skip
EARLIER = {
    "id": "output-conditional",
    "statement": "Zero <farther> than one.",
    "statistic": "relative distance",
    "estimate": 1 / 3,
    "interval": [0.1, 0.5],
    "p": 0.0041,
    "p_adjusted": 0.0123,
    "effect_size": 0.778,
    "n": 8,
    "verdict": "supported",
}
