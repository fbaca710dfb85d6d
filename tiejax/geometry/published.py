"""Published scores of a tied table against its untied twin's, and how near two tables come to them.

Source: A. Lopardo et al. 2026, arXiv:2603.26663.
"""

from collections.abc import Mapping

# OLMo-1B: how well the untied model's output and input tables give the tied model's table.
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
    """Say how near two tables are beside published marks: `near`, `between` or `apart`.

    near: both scores at least at the upper mark (a tied table against the output table of its untied twin). apart: both
    below the lower mark (against the input table). between: anything else. The least-squares score is left out of the
    judgement where its chance level reaches the lower mark, so that any two tables would pass.
    """
    upper, lower = [overlap >= overlap_marks["output"]], [overlap < overlap_marks["input"]]
    if least_squares is not None and chance < least_squares_marks["input"]:
        upper.append(least_squares >= least_squares_marks["output"])
        lower.append(least_squares < least_squares_marks["input"])
    return "near" if all(upper) else "apart" if all(lower) else "between"
