"""A claim as returned by `assess`, with a statement that needs escaping in HTML."""

CLAIM = {
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
