"""Looks and parts of a run on its page: when its claims were tested, and which look decided each."""

from collections.abc import Mapping, Sequence
from typing import Any

TABLE = "Numbers: the look at which each registered claim was decided"


def parts_words(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the entry of a page's description on looks or on appended seeds; none for a run of one part."""
    if looks := results.get("looks"):
        return {"looks": looks_words(looks["planned"], looks["done"], looks.get("appended", False))}
    if parts := results.get("seeds_by_part"):
        appended = ", then ".join(f"{seeds:,}" for seeds in parts[1:])
        return {
            "appended": f"{appended} seeds, to a run of {parts[0]:,}, or by joining runs. The tests take all seeds as planned "
            "from the start"
        }
    return {}


def looks_words(planned: Sequence[int], done: Sequence[int], appended: bool = False) -> str:
    """Return in words at which numbers of seeds claims were planned to be tested, and were."""
    share = f", each with {1 / len(planned):.3g} of .05" if len(planned) > 1 else ""
    if appended:
        return f"at {_numbers(done)} seeds{share}: seeds were appended to a finished run, whose claims had been tested"
    return f"planned at {_numbers(planned)} seeds{share}; done at {_numbers(done)}"


def looks_table(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the table of the look that decided each registered claim; none for a run without looks.

    A verdict stays once it is reached; estimates are those of all seeds.
    """
    if not results.get("looks"):
        return {}
    rows = []
    for claim in results["claims"]:
        if claim["family"] == "registered":
            decided = claim["verdict"] != "undecided"
            rows.append([claim["id"], f"{claim['look']:,} seeds" if decided else "not decided", claim["verdict"]])
    return {TABLE: (["claim", "decided at", "verdict"], rows)}


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)
