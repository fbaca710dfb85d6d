"""Verdict on tying a checkpoint's embeddings, as sentences, from the results of a diagnosis."""

from collections.abc import Mapping
from typing import Any

from tiejax.system.memory import size_words

SOURCE = "A. Lopardo et al. 2026, arXiv:2603.26663"
ADAM_BYTES = 16  # per parameter: a float32 value, its gradient and its two moments


def number(value: float | None) -> str:
    """Format a number to three digits; a dash for None."""
    return "-" if value is None else f"{value:.3g}"


def agreement(results: Mapping[str, Any]) -> str:
    """Return one sentence on whether the flag in config.json agrees with the stored tables.

    It is the answer of `tiejax check`, or follows from the tables that the user named.
    """
    if checked := results.get("check"):
        return f"Configuration and file ({checked['says']}; {checked['stored']}): {checked['answer']}: {checked['reason']}."
    flag, fact = results["flag"]["tied"], results["fact"]
    if flag is None:
        return f"config.json does not say whether they are tied ({results['flag']['where']})."
    claim = f"config.json says {'tied' if flag else 'untied'} ({results['flag']['where']})"
    if flag == (fact != "untied"):
        return f"{claim}, which agrees with the stored tables."
    if fact == "untied":
        return f"{claim}, which is wrong: a loader that trusts it replaces the stored output table by the input table."
    if fact == "equal":
        return f"{claim}, but the two stored tables are equal: a loader that trusts the flag trains them separately."
    return f"{claim}, but no output table is stored: a loader that trusts the flag initialises a new one at random."


def verdict(results: Mapping[str, Any]) -> list[str]:
    """Return the answer to "should these embeddings be tied?", its evidence, and whether the flag agrees.

    results: the measures from `diagnose_checkpoint`.
    """
    weight = results["memory"]
    share = (
        "a share of the parameters that is unknown"
        if weight["share"] is None
        else f"{weight['share']:.1%} of the stored parameters"
    )
    size = f"{size_words(weight['bytes'])} as stored, {share}"
    training = f"{size_words(ADAM_BYTES * weight['parameters'])} in training with Adam in float32"
    if results["fact"] == "equal":
        return [
            f"They are tied: {results['tables']['output']['name']} equals {results['tables']['input']['name']} in every value.",
            f"A separate second table would take {training}; while the tables are tied, it need not be stored ({size}). What "
            "untying would change cannot be read from a tied table: both roles share one.",
            agreement(results),
        ]
    if results["fact"] == "absent":
        first = "They are tied: one table is stored, and logits are computed with the input table."
        if not results["head"]:
            first = "There is nothing to tie: this architecture predicts no tokens."
        elif results["form"]:
            first = f"There is nothing to compare: a table is stored {results['form']}, and is not read."
        elif results["head"] is None:
            first = "Whether they are tied is unknown: the architecture is not known, and no output table was named."
        elif not has_both_roles(results):
            first = "There is nothing to compare: one table is stored, and config.json does not say that it has both roles."
        return [first, f"A separate output table would add {size_words(weight['bytes'])} ({training}).", agreement(results)]
    widths = [table["shape"][1] for table in results["tables"].values()]
    if widths[0] != widths[1]:
        first = f"They cannot be tied directly: the input table is {widths[0]:,} wide, the output table {widths[1]:,}."
        return [
            first,
            *_evidence(results),
            "One table could serve both through a linear map between the two widths.",
            agreement(results),
        ]
    saves = f"Tying would save {size}; {training}. `tiejax tie` measures how far it would move the logits."
    return [_answer(results), *_evidence(results), saves, agreement(results)]


def has_both_roles(results: Mapping[str, Any]) -> bool:
    """Return whether the one table of a checkpoint is known to be the output table, too.

    By `check`, or, if tables were named, which are not checked, by config.json.
    """
    return results["check"]["answer"] == "agrees" if results.get("check") else bool(results["flag"]["tied"])


def _answer(results: Mapping[str, Any]) -> str:
    return {
        "near": "The two tables are untied, and at least as similar as the tied OLMo-1B and the output table of its twin.",
        "between": "The tables give no clear answer. They are untied, and between the two cases of OLMo-1B below.",
        "apart": "The two tables are untied, and less similar than the tied OLMo-1B and the input table of its twin.",
        "unclear": "The two tables are untied. They have too few rows to say more: unrelated tables would be as similar.",
    }[results["standing"]]


def _evidence(results: Mapping[str, Any]) -> list[str]:
    aligned, shared, published = results["alignment"], results["neighbours"], results["published"]
    scores, chance = aligned["least_squares"], aligned["chance"]
    marks = published["least_squares"], published["neighbour_overlap"]
    interval = shared["interval"]
    within = f" (95 % interval {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    lines = [
        f"The two tables share a fraction {shared['estimate']:.3f}{within} of a token's {shared['k']} nearest neighbours; "
        f"unrelated tables would share {number(shared['chance'])}. After a least-squares map, the mean cosine between the two "
        f"rows of a token is {number(scores['from_input'])} from input to output and {number(scores['from_output'])} from "
        f"output to input; about {number(chance['from_input'])} and {number(chance['from_output'])} for unrelated tables.",
        f"For comparison, the tied OLMo-1B against its untied twin ({SOURCE}): neighbours shared {marks[1]['output']:.3f} with "
        f"the untied output table and {marks[1]['input']:.3f} with the input table, least-squares cosines "
        f"{marks[0]['output']:.3f} and {marks[0]['input']:.3f}. Tables count as near when both scores reach those of the "
        "output table, and as apart when both are below those of the input table.",
    ]
    if max(chance.values()) >= marks[0]["input"]:
        lines.append(
            "There are too few tokens for this width: least squares would map even unrelated tables onto each other, so that "
            "the verdict does not use it."
        )
    return lines
