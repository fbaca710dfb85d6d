"""The claims of the study, one for each finding of the paper; they were stated before the reported run.

The score of a seed is its test accuracy, averaged over tasks. A claim is tested if the run has the shapes that it compares;
these are identified by their widths, not by their names.
Source: Chung et al., ICLR 2021; findings are numbered as in the specification of the study.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tiejax.lab.studies.embedding_coupling.summary import score
from tiejax.models.shapes import Shape
from tiejax.statistics.arms import replace_diverged, replace_undefined
from tiejax.statistics.claims import Claim, assess

POINT = 0.01  # one point of accuracy
FEWEST_RATES = 3  # a grid without an inner rate has no optimum inside
CORRELATION = 0.03


class Roles(NamedTuple):
    """The names of the shapes that the claims compare; None for a role that no shape has.

    coupled: E_in = E_out = H with one table. decoupled: the same with two tables. big_in: large input, small output. narrow,
    middle, wide: small input with the smallest output, an output of width H, and the largest output. dropped: narrow with extra
    layers that are dropped. wider, deeper: middle with a larger H, or with more layers.
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
    """Assign shapes to roles, relative to the first coupled shape of full width, or to the first shape if there is none.

    Without shapes (a run from a checkpoint) all roles are None.
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
    """Return the encoder that tests the effect of pre-training: the coupled one, or the first if there is none."""
    first_task = next(iter(body["scores"].values()))
    return roles.coupled or str(next(iter(first_task)))


# (body, name of an encoder) -> one value per seed, None if it was not measured.
Measure = Callable[[Mapping[str, Any], str], np.ndarray | None]


def score_in_cipher(body: Mapping[str, Any], name: str, start: str) -> np.ndarray | None:
    """Return the score in the second language."""
    measured = all("test_cipher_accuracy" in by_shape[name][start] for by_shape in body["scores"].values())
    return score(body, name, start, "test_cipher_accuracy") if measured else None


def masked_accuracy(body: Mapping[str, Any], name: str) -> np.ndarray | None:
    """Return the validation accuracy at masked tokens."""
    return np.asarray(body["pretraining"][name]["accuracy"]) if name in body["pretraining"] else None


def probe_accuracy(body: Mapping[str, Any], name: str) -> np.ndarray | None:
    """Return the test accuracy of the probe on a mix of layers."""
    return np.asarray(body["layer_mix"][name]["pretrained"]["test_accuracy"]) if name in body["layer_mix"] else None


def cost_of_dropping(body: Mapping[str, Any], name: str) -> np.ndarray | None:
    """Return the accuracy lost by dropping top layers, averaged over the numbers of dropped layers."""
    dropped = body["dropped"].get(name)
    if not dropped:
        return None
    whole = np.asarray(body["scores"][body["drop_task"]][name]["pretrained"]["test_accuracy"])
    remaining = [np.asarray(scores["pretrained"]["test_accuracy"]) for scores in dropped.values()]
    return np.asarray(whole - np.mean(remaining, axis=0))


def last_retrieval(body: Mapping[str, Any], name: str) -> np.ndarray | None:
    """Return the retrieval accuracy after the last layer, with the mean difference fitted on other pairs."""
    found = body["retrieval"].get(name)
    return None if found is None else np.asarray(found["held_out"]["pretrained"])[:, -1]


def similarity_of(body: Mapping[str, Any], name: str, table: str) -> np.ndarray | None:
    """Return the correlation of a table with human judgements."""
    found = body["similarity"].get(name, {})
    return np.asarray(found[table]) if table in found else None


SCORE, CONTROL = "score", "score of the control"
CIPHER, CONTROL_IN_CIPHER = "score in the cipher", "score in the cipher of the control"
MASKED, PROBE = "validation accuracy", "accuracy of the probe"
COST, RETRIEVAL = "cost of dropping, averaged over the numbers of layers,", "accuracy of retrieval after the last layer"
INPUT, OUTPUT = "correlation of the input embedding", "correlation of the output embedding"
MEASURES: dict[str, Measure] = {
    SCORE: score,
    CONTROL: functools.partial(score, start="control"),
    CIPHER: functools.partial(score_in_cipher, start="pretrained"),
    CONTROL_IN_CIPHER: functools.partial(score_in_cipher, start="control"),
    MASKED: masked_accuracy,
    PROBE: probe_accuracy,
    COST: cost_of_dropping,
    RETRIEVAL: last_retrieval,
    INPUT: functools.partial(similarity_of, table="input"),
    OUTPUT: functools.partial(similarity_of, table="output"),
}


# The measures that depend on the learning rate chosen for an encoder, and the start that it was chosen for.
START_OF = {
    SCORE: "pretrained",
    CONTROL: "control",
    CIPHER: "pretrained",
    CONTROL_IN_CIPHER: "control",
    COST: "pretrained",
    PROBE: "pretrained",
}
# The smallest difference of interest by measure.
MARGINS = dict.fromkeys((SCORE, MASKED, PROBE, COST, RETRIEVAL, CIPHER), POINT) | dict.fromkeys((INPUT, OUTPUT), CORRELATION)


class Comparison(NamedTuple):
    """A claim that a measure of one role is larger than that of another, or within a margin of it.

    first, second: (role, measure), with the role a field of `Roles` or `base` (see `base_of`).
    """

    id: str
    statement: str
    first: tuple[str, str]
    second: tuple[str, str]
    margin: float | None = None


COMPARISONS = (
    Comparison(
        "pretraining/score",
        "The base shape has a higher score with pre-training than without (control; a precondition of all other claims).",
        ("base", SCORE),
        ("base", CONTROL),
    ),
    Comparison(
        "decoupling/score",
        "Decoupling tables of equal width changes the score by less than one point (finding 1).",
        ("decoupled", SCORE),
        ("coupled", SCORE),
        POINT,
    ),
    Comparison(
        "large-output/score",
        "A small input with a large output embedding is within one point of a large input with a small output embedding, "
        "which has more fine-tuning parameters (finding 2).",
        ("middle", SCORE),
        ("big_in", SCORE),
        POINT,
    ),
    Comparison(
        "output-width/score",
        "The score is higher with the widest than with the narrowest output embedding, which is discarded (finding 3).",
        ("wide", SCORE),
        ("narrow", SCORE),
    ),
    Comparison(
        "output-width/masked-accuracy",
        "Masked tokens are predicted better with the widest than with the narrowest output embedding (finding 3).",
        ("wide", MASKED),
        ("narrow", MASKED),
    ),
    Comparison(
        "extra-layers/score",
        "The score is higher with the widest output embedding than with a narrow one and extra layers that are dropped "
        "(finding 4).",
        ("wide", SCORE),
        ("dropped", SCORE),
    ),
    Comparison(
        "reinvest/deeper-wider",
        "The score is higher with the saved parameters spent on layers than on width (finding 5).",
        ("deeper", SCORE),
        ("wider", SCORE),
    ),
    Comparison(
        "reinvest/wider-none",
        "The score is higher with the saved parameters spent on width than not at all (finding 5).",
        ("wider", SCORE),
        ("middle", SCORE),
    ),
    Comparison(
        "reinvest/deeper-coupled",
        "With about as many fine-tuning parameters, the score is higher with more layers than with a coupled table "
        "(finding 5).",
        ("deeper", SCORE),
        ("coupled", SCORE),
    ),
    Comparison(
        "layer-mix/output-width",
        "A probe on a mix of the frozen layers is better with the widest than with the narrowest output embedding (finding 9).",
        ("wide", PROBE),
        ("narrow", PROBE),
    ),
    Comparison(
        "dropping/output-width",
        "Dropping top layers before fine-tuning costs more with the widest than with the narrowest output embedding "
        "(finding 6).",
        ("wide", COST),
        ("narrow", COST),
    ),
    Comparison(
        "retrieval/last-layer",
        "After the last layer, sentences retrieve their translations more often with the widest than with the narrowest "
        "output embedding (finding 7).",
        ("wide", RETRIEVAL),
        ("narrow", RETRIEVAL),
    ),
    Comparison(
        "zero-shot/pretraining",
        "After fine-tuning in one language, the score in its cipher is higher with pre-training than without (ours).",
        ("base", CIPHER),
        ("base", CONTROL_IN_CIPHER),
    ),
    Comparison(
        "similarity/input-as-coupled",
        "Word similarity of the input embedding is within .03 of that of the coupled one (finding 8).",
        ("middle", INPUT),
        ("coupled", INPUT),
        CORRELATION,
    ),
    Comparison(
        "similarity/input-output",
        "Word similarity is higher in the input than in the output embedding (finding 8).",
        ("middle", INPUT),
        ("middle", OUTPUT),
    ),
    Comparison(
        "similarity/output-width",
        "Word similarity of the output embedding is lower in the widest than in the narrowest (finding 8).",
        ("narrow", OUTPUT),
        ("wide", OUTPUT),
    ),
)


def claims(body: Mapping[str, Any], shapes: Mapping[str, Shape]) -> list[Claim]:
    """Return the claims that can be tested with these shapes.

    body: the output of `summary.collect_all`, in which the values of diverged models are NaN: they count as the worst value of
    any shape and seed, or against the claim if the measure has no worst value.
    """
    roles = roles_of(shapes)
    names = {**roles._asdict(), "base": base_of(body, roles)}
    rows = [_claim(comparison, body, names) for comparison in COMPARISONS]
    return [row for row in rows if row is not None]


def _claim(comparison: Comparison, body: Mapping[str, Any], names: Mapping[str, str | None]) -> Claim | None:
    """Return a comparison as a claim; None if a shape or a measure is missing. names: the shapes' names by role."""
    sides, words = [], []
    for role, measure in (comparison.first, comparison.second):
        name = names[role]
        values = None if name is None else _values(body, measure, name)
        if values is None:
            return None
        sides.append(values)
        words.append(f"{measure} of {name}")
    same = comparison.margin is not None
    sign = 0 if same else 1
    return Claim(
        comparison.id,
        comparison.statement,
        f"the mean {' - '.join(words)}",
        replace_undefined(sides[0] - sides[1], sign),
        sign,
        goal="equivalence" if same else "difference",
        margin=comparison.margin if same else MARGINS.get(comparison.first[1]),
    )


def _values(body: Mapping[str, Any], measure: str, name: str) -> np.ndarray | None:
    """Return a measure of an encoder by seed, with the worst value of all encoders in place of NaN; None if not measured."""
    values = MEASURES[measure](body, name)
    if values is None or measure == COST or not np.isnan(values).any():
        return values
    first_task = next(iter(body["scores"].values()))
    others = [MEASURES[measure](body, other) for other in first_task if other != name]
    every = np.array([values, *(found for found in others if found is not None)])
    return replace_diverged(every, np.isnan(every), "low")[0]


def verdicts(body: Mapping[str, Any], shapes: Mapping[str, Shape]) -> list[dict[str, Any]]:
    """Return the tested claims; those that depend on a rate at the edge of its grid stay undecided, and say so.

    A score at the best rate of a grid is that of the best rate only if the optimum lies inside.
    """
    names = {**roles_of(shapes)._asdict(), "base": base_of(body, roles_of(shapes))}
    by_id = {comparison.id: comparison for comparison in COMPARISONS}
    rows = []
    for row in assess(claims(body, shapes)):
        sides = by_id[row["id"]].first, by_id[row["id"]].second
        edges = [edge for role, measure in sides for edge in at_edge(body, names[role], measure)]
        if edges:
            note = f"not decided, since the best learning rate is at the edge of its grid for {', '.join(dict.fromkeys(edges))}"
            # More seeds would not decide such a claim: what they would show is left out.
            row |= {"verdict": "undecided", "smallest_detectable": None, "seeds_needed": None, "note": note}
        rows.append(row)
    return rows


def at_edge(body: Mapping[str, Any], name: str | None, measure: str) -> list[str]:
    """Return the encoder's learning rates, in words, that a measure depends on and that are the smallest or largest tried."""
    start = START_OF.get(measure)
    if name is None or start is None:
        return []
    if measure == PROBE:
        by_task = {"the mix of layers": body["layer_mix"][name]["rates"]}
    else:
        tasks = [body["drop_task"]] if measure == COST else list(body["rates"])
        by_task = {task: body["rates"][task][name] for task in tasks}
    edges = []
    for task, by_start in by_task.items():
        chosen, grid = by_start[start]["chosen"], sorted(map(float, by_start[start]["development"]))
        if len(grid) < FEWEST_RATES or chosen in (grid[0], grid[-1]):
            edges.append(f"{name} ({start}) on {task}")
    return edges
