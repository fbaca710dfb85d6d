"""What each use of a table asks of it, as a figure and as a table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.reporting import figures
from tiejax.reporting.plot import Plot


def plot_uses(metrics: Mapping[str, np.ndarray], names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Plot:
    """Plot what each use of a table asks of it: gradients of the input and of the output use over training and by bucket.

    metrics: `use_*` as recorded, `[arm, seed, record, ...]`. names: of the buckets. rows: `uses` of results.json.
    """
    arms = [str(name) for name in metrics["arms"]]
    late = max(1, metrics["use_ratio"].shape[2] // 10)
    with np.errstate(divide="ignore", invalid="ignore"):  # a symbol that does not occur is not asked for as an input
        ratio = metrics["use_bucket_output"][:, :, -late:] / metrics["use_bucket_input"][:, :, -late:]

    def median(values: np.ndarray) -> float:
        finite = values[np.isfinite(values)]
        return float(np.median(finite)) if finite.size else math.nan

    by_bucket = {name: [median(ratio[arm, ..., bucket]) for bucket in range(len(names))] for arm, name in enumerate(arms)}
    published = [(row["from"], row["to"], row["published"]) for row in rows if row["published"]]
    return Plot(
        "uses",
        "What each use of a table asks of it: the norm of the gradient of the output use over that of the input use (dotted: "
        "1), and the cosine of both, on the batch of the step. Untied: gradients of two tables. Thin: one seed each; thick: "
        "median. Dashed: a published log of OLMo-1B (arXiv:2603.26663), which compares a gradient of activations with one of "
        "weights. Right: median over seeds and the last tenth of the records.",
        figures.uses(
            metrics["step"],
            dict(zip(arms, metrics["use_ratio"], strict=True)),
            dict(zip(arms, metrics["use_cosine"], strict=True)),
            published,
            by_bucket,
            names,
        ),
    )


def uses_table(rows: Sequence[Mapping[str, Any]], arms: Sequence[str]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the report's table of both uses over training, beside the published ratios; rows: `uses` of results.json."""
    shown = []
    for row in rows:
        low, high = f"{row['from']:,}", "the end" if row["to"] is None else f"{row['to'] - 1:,}"
        own = [f"{row[name][measure]:.3g}" for measure in ("ratio", "share", "cosine") for name in arms]
        shown.append(
            [f"{low} to {high}" if row["to"] != 1 else "0", *own, f"{row['published']:g}" if row["published"] else "-"]
        )
    measures = ("output / input", "share of the output use", "cosine")
    headings = ["steps", *(f"{measure}, {name}" for measure in measures for name in arms), "OLMo-1B, published"]
    title = "What each use of a table asks of it: norms of gradients, medians over records and seeds"
    return {title: (headings, shown)} if rows else {}
