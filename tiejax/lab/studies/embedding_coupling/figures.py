"""The figures of a run on embedding shapes, with captions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.reporting.plot import Plot
from tiejax.lab.studies.embedding_coupling import drawing
from tiejax.lab.studies.embedding_coupling.claims import roles_of
from tiejax.lab.studies.embedding_coupling.drawing import Point
from tiejax.lab.studies.embedding_coupling.summary import score
from tiejax.models.shapes import Shape

Body = Mapping[str, Any]
FITS = {"all": "difference fitted on the scored pairs, as published", "held_out": "difference fitted on other pairs"}


def plot_all(body: Body, shapes: Mapping[str, Shape], metrics: Mapping[str, np.ndarray]) -> list[Plot]:
    """Plot all figures of a run; none if no seed stayed finite.

    body: results.json. shapes: by name, empty for a checkpoint. metrics: the arrays of metrics.npz.
    """
    if not body["seeds"]:
        return []
    plots = [
        plot_parameters(body),
        plot_output_width(body, shapes),
        plot_dropped(body),
        plot_retrieval(body),
        plot_similarity(body),
        plot_pretraining(body, metrics),
    ]
    return [plot for plot in plots if plot is not None]


def _point(body: Body, name: str, x: float) -> Point:
    return Point(name, x, score(body, name), score(body, name, "control"))


def plot_parameters(body: Body) -> Plot:
    """Plot the score of every shape against the parameters that remain in fine-tuning."""
    points = [_point(body, name, fields["fine_tuning_parameters"]) for name, fields in body["shapes"].items()]
    return Plot(
        "score_parameters",
        "Score (test accuracy, averaged over tasks) by shape. Rows are sorted by the number of parameters in fine-tuning, "
        "which follows the name. Dots: means over seeds; short lines: seeds. Grey: the mean of the same encoder fine-tuned "
        "without pre-training.",
        drawing.scores_by_parameters(points),
    )


def plot_output_width(body: Body, shapes: Mapping[str, Shape]) -> Plot | None:
    """Plot score, masked accuracy and probe accuracy against E_out, for shapes that differ only in E_out."""
    roles = roles_of(shapes) if shapes else None
    if roles is None or roles.narrow is None:
        return None
    like = shapes[roles.narrow]
    names = [
        name
        for name, shape in sorted(shapes.items(), key=lambda item: item[1].embed_out)
        if not shape.coupled and shape == Shape(like.embed_in, shape.embed_out, like.width, like.layers, like.heads)
    ]
    widths = [shapes[name].embed_out for name in names]
    none = np.zeros(0)
    panels = {"score on test": [_point(body, name, width) for name, width in zip(names, widths, strict=True)]}
    panels["accuracy at masked tokens"] = [
        Point(name, width, np.array(body["pretraining"][name]["accuracy"]), none)
        for name, width in zip(names, widths, strict=True)
    ]
    if body["layer_mix"]:
        panels["probe on a mix of frozen layers"] = [
            Point(
                name,
                width,
                *(np.array(body["layer_mix"][name][start]["test_accuracy"]) for start in ("pretrained", "control")),
            )
            for name, width in zip(names, widths, strict=True)
        ]
    return Plot(
        "output_width",
        "Effect of the width of the output embedding, which fine-tuning discards, on the score, the accuracy at masked tokens "
        "and a linear probe. Thin: a seed; thick: median. Grey: without pre-training.",
        drawing.over_output_width(panels),
    )


def plot_dropped(body: Body) -> Plot | None:
    """Plot the score with top layers dropped."""
    if not any(body["dropped"].values()):
        return None
    task = body["scores"][body["drop_task"]]
    curves = {}
    for name, by_number in body["dropped"].items():
        fields = body["shapes"][name]
        layers = fields["layers"] - fields.get("drop", 0)
        curves[name] = {layers: np.array(task[name]["pretrained"]["test_accuracy"])} | {
            layers - int(number): np.array(scores["pretrained"]["test_accuracy"]) for number, scores in by_number.items()
        }
    control = float(np.mean([task[name]["control"]["test_accuracy"] for name in curves]))
    return Plot(
        "dropped_layers",
        f"Test accuracy of {body['drop_task']} with top layers dropped before fine-tuning: means over seeds. Dotted: mean of "
        "the controls, with all layers and without pre-training.",
        drawing.dropped_layers(curves, control),
    )


def plot_retrieval(body: Body) -> Plot | None:
    """Plot retrieval of parallel sentences by layer."""
    if not body["retrieval"]:
        return None
    panels = {
        title: {name: np.array(found[fit]["pretrained"]) for name, found in body["retrieval"].items()}
        for fit, title in FITS.items()
    }
    controls = {}
    for fit, title in FITS.items():
        depths = [np.array(found[fit]["control"]).mean(0) for found in body["retrieval"].values()]
        most = max(len(depth) for depth in depths)
        controls[title] = np.mean([depth for depth in depths if len(depth) == most], axis=0)
    return Plot(
        "retrieval",
        "How often the mean hidden state of a sentence, plus the mean difference between the two languages, is nearest to that "
        "of its translation, after each layer: means over seeds. Dotted: the deepest encoders without pre-training.",
        drawing.by_layer(panels, controls, "retrieval accuracy"),
    )


def plot_similarity(body: Body) -> Plot | None:
    """Plot the word similarity of the tables."""
    if not body["similarity"]:
        return None
    tables = {
        name: {table: np.array(found[table]) for table in ("input", "output") if table in found}
        for name, found in body["similarity"].items()
    }
    return Plot(
        "word_similarity",
        "Spearman correlation of human judgements with dot products of word vectors: every seed, and the mean as a bar. A "
        "coupled table is both input and output.",
        drawing.word_similarity(tables),
    )


def plot_pretraining(body: Body, metrics: Mapping[str, np.ndarray]) -> Plot | None:
    """Plot the validation loss over pre-training."""
    if not body["pretraining"]:
        return None
    losses = dict(zip(metrics["shapes"].tolist(), metrics["validation_loss"], strict=True))
    return Plot(
        "pretraining",
        "Validation loss at masked tokens over pre-training: means over seeds, all shapes on the same batches and masks. "
        "Dotted: the loss of a model that knows only token frequencies.",
        drawing.pretraining_curves(metrics["validation_step"], losses, body["unigram_entropy"]),
    )
