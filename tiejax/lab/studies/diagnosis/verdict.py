"""Whether embeddings should be tied, in plain words, from the body of results.json: of a checkpoint, and of a run of ours."""

from collections.abc import Mapping
from typing import Any

from tiejax.lab.reporting.words import number

SOURCE = "A. Lopardo et al. 2026, arXiv:2603.26663"
ADAM_BYTES = 16  # a float32 value, its gradient and its two moments


def memory(count: int) -> str:
    """Write a number of bytes as 1.50 GiB, 12.3 MiB or 640 B."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


# Sets of pairs that part, by the case of the distributional hypothesis that they fall under.
FAILS = {
    "fails: same meaning": "mean the same and are not used alike, so that one table for both roles is asked to hold them "
    "together and apart",
    "fails: same use": "are used alike and do not mean the same",
}
# Models that solve EXor tell spellings of different bits apart with a residual below this, others exceed it by far.
ACROSS, LEARNT = "a 0 and a 1", 2.0


def agreement(results: Mapping[str, Any]) -> str:
    """Say in one sentence whether the flag of config.json agrees with what is stored."""
    flag, fact = results["flag"]["tied"], results["fact"]
    if flag is None:
        return f"config.json does not say whether they are tied ({results['flag']['where']})."
    said = f"config.json says {'tied' if flag else 'untied'} ({results['flag']['where']})"
    if results["quantised"]:
        return f"{said}; an output table is stored quantised" + (
            ", which a loader that trusts the flag drops." if flag else ", as it should be."
        )
    if flag == (fact != "untied"):
        return f"{said}, and so it is."
    if fact == "untied":
        return f"{said}, which is not so: a loader that trusts it replaces the stored output table by the input table."
    if fact == "equal":
        return f"{said}, but the two stored tables are equal: a loader that trusts it trains them apart."
    return f"{said}, but no output table is stored: a loader that trusts it makes one from nothing."


def of_checkpoint(results: Mapping[str, Any]) -> list[str]:
    """Return the answer to "should these embeddings be tied?", what it rests on, and whether the flag agrees."""
    weight = results["memory"]
    size = f"{memory(weight['bytes'])} as stored, {weight['share']:.1%} of the stored parameters"
    training = f"{memory(ADAM_BYTES * weight['parameters'])} in training with Adam in float32"
    if results["fact"] == "equal":
        return [
            f"They are tied in fact: {results['tables']['output']['name']} equals {results['tables']['input']['name']} value "
            "by value.",
            f"Untied, the second table would take {training}, and tied it need not be stored ({size}). What untying would "
            "change cannot be read from a tied table: its two roles are one.",
            agreement(results),
        ]
    if results["fact"] == "absent":
        first = "They are tied: one table is stored, so that logits come from the input table."
        if not results["head"]:
            first = "There is nothing to tie: this architecture has no output over tokens."
        elif results["quantised"]:
            first = "There is nothing to compare: the output table is stored quantised, which is not read."
        elif results["flag"]["tied"] is False:
            first = "There is nothing to compare: no output table is stored, though there should be one."
        return [first, f"An output table of its own would add {memory(weight['bytes'])} ({training}).", agreement(results)]
    widths = [table["shape"][1] for table in results["tables"].values()]
    if widths[0] != widths[1]:
        first = f"They cannot be tied as they are: the input table is {widths[0]:,} wide, the output table {widths[1]:,}."
        return [
            first,
            *_grounds(results),
            "One table could serve both through a linear map between the two.",
            agreement(results),
        ]
    saves = f"Tying would save {size}; {training}. `tiejax tie` says how far it would move the logits."
    return [_answer(results), *_grounds(results), saves, agreement(results)]


def _answer(results: Mapping[str, Any]) -> str:
    return {
        "near": "Tying looks cheap here. The two tables are untied, yet hold much the same geometry.",
        "between": "The tables give no clear answer. They are untied, and share a part of their geometry.",
        "apart": "Tying may cost here. The two tables are untied, and have gone different ways.",
    }[results["standing"]]


def _grounds(results: Mapping[str, Any]) -> list[str]:
    aligned, shared, published = results["alignment"], results["neighbours"], results["published"]
    scores, chance = aligned["least_squares"], aligned["chance"]
    marks = published["least_squares"], published["neighbour_overlap"]
    interval = shared["interval"]
    within = f" (95 % interval {interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    lines = [
        f"Of a token's {shared['k']} nearest neighbours the two tables share {shared['estimate']:.3f}{within}, by chance "
        f"{number(shared['chance'])}. Mapped by least squares, a token's row points where its other row does with a mean "
        f"cosine of {number(scores['from_input'])} from input to output and {number(scores['from_output'])} back, by chance "
        f"about {number(chance['from_input'])} and {number(chance['from_output'])}.",
        f"For comparison, OLMo-1B tied against its untied twin: neighbours {marks[1]['output']:.3f} shared with the untied "
        f"output table and {marks[1]['input']:.3f} with the input table, least squares {marks[0]['output']:.3f} and "
        f"{marks[0]['input']:.3f} ({SOURCE}). Near: at or above the output table's figures in both scores; apart: "
        "below the input table's in both.",
    ]
    if max(chance.values()) >= marks[0]["input"]:
        lines.append(
            "There are too few tokens for the width: least squares would map unrelated tables as well, and is left out of "
            "the judgement."
        )
    return lines


def of_run(results: Mapping[str, Any]) -> list[str]:
    """Say whether the distributional hypothesis fails for any set of pairs, then how, and for how many members of each arm."""
    parting: dict[tuple[str, str], list[str]] = {}
    for name, rows in results["equivalence"].items():
        for row in rows:
            case, members = max(row["cases"].items(), key=lambda item: item[1])
            if case in FAILS:
                parting.setdefault((row["set"], case), []).append(f"{name} ({members} of {sum(row['cases'].values())})")
    lines = ["No set of pairs violates the distributional hypothesis for most members: none speaks against tying."]
    if parting:
        sets = ", ".join(dict.fromkeys(pairs for pairs, _ in parting))
        lines = [f"The distributional hypothesis, which tying assumes, fails for most members: {sets}."]
    unlearnt = [
        name
        for name, rows in results["equivalence"].items()
        if any(row["set"] == ACROSS and (row["residual_rms"] or 0) > LEARNT for row in rows)
    ]
    if unlearnt:
        lines.append(
            f"Most members have not learnt which bit a context asks for ({', '.join(unlearnt)}: their residual between "
            f"{ACROSS} is above {LEARNT:g}): what is said of these describes the models, not the task."
        )
    return lines + [f"{pairs}: {FAILS[case]}: {', '.join(names)}" for (pairs, case), names in parting.items()]
