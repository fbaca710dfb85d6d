"""The paper's findings as claims about a run, one primary row each; they were stated before the run of record.

A score is a seed's accuracy on test, averaged over the tasks. A claim is made where the shapes that it needs are there: they
are found by their widths, not by their names.
Source: Chung et al., ICLR 2021; the numbers of the findings are those of the specification of the study.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tiejax.models.shapes import Shape
from tiejax.statistics.claims import Claim
from tiejax.studies.embedding_coupling.summary import score

POINT = 0.01  # one point of accuracy
CORRELATION = 0.03


class Roles(NamedTuple):
    """Which shape plays which part, by name; None where there is none.

    coupled: E_in = E_out = H, one table. decoupled: the same with two. big_in: large input, small output. narrow, middle, wide:
    small input, with the smallest output, one of H, and the largest. dropped: narrow with layers that are dropped.
    wider, deeper: middle, with a larger H, with more layers.
    """

    coupled: str | None
    decoupled: str | None
    big_in: str | None
    narrow: str | None
    middle: str | None
    wide: str | None
    dropped: str | None
    wider: str | None
    deeper: str | None


def roles_of(shapes: Mapping[str, Shape]) -> Roles:
    """Return the parts that shapes play, relative to the first coupled one of full width, or else to the first of all.

    A checkpoint, which has no shapes, plays none.
    """
    if not shapes:
        return Roles(*[None] * len(Roles._fields))
    full = [name for name, shape in shapes.items() if shape.coupled and shape.embed_in == shape.width]
    base = shapes[full[0]] if full else next(iter(shapes.values()))
    same = {name: shape for name, shape in shapes.items() if not shape.coupled and not shape.drop}
    small = {name: shape for name, shape in same.items() if shape.embed_in < base.width}

    def first(found: list[str]) -> str | None:
        return found[0] if found else None

    def like_base(shape: Shape) -> bool:
        return (shape.width, shape.layers) == (base.width, base.layers)

    by_output = sorted((name for name, shape in small.items() if like_base(shape)), key=lambda name: small[name].embed_out)
    middle = first([name for name in by_output if small[name].embed_out == base.width])
    tables = (small[middle].embed_in, small[middle].embed_out) if middle else None
    reinvested = [name for name, shape in small.items() if (shape.embed_in, shape.embed_out) == tables]
    return Roles(
        first(full),
        first([name for name, s in same.items() if like_base(s) and s.embed_in == s.embed_out == base.width]),
        first([name for name, s in same.items() if like_base(s) and s.embed_in >= base.width > s.embed_out]),
        by_output[0] if len(by_output) > 1 else None,
        middle,
        by_output[-1] if len(by_output) > 1 else None,
        first([name for name, s in shapes.items() if s.drop and s.width == base.width and s.layers - s.drop == base.layers]),
        first([name for name in reinvested if small[name].width > base.width and small[name].layers == base.layers]),
        first([name for name in reinvested if small[name].layers > base.layers and small[name].width == base.width]),
    )


def base_of(body: Mapping[str, Any], roles: Roles) -> str:
    """Return the encoder whose pre-training is compared with none: the coupled one, or else the first."""
    first_task = next(iter(body["scores"].values()))
    return roles.coupled or str(next(iter(first_task)))


def claims(body: Mapping[str, Any], shapes: Mapping[str, Shape]) -> list[Claim]:
    """Return the claims that a run of these shapes can be asked; body: as `summary.collect` gives it."""
    roles = roles_of(shapes)
    rows = [*_on_scores(body, roles), *_on_layers(body, roles), *_on_tables(body, roles)]
    return [row for row in rows if row is not None]


def _on_scores(body: Mapping[str, Any], roles: Roles) -> list[Claim | None]:
    """Findings 1 to 5 and 9, and the control."""

    def scores(name: str) -> np.ndarray:
        return score(body, name)

    def compare(id: str, first: str | None, second: str | None, words: str, margin: float | None = None) -> Claim | None:
        if first is None or second is None:
            return None
        statistic = f"score of {first} - score of {second}"
        return Claim(id, words, statistic, scores(first) - scores(second), 0 if margin else 1, margin=margin)

    masked, mixed = None, None
    if roles.narrow and roles.wide and roles.wide in body["pretraining"]:
        gain = np.subtract(*(body["pretraining"][name]["accuracy"] for name in (roles.wide, roles.narrow)))
        masked = Claim(
            "output-width/masked-accuracy",
            "Masked tokens are predicted better with a larger output embedding (finding 3).",
            f"validation accuracy of {roles.wide} - of {roles.narrow}",
            gain,
            1,
        )
        if roles.wide in body["layer_mix"]:
            of_mix = [body["layer_mix"][name]["pretrained"]["test_accuracy"] for name in (roles.wide, roles.narrow)]
            mixed = Claim(
                "layer-mix/output-width",
                "A probe on a mix of the frozen layers is better with a larger output embedding (finding 9).",
                f"accuracy of the probe of {roles.wide} - of {roles.narrow}",
                np.subtract(*of_mix),
                1,
            )
    base = base_of(body, roles)
    gained = Claim(
        "pretraining/score",
        "Pre-training helps: without this nothing below could show (control).",
        f"score of {base} - score of its control without pre-training",
        scores(base) - score(body, base, "control"),
        1,
    )
    return [
        gained,
        compare(
            "decoupling/score",
            roles.decoupled,
            roles.coupled,
            "Decoupling tables of equal width changes the score by less than one point (finding 1).",
            POINT,
        ),
        compare(
            "large-output/score",
            roles.middle,
            roles.big_in,
            "A small input with a large output embedding is within one point of a large input with a small output embedding, "
            "which has more fine-tuning parameters (finding 2).",
            POINT,
        ),
        compare(
            "output-width/score",
            roles.wide,
            roles.narrow,
            "The score rises with the width of the output embedding, although it is discarded (finding 3).",
        ),
        masked,
        compare(
            "extra-layers/score",
            roles.wide,
            roles.dropped,
            "A larger output embedding is a better use of pre-training parameters than layers that are dropped (finding 4).",
        ),
        compare(
            "reinvest/deeper-wider",
            roles.deeper,
            roles.wider,
            "Saved parameters are better spent on layers than on width (finding 5).",
        ),
        compare(
            "reinvest/wider-none",
            roles.wider,
            roles.middle,
            "Saved parameters spent on width are better than unspent (finding 5).",
        ),
        compare(
            "reinvest/deeper-coupled",
            roles.deeper,
            roles.coupled,
            "With as many fine-tuning parameters, more layers are better than a coupled table (finding 5).",
        ),
        mixed,
    ]


def _on_layers(body: Mapping[str, Any], roles: Roles) -> list[Claim | None]:
    """Findings 6 and 7, and zero-shot transfer to the cipher."""
    rows: list[Claim | None] = []
    if roles.narrow and roles.wide:
        costs = [_cost_of_dropping(body, name) for name in (roles.wide, roles.narrow)]
        if costs[0] is not None and costs[1] is not None:
            rows.append(
                Claim(
                    "dropping/output-width",
                    "Dropping top layers before fine-tuning costs more with a large output embedding (finding 6).",
                    f"cost of dropping, averaged over the numbers of layers, of {roles.wide} - of {roles.narrow}",
                    costs[0] - costs[1],
                    1,
                )
            )
        if roles.wide in body["retrieval"]:
            last = [np.array(body["retrieval"][name]["held_out"]["pretrained"])[:, -1] for name in (roles.wide, roles.narrow)]
            rows.append(
                Claim(
                    "retrieval/last-layer",
                    "After the last layer, a sentence finds its translation more often with a large output embedding (finding "
                    "7).",
                    f"accuracy of retrieval after the last layer, {roles.wide} - {roles.narrow}",
                    last[0] - last[1],
                    1,
                )
            )
    base = base_of(body, roles)
    if all("test_cipher_accuracy" in of_shape[base]["pretrained"] for of_shape in body["scores"].values()):
        by_start = [score(body, base, start, "test_cipher_accuracy") for start in ("pretrained", "control")]
        rows.append(
            Claim(
                "zero-shot/pretraining",
                "What is fine-tuned in one language is known in its cipher, of which no label was seen (ours).",
                f"score in the cipher of {base} - of its control",
                by_start[0] - by_start[1],
                1,
            )
        )
    return rows


def _cost_of_dropping(body: Mapping[str, Any], name: str) -> np.ndarray | None:
    """Return what a shape loses by dropping layers, averaged over all numbers of layers; None if none were dropped."""
    dropped = body["dropped"].get(name)
    if not dropped:
        return None
    whole = np.asarray(body["scores"][body["drop_task"]][name]["pretrained"]["test_accuracy"])
    kept = [np.asarray(scores["pretrained"]["test_accuracy"]) for scores in dropped.values()]
    return np.asarray(whole - np.mean(kept, axis=0))


def _on_tables(body: Mapping[str, Any], roles: Roles) -> list[Claim | None]:
    """Finding 8: word similarity."""
    found = body["similarity"]
    rows: list[Claim | None] = []

    def compare(id: str, first: tuple[str, str], second: tuple[str, str], words: str, margin: float | None = None) -> None:
        values = [np.asarray(found[name][table]) for name, table in (first, second)]
        statistic = f"correlation of {first[0]}'s {first[1]} - of {second[0]}'s {second[1]} embedding"
        rows.append(Claim(id, words, statistic, values[0] - values[1], 0 if margin else 1, margin=margin))

    if roles.middle in found and roles.coupled in found:
        assert roles.middle is not None
        assert roles.coupled is not None
        compare(
            "similarity/input-as-coupled", (roles.middle, "input"), (roles.coupled, "input"),
            "Word similarity of the input embedding is within .03 of the coupled one's (finding 8).", CORRELATION,
        )  # fmt: skip
    if roles.middle in found:
        assert roles.middle is not None
        compare(
            "similarity/input-output", (roles.middle, "input"), (roles.middle, "output"),
            "Word similarity is higher in the input than in the output embedding (finding 8).",
        )  # fmt: skip
    if roles.wide in found and roles.narrow in found:
        assert roles.wide is not None
        assert roles.narrow is not None
        compare(
            "similarity/output-width", (roles.narrow, "output"), (roles.wide, "output"),
            "Word similarity of the output embedding falls as it widens (finding 8).",
        )  # fmt: skip
    return rows
