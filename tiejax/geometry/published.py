"""Published similarities between the table of a tied model and those of its untied counterpart, as reference values.

Source: A. Lopardo et al. 2026, arXiv:2603.26663.
"""

from collections.abc import Mapping

# OLMo-1B: similarity of the untied model's output and input tables to the tied model's table.
OLMO_1B = {
    "least_squares": {"output": 0.719, "input": 0.525},
    "neighbour_overlap": {"output": 0.733, "input": 0.496},
}


def standing(
    least_squares: float | None,
    overlap: float,
    least_squares_marks: Mapping[str, float],
    overlap_marks: Mapping[str, float],
    chance: float,
) -> str:
    """Classify the similarity of two tables by published values (marks): `near`, `between` or `apart`.

    near: both scores reach the upper mark (of a tied table and the output table of its untied counterpart). apart: both are
    below the lower mark (of the input table). between: anything else. The least-squares score is ignored if its chance level
    reaches the lower mark, since any two tables would pass it.
    """
    upper, lower = [overlap >= overlap_marks["output"]], [overlap < overlap_marks["input"]]
    if least_squares is not None and chance < least_squares_marks["input"]:
        upper.append(least_squares >= least_squares_marks["output"])
        lower.append(least_squares < least_squares_marks["input"])
    return "near" if all(upper) else "apart" if all(lower) else "between"
