"""The claims of the study, one for each finding of the paper; they were stated before the reported run.

The score of a seed is its test accuracy, averaged over tasks. A claim is tested if the run has the shapes that it compares;
these are identified by their widths, not by their names.
Source: Chung et al., ICLR 2021; findings are numbered as in the specification of the study.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tiejax.lab.runs.gate import untested
from tiejax.lab.studies.embedding_coupling.summary import rate_at_edge, score
from tiejax.models.shapes import Shape
from tiejax.statistics.arms import replace_diverged, replace_undefined
from tiejax.statistics.claims import Claim, assess

POINT = 0.01  # one point of accuracy
CORRELATION = 0.03


def roles_of(shapes: Mapping[str, Shape]) -> dict[str, str | None]:
    """Return the names of the shapes that the claims compare, by role; None for a role that no shape has.

    coupled: E_in = E_out = H with one table. decoupled: the same with two tables. big_in: large input, small output. narrow,
    middle, wide: small input with the smallest output, an output of width H, and the largest output. dropped: narrow with extra
    layers that are dropped. wider, deeper: middle with a larger H, or with more layers. Roles are relative to the first coupled
    shape of full width, or to the first shape if there is none. A run from a checkpoint has none.
    """
    if not shapes:
        return {}

    def first(fits: Callable[[Shape], bool], among: Mapping[str, Shape] = shapes) -> str | None:
        return next((name for name, shape in among.items() if fits(shape)), None)

    def like_base(shape: Shape) -> bool:
        return (shape.width, shape.layers) == (base.width, base.layers)

    coupled = first(lambda shape: shape.coupled and shape.embed_in == shape.width)
    base = shapes[coupled or next(iter(shapes))]
    same = {name: shape for name, shape in shapes.items() if not shape.coupled and not shape.drop}
    full = {name: shape for name, shape in same.items() if like_base(shape)}
    small = {name: shape for name, shape in same.items() if shape.embed_in < base.width}
    by_output = sorted([name for name in small if name in full], key=lambda name: small[name].embed_out)
    middle = first(lambda shape: shape.embed_out == base.width, {name: small[name] for name in by_output})
    tables = (small[middle].embed_in, small[middle].embed_out) if middle else None
    reinvested = {name: shape for name, shape in small.items() if (shape.embed_in, shape.embed_out) == tables}
    return {
        "coupled": coupled,
        "decoupled": first(lambda shape: shape.embed_in == shape.embed_out == base.width, full),
        "big_in": first(lambda shape: shape.embed_in >= base.width > shape.embed_out, full),
        "narrow": by_output[0] if len(by_output) > 1 else None,
        "middle": middle,
        "wide": by_output[-1] if len(by_output) > 1 else None,
        "dropped": first(
            lambda shape: shape.drop > 0 and like_base(dataclasses.replace(shape, layers=shape.layers - shape.drop))
        ),
        "wider": first(lambda shape: shape.width > base.width and shape.layers == base.layers, reinvested),
        "deeper": first(lambda shape: shape.layers > base.layers and shape.width == base.width, reinvested),
    }


def names_of(body: Mapping[str, Any], shapes: Mapping[str, Shape]) -> dict[str, str | None]:
    """Return the names of the shapes by role; `base` is the coupled encoder, or the first one if there is none."""
    roles = roles_of(shapes)
    return {**roles, "base": roles.get("coupled") or encoders_of(body)[0]}


def encoders_of(body: Mapping[str, Any]) -> list[str]:
    """Return the names of all encoders of a run."""
    return list(next(iter(body["scores"].values())))


class Measure(NamedTuple):
    """A measure of an encoder.

    values: (body, name of the encoder) -> one value per seed, None if it was not measured. margin: the smallest difference of
    interest. start: the start whose chosen learning rate it depends on, if any.
    """

    values: Callable[[Mapping[str, Any], str], np.ndarray | None]
    margin: float | None
    start: str | None = None


def score_in_cipher(body: Mapping[str, Any], name: str, start: str) -> np.ndarray | None:
    """Return the score in the second language."""
    measured = all("test_cipher_accuracy" in by_shape[name][start] for by_shape in body["scores"].values())
    return score(body, name, start, "test_cipher_accuracy") if measured else None


def cost_of_dropping(body: Mapping[str, Any], name: str) -> np.ndarray | None:
    """Return the accuracy lost by dropping top layers, averaged over the numbers of dropped layers."""
    dropped = body["dropped"].get(name)
    if not dropped:
        return None
    whole = np.asarray(body["scores"][body["drop_task"]][name]["pretrained"]["test_accuracy"])
    remaining = [np.asarray(scores["pretrained"]["test_accuracy"]) for scores in dropped.values()]
    return np.asarray(whole - np.mean(remaining, axis=0))


def value_at(body: Mapping[str, Any], name: str, path: tuple[str, ...]) -> np.ndarray | None:
    """Return the values of an encoder in results.json at the path (PART, FIELD, ...); those of the last layer, if by layer."""
    found = body[path[0]].get(name, {})
    for field in path[1:]:
        if field not in found:
            return None
        found = found[field]
    values = np.asarray(found)
    return values if values.ndim == 1 else values[:, -1]


SCORE, CONTROL = "score", "score of the control"
CIPHER, CONTROL_IN_CIPHER = "score in the cipher", "score in the cipher of the control"
MASKED, PROBE = "validation accuracy", "accuracy of the probe"
COST, RETRIEVAL = "cost of dropping, averaged over the numbers of layers", "accuracy of retrieval after the last layer"
INPUT, OUTPUT = "correlation of the input embedding", "correlation of the output embedding"
MEASURES = {
    SCORE: Measure(score, POINT, "pretrained"),
    CONTROL: Measure(functools.partial(score, start="control"), None, "control"),
    CIPHER: Measure(functools.partial(score_in_cipher, start="pretrained"), POINT, "pretrained"),
    CONTROL_IN_CIPHER: Measure(functools.partial(score_in_cipher, start="control"), None, "control"),
    MASKED: Measure(functools.partial(value_at, path=("pretraining", "accuracy")), POINT),
    PROBE: Measure(functools.partial(value_at, path=("layer_mix", "pretrained", "test_accuracy")), POINT, "pretrained"),
    COST: Measure(cost_of_dropping, POINT, "pretrained"),
    RETRIEVAL: Measure(functools.partial(value_at, path=("retrieval", "held_out", "pretrained")), POINT),
    INPUT: Measure(functools.partial(value_at, path=("similarity", "input")), CORRELATION),
    OUTPUT: Measure(functools.partial(value_at, path=("similarity", "output")), CORRELATION),
}


class Contrast(NamedTuple):
    """A claim that a measure of one role is larger than that of another, or within the measure's margin of it (`same`).

    first, second: (role, measure), with a role of `names_of`.
    """

    id: str
    first: tuple[str, str]
    second: tuple[str, str]
    statement: str
    same: bool = False


CONTRASTS = (
    Contrast("pretraining/score", ("base", SCORE), ("base", CONTROL),
               "The base shape has a higher score with pre-training than without (control; a precondition of all other "
               "claims)."),
    Contrast("decoupling/score", ("decoupled", SCORE), ("coupled", SCORE),
               "Decoupling tables of equal width changes the score by less than one point (finding 1).", same=True),
    Contrast("large-output/score", ("middle", SCORE), ("big_in", SCORE),
               "A small input with a large output embedding is within one point of a large input with a small output "
               "embedding, which has more fine-tuning parameters (finding 2).", same=True),
    Contrast("output-width/score", ("wide", SCORE), ("narrow", SCORE),
               "The score is higher with the widest than with the narrowest output embedding, which is discarded (finding 3)."),
    Contrast("output-width/masked-accuracy", ("wide", MASKED), ("narrow", MASKED),
               "Masked tokens are predicted better with the widest than with the narrowest output embedding (finding 3)."),
    Contrast("extra-layers/score", ("wide", SCORE), ("dropped", SCORE),
               "The score is higher with the widest output embedding than with a narrow one and extra layers that are dropped "
               "(finding 4)."),
    Contrast("reinvest/deeper-wider", ("deeper", SCORE), ("wider", SCORE),
               "The score is higher with the saved parameters spent on layers than on width (finding 5)."),
    Contrast("reinvest/wider-none", ("wider", SCORE), ("middle", SCORE),
               "The score is higher with the saved parameters spent on width than not at all (finding 5)."),
    Contrast("reinvest/deeper-coupled", ("deeper", SCORE), ("coupled", SCORE),
               "With about as many fine-tuning parameters, the score is higher with more layers than with a coupled table "
               "(finding 5)."),
    Contrast("layer-mix/output-width", ("wide", PROBE), ("narrow", PROBE),
               "A probe on a mix of the frozen layers is better with the widest than with the narrowest output embedding "
               "(finding 9)."),
    Contrast("dropping/output-width", ("wide", COST), ("narrow", COST),
               "Dropping top layers before fine-tuning costs more with the widest than with the narrowest output embedding "
               "(finding 6)."),
    Contrast("retrieval/last-layer", ("wide", RETRIEVAL), ("narrow", RETRIEVAL),
               "After the last layer, sentences retrieve their translations more often with the widest than with the narrowest "
               "output embedding (finding 7)."),
    Contrast("zero-shot/pretraining", ("base", CIPHER), ("base", CONTROL_IN_CIPHER),
               "After fine-tuning in one language, the score in its cipher is higher with pre-training than without (ours)."),
    Contrast("similarity/input-as-coupled", ("middle", INPUT), ("coupled", INPUT),
               "Word similarity of the input embedding is within .03 of that of the coupled one (finding 8).", same=True),
    Contrast("similarity/input-output", ("middle", INPUT), ("middle", OUTPUT),
               "Word similarity is higher in the input than in the output embedding (finding 8)."),
    Contrast("similarity/output-width", ("narrow", OUTPUT), ("wide", OUTPUT),
               "Word similarity of the output embedding is lower in the widest than in the narrowest (finding 8)."),
)  # fmt: skip


def claims(body: Mapping[str, Any], shapes: Mapping[str, Shape]) -> list[Claim]:
    """Return the claims that can be tested with these shapes.

    body: the output of `summary.collect_all`, in which the values of diverged models are NaN: they count as the worst value of
    any shape and seed, or against the claim if the measure has no worst value.
    """
    names = names_of(body, shapes)
    return [claim for each in CONTRASTS if (claim := _claim(each, body, names)) is not None]


def _claim(comparison: Contrast, body: Mapping[str, Any], names: Mapping[str, str | None]) -> Claim | None:
    """Return a comparison as a claim; None if a shape or a measure is missing. names: the shapes' names by role."""
    sides = [(measure, names.get(role)) for role, measure in (comparison.first, comparison.second)]
    values = [None if name is None else _values(body, measure, name) for measure, name in sides]
    if values[0] is None or values[1] is None:
        return None
    (measure, name), (other, against) = sides
    estimand = f"{measure} ({name} - {against})" if measure == other else f"{measure} of {name} - {other} of {against}"
    sign = 0 if comparison.same else 1
    measured = [MEASURES[side].values(body, encoder) for side, encoder in sides if encoder is not None]
    replaced = np.any([np.isnan(of_side) for of_side in measured if of_side is not None], axis=0)
    return Claim(
        comparison.id,
        comparison.statement,
        f"the mean {estimand}",
        replace_undefined(values[0] - values[1], sign),
        sign,
        goal="equivalence" if comparison.same else "difference",
        margin=MEASURES[sides[0][0]].margin,
        one_arm=sides[0][1] == sides[1][1],
        replaced=replaced,
    )


def _values(body: Mapping[str, Any], measure: str, name: str) -> np.ndarray | None:
    """Return a measure of an encoder by seed, with the worst value of all encoders in place of NaN; None if not measured."""
    values = MEASURES[measure].values(body, name)
    if values is None or measure == COST or not np.isnan(values).any():
        return values
    others = [MEASURES[measure].values(body, other) for other in encoders_of(body) if other != name]
    every = np.array([values, *(found for found in others if found is not None)])
    return replace_diverged(every, np.isnan(every), "low")[0]


def verdicts(body: Mapping[str, Any], shapes: Mapping[str, Shape], tested: bool = True) -> list[dict[str, Any]]:
    """Return the tested claims; those that depend on a rate at the edge of its grid stay undecided, and say so.

    A score at the best rate of a grid is that of the best rate only if the optimum lies inside. If not `tested`, all claims are
    exploratory.
    """
    if not tested:
        return assess(untested(claims(body, shapes)))
    names = names_of(body, shapes)
    by_id = {comparison.id: comparison for comparison in CONTRASTS}
    rows = []
    for row in assess(claims(body, shapes)):
        sides = by_id[row["id"]].first, by_id[row["id"]].second
        edges = [edge for role, measure in sides for edge in at_edge(body, names[role], measure)]
        if edges:
            note = f"not decided, since the best learning rate is at the edge of its grid for {', '.join(dict.fromkeys(edges))}"
            # More seeds would not decide such a claim: what they would show is left out.
            undecided = {"verdict": "undecided", "equivalence": None}
            row |= undecided | {"smallest_detectable": None, "seeds_needed": None, "note": note}
        rows.append(row)
    return rows


def at_edge(body: Mapping[str, Any], name: str | None, measure: str) -> list[str]:
    """Return the encoder's learning rates, in words, that a measure depends on and that are the smallest or largest tried."""
    start = MEASURES[measure].start
    if name is None or start is None:
        return []
    if measure == PROBE:
        by_task = {"the mix of layers": body["layer_mix"][name]["rates"]}
    else:
        tasks = [body["drop_task"]] if measure == COST else list(body["rates"])
        by_task = {task: body["rates"][task][name] for task in tasks}
    return [f"{name} ({start}) on {task}" for task, by_start in by_task.items() if rate_at_edge(by_start[start])]
