"""The figures of a run on embedding shapes, with captions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import BLUE, GREEN, ORANGE, SERIES, Plot
from tiejax.lab.studies.embedding_coupling.claims import roles_of
from tiejax.lab.studies.embedding_coupling.encoders import STARTS
from tiejax.lab.studies.embedding_coupling.summary import score
from tiejax.models.shapes import Shape

Body = Mapping[str, Any]
FITS = {"all": "difference fitted on the scored pairs, as published", "held_out": "difference fitted on other pairs"}
GREY = "#888888"
CONTROL = "control: not pre-trained"


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


def plot_parameters(body: Body) -> Plot:
    """Plot the score of every shape, and of its control, in rows sorted by the parameters that remain in fine-tuning."""
    parameters = {name: fields["fine_tuning_parameters"] for name, fields in body["shapes"].items()}
    rows = sorted(parameters, key=lambda name: (parameters[name], score(body, name).mean()))
    figure, axes = figures.new_figure(1, 1, 7.2, 0.36 * len(rows) + 1.6)
    panel = axes[0, 0]
    for row, name in enumerate(rows):
        pretrained, control = (score(body, name, start) for start in STARTS)
        panel.plot(control.mean(), row - 0.16, "x", color=GREY, markersize=6, label=None if row else CONTROL)
        panel.plot(pretrained, np.full(len(pretrained), row + 0.16), "|", color=BLUE, markersize=7, alpha=0.6)
        panel.plot(pretrained.mean(), row + 0.16, "o", color=BLUE, markersize=6, label=None if row else "pre-trained")
    numbers = [parameters[name] for name in rows]
    words = [f"{number / 1e6:.3g}M" if number >= 1e6 else f"{number / 1e3:.0f}k" for number in numbers]
    panel.set_yticks(range(len(rows)), [f"{name}, {number}" for name, number in zip(rows, words, strict=True)])
    panel.set_xlabel("score: accuracy on test")
    figures.legend_below(figure, panel)
    return Plot(
        "score_parameters",
        "Score (test accuracy, averaged over tasks) by shape. Rows are sorted by the number of parameters in fine-tuning, "
        "which follows the name. Dots: means over seeds; short lines: seeds. Grey: the mean of the same encoder fine-tuned "
        "without pre-training.",
        figure,
    )


def plot_output_width(body: Body, shapes: Mapping[str, Shape]) -> Plot | None:
    """Plot score, masked accuracy and probe accuracy against E_out, for shapes that differ only in E_out."""
    narrow = roles_of(shapes).get("narrow")
    if narrow is None:
        return None
    like = shapes[narrow]
    names = [
        name
        for name, shape in sorted(shapes.items(), key=lambda item: item[1].embed_out)
        if not shape.coupled and shape == Shape(like.embed_in, shape.embed_out, like.width, like.layers, like.heads)
    ]
    widths = [shapes[name].embed_out for name in names]
    panels = {
        "score on test": [[score(body, name, start) for name in names] for start in STARTS],
        "accuracy at masked tokens": [[np.array(body["pretraining"][name]["accuracy"]) for name in names]],
    }
    if mixes := body["layer_mix"]:
        by_start = [[np.array(mixes[name][start]["test_accuracy"]) for name in names] for start in STARTS]
        panels["probe on a mix of frozen layers"] = by_start
    figure, axes = figures.grid(len(panels), 3, 3.4, 3.0, below=0.3)
    for panel, (title, by_start) in zip(axes, panels.items(), strict=True):
        for values, colour, label in zip(by_start, (BLUE, GREY), ("pre-trained", CONTROL), strict=False):
            figures.plot_seeds(panel, np.array(widths), np.stack(values, axis=1), colour, label)
        panel.set_xscale("log", base=2)
        panel.set_xticks(widths, [f"{width:g}" for width in widths])
        panel.minorticks_off()
        panel.set_xlabel("width of the output embedding, E_out")
        panel.set_title(title)
    figures.legend_below(figure, axes[0])
    return Plot(
        "output_width",
        "Effect of the width of the output embedding, which fine-tuning discards, on the score, the accuracy at masked tokens "
        "and a linear probe. Thin: a seed; thick: median. Grey: without pre-training.",
        figure,
    )


def _style(number: int) -> dict[str, Any]:
    """Return the style of the line of a shape, the same in all figures with a line for each shape."""
    return {"linestyle": "-" if number < len(SERIES) else "--", "color": SERIES[number % len(SERIES)]}


def _plot_level(panel: Axes, level: float, words: str, colour: str) -> None:
    """Plot a horizontal line with words at its right end."""
    panel.axhline(level, color=colour, linewidth=1, linestyle=":")
    panel.annotate(words, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)


def plot_dropped(body: Body) -> Plot | None:
    """Plot the score with top layers dropped against the number of remaining layers, a line per shape."""
    if not any(body["dropped"].values()):
        return None
    task, ticks = body["scores"][body["drop_task"]], set[int]()
    figure, axes = figures.new_figure(1, 1, 7.2, 3.8)
    panel = axes[0, 0]
    for number, (name, by_number) in enumerate(body["dropped"].items()):
        fields = body["shapes"][name]
        layers = fields["layers"] - fields.get("drop", 0)
        means = {layers - int(dropped): np.mean(scores["pretrained"]["test_accuracy"]) for dropped, scores in by_number.items()}
        means[layers] = np.mean(task[name]["pretrained"]["test_accuracy"])
        left = sorted(means)
        panel.plot(left, [means[layer] for layer in left], marker="o", markersize=4, label=name, **_style(number))
        ticks |= means.keys()
    _plot_level(panel, float(np.mean([task[name]["control"]["test_accuracy"] for name in body["dropped"]])), CONTROL, GREY)
    panel.set_xticks(sorted(ticks))
    panel.set_xlabel("layers left")
    panel.set_ylabel("accuracy on test")
    figures.legend_below(figure, panel)
    return Plot(
        "dropped_layers",
        f"Test accuracy of {body['drop_task']} with top layers dropped before fine-tuning: means over seeds. Dotted: mean of "
        "the controls, with all layers and without pre-training.",
        figure,
    )


def plot_retrieval(body: Body) -> Plot | None:
    """Plot retrieval of parallel sentences by layer, a panel per way to fit the difference between the languages."""
    if not body["retrieval"]:
        return None
    figure, axes = figures.grid(len(FITS), 2, 4.6, 3.2, below=0.4)
    for panel, (fit, title) in zip(axes, FITS.items(), strict=True):
        for number, (name, found) in enumerate(body["retrieval"].items()):
            means = np.mean(found[fit]["pretrained"], axis=0)
            panel.plot(np.arange(len(means)), means, label=name, marker="o", markersize=3, **_style(number))
        controls = [np.mean(found[fit]["control"], axis=0) for found in body["retrieval"].values()]
        most = max(map(len, controls))
        deepest = np.mean([control for control in controls if len(control) == most], axis=0)
        panel.plot(np.arange(most), deepest, ":", color=GREY, label=CONTROL)
        panel.set_xlabel("layer (0: before the first)")
        panel.set_ylabel("retrieval accuracy")
        panel.set_title(title)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    figures.legend_below(figure, axes[0])
    return Plot(
        "retrieval",
        "How often the mean hidden state of a sentence, plus the mean difference between the two languages, is nearest to that "
        "of its translation, after each layer: means over seeds. Dotted: the deepest encoders without pre-training.",
        figure,
    )


def plot_similarity(body: Body) -> Plot | None:
    """Plot the word similarity of the tables of each shape: every seed, and the mean as a bar."""
    if not body["similarity"]:
        return None
    figure, axes = figures.new_figure(1, 1, 7.2, 3.4)
    panel = axes[0, 0]
    for column, found in enumerate(body["similarity"].values()):
        for table, colour, side in (("input", BLUE, -0.18), ("output", ORANGE, 0.18)):
            if table in found:
                values = np.array(found[table])
                at = column + (side if "output" in found else 0)
                panel.plot(np.full(len(values), at), values, "o", color=colour, alpha=0.5, markersize=3)
                panel.hlines(values.mean(), at - 0.14, at + 0.14, color=colour, linewidth=2.5)
    panel.set_xticks(range(len(body["similarity"])), list(body["similarity"]), rotation=30, ha="right")
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set_ylabel("correlation with human judgement")
    handles = [panel.plot([], [], color=colour, linewidth=2.5)[0] for colour in (BLUE, ORANGE)]
    figure.legend(handles, ["input embedding", "output embedding"], loc="outside lower center", ncols=2, frameon=False)
    return Plot(
        "word_similarity",
        "Spearman correlation of human judgements with dot products of word vectors: every seed, and the mean as a bar. A "
        "coupled table is both input and output.",
        figure,
    )


def plot_pretraining(body: Body, metrics: Mapping[str, np.ndarray]) -> Plot | None:
    """Plot the validation loss of each shape over pre-training, as means over seeds, beside unigram and bigram models."""
    if not body["pretraining"]:
        return None
    entropy, bigram, losses = body["unigram_entropy"], body["gate"]["bigram"], metrics["validation_loss"]
    figure, axes = figures.new_figure(1, 1, 7.2, 3.8)
    panel = axes[0, 0]
    for number, (name, values) in enumerate(zip(metrics["shapes"].tolist(), losses, strict=True)):
        panel.plot(metrics["validation_step"], values.mean(0), label=name, **_style(number))
    _plot_level(panel, entropy, "unigram entropy", GREEN)
    _plot_level(panel, bigram, "bigram", "black")
    shown = losses[..., 1:].ravel()
    panel.set_ylim(min(shown.min(), bigram, entropy) - 0.1, max(np.quantile(shown, 0.98), bigram, entropy) + 0.2)
    figures.thousands(panel)
    panel.set_ylabel("validation loss (nats per masked token)")
    figures.legend_below(figure, panel)
    return Plot(
        "pretraining",
        "Validation loss at masked tokens over pre-training: means over seeds, all shapes on the same batches and masks. "
        "Dotted: the loss of a model that knows only token frequencies, and that of the best bigram model of the sentences "
        "that pre-training reads.",
        figure,
    )
