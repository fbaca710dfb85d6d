"""Figures shared by several studies: they are not blank, and show the expected curves."""

import resource

import numpy as np
import pytest
from pictures import curves, is_a_picture

from tiejax.lab.reporting import figures, untie_curve
from tiejax.lab.reporting.uses import plot_uses, uses_table

STEPS, VALUES = curves()
pytestmark = pytest.mark.usefixtures("drawn")

ARMS = {"untied": VALUES, "tied": VALUES * 1.1}
COPY, UNTIED_AT = {"copy": np.arange(3)}, np.array([0, 50, 100])
SOLVED = {"loss": [0.9, 1.1], "mean": 1.0, "band": [0.9, 1.1], "solved": 1, "solved_band": [0.1, 0.9]}
NORMS = np.stack([VALUES, VALUES * 2])
USES = {
    "arms": np.array(["untied", "tied"]),
    "step": STEPS,
    "use_ratio": NORMS,
    "use_cosine": NORMS,
    "use_bucket_input": NORMS[..., None] * [3.0, 0.0],
    "use_bucket_output": NORMS[..., None] * [6.0, 1.0],
}
ROWS = [
    {"from": 0, "to": 1, "published": None, "untied": {"ratio": 2.0, "share": 0.667, "cosine": 0.5}},
    {"from": 10, "to": 100, "published": 10.0, "untied": {"ratio": 4.0, "share": 0.8, "cosine": -0.5}},
    {"from": 10_000, "to": None, "published": None, "untied": {"ratio": 1.0, "share": 0.5, "cosine": 0.0}},
]


def plot_curve(independent, bayes, bigram=None):
    """The figure of an untie curve, whose last point has no band."""
    last = independent | {"mean": 1.2, "band": [np.nan, np.nan]}
    body = {"curves": [{"curve": "copy", "points": [independent, independent, last]}], "ends": {"independent": independent}}
    return untie_curve.plot_curve(body, "loss", COPY, UNTIED_AT, bayes, bigram).figure


PLOTTED = {
    "learning": lambda: figures.plot_learning_curves({"loss": (STEPS, ARMS, 0.5), "accuracy": (STEPS, ARMS, np.nan)}),
    "pairs": lambda: figures.plot_paired_values({"loss": (VALUES[:, -1], VALUES[:, -2])}, ("untied", "tied")),
    "untie curve": lambda: plot_curve(SOLVED, 0.4),
    "untie curve of one seed": lambda: plot_curve({"loss": [1.0], "mean": 1.0, "band": [np.nan, np.nan]}, None),
    "trajectories": lambda: (
        untie_curve.plot_trajectories(STEPS, VALUES[:3, None], {"copy": np.array([0, 1])}, UNTIED_AT, "loss", 0.5).figure
    ),
    "uses": lambda: plot_uses(USES, ["zero", "one"], ROWS).figure,
}


def test_losses_of_references_are_lines_with_names():
    """Dashed: the Bayes loss; dotted: that of a bigram model; in the curve and in the trajectories of a run that unties."""
    trajectories = untie_curve.plot_trajectories(
        STEPS, VALUES[:3, None], {"copy": np.array([0, 1])}, UNTIED_AT, "loss", 0.5, 0.7
    )
    for figure in (plot_curve(SOLVED, 0.5, 0.7), trajectories.figure):
        lines = {line.get_label(): line for line in figure.axes[0].lines}
        assert {name: (lines[name].get_ydata()[0], lines[name].get_linestyle()) for name in ("Bayes", "bigram")} == {
            "Bayes": (0.5, "--"),
            "bigram": (0.7, ":"),
        }
        assert "bigram" in [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("name", list(PLOTTED))
def test_figures_are_saved_as_png_and_pdf(tmp_path, name):
    assert is_a_picture(figures.save(PLOTTED[name](), tmp_path, "figure"))


@pytest.mark.parametrize("limit", [0, 100, 4096])
@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_a_disk_that_fills_is_an_error_of_the_system(tmp_path, ending, limit):
    """A limit on the size of files acts like a full disk, at which matplotlib raises AttributeError while it writes a PDF."""
    if ending == "pdf":
        (tmp_path / "figure.png").symlink_to("/dev/null")  # to which the limit does not apply
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            figures.save(PLOTTED["pairs"](), tmp_path, "figure")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert error.value.filename == str(tmp_path / f"figure.{ending}")


def test_uses_are_shown_with_the_published_ratios():
    """A bucket of symbols that are never inputs has no ratio, and a logarithmic axis no step 0."""
    ratio, _, buckets = plot_uses(USES, ["zero", "one"], ROWS).figure.axes
    assert np.isnan(ratio.lines[0].get_xdata()[0])
    heights = [bar.get_height() for bar in buckets.patches]
    np.testing.assert_allclose(heights, [2, np.nan, 2, np.nan])
    ((columns, rows),) = uses_table(ROWS, ["untied"]).values()
    assert columns == [
        "steps",
        "output / input, untied",
        "share of the output use, untied",
        "cosine, untied",
        "OLMo-1B, published",
    ]
    assert rows == [
        ["0", "2", "67 %", "0.5", "-"],
        ["10 to 99", "4", "80 %", "-0.5", "10"],
        ["10,000 to the end", "1", "50 %", "0", "-"],
    ]
    assert uses_table([], ["untied"]) == {}


def test_many_records_are_subsampled_at_every_scale():
    """A million records per line would fill the memory; linear and logarithmic axes both stay covered, with correct steps."""
    steps = 10 * np.arange(10**5)
    _, axes = figures.new_figure(1, 1, 3, 3)
    figures.plot_seeds(axes[0, 0], steps, np.stack([steps, 3 * steps]), figures.BLUE, "untied")
    first, second, median = axes[0, 0].lines
    drawn = first.get_xdata()
    assert len(drawn) <= 2001
    np.testing.assert_array_equal(first.get_ydata(), drawn)
    np.testing.assert_array_equal(second.get_ydata(), 3 * drawn)
    np.testing.assert_array_equal(median.get_ydata(), 2 * drawn)
    assert drawn[[0, 1, 2, -1]].tolist() == [0, 10, 20, 999_990]
    assert np.diff(drawn).max() <= 10**6 / 900
    later = drawn[drawn >= 10_000]
    assert (later[1:] / later[:-1]).max() < 1.02
    assert [text.get_text() for text in axes[0, 0].texts] == [f"{len(drawn)} of 100000 records drawn"]


@pytest.mark.parametrize(("seeds", "note"), [(64, []), (200, ["64 of 200 seeds drawn"])])
def test_many_seeds_are_subsampled_but_all_enter_the_median(seeds, note):
    _, axes = figures.new_figure(1, 1, 3, 3)
    values = np.arange(seeds)[:, None] * np.array([1.0, 2.0, 3.0])
    for name in ("untied", "tied"):
        figures.plot_seeds(axes[0, 0], np.arange(3), values, figures.ARM_COLOURS[name], name)
    assert len(axes[0, 0].lines) == 2 * (64 + 1)
    drawn = [line.get_ydata()[0] for line in axes[0, 0].lines[:64]]
    assert (drawn[0], drawn[-1], len(set(drawn))) == (0, seeds - 1, 64)
    (median,) = (line for line in axes[0, 0].lines if line.get_label() == "untied")
    np.testing.assert_array_equal(median.get_ydata(), (seeds - 1) / 2 * np.array([1.0, 2.0, 3.0]))
    assert [text.get_text() for text in axes[0, 0].texts] == note


def test_each_box_of_a_panel_contains_its_axes_and_no_other(tmp_path):
    figure, axes = figures.grid(3, 3, 3.0, 2.5, below=0.3)
    for number, panel in enumerate(axes):
        panel.plot([0, 1], [0, 1], label="line")
        panel.set_title(f"panel {number}")
        panel.set_ylabel("distance")
    figures.legend_below(figure, axes[0])
    figures.save(figure, tmp_path, "figure")
    boxes = figures.panel_boxes(figure)
    width, height = figure.canvas.get_width_height()
    assert len(boxes) == 4  # three panels and the legend
    for panel, (left, top, wide, high) in zip(axes, boxes, strict=False):
        data = panel.get_window_extent()
        assert left < data.x0 < data.x1 <= left + wide
        assert top < height - data.y1 < height - data.y0 < top + high
        others = [other.get_window_extent() for other in axes if other is not panel]
        assert all(other.x1 <= left or left + wide <= other.x0 for other in others)
    left, top, wide, high = boxes[3]
    assert top >= max(height - panel.get_window_extent().y0 for panel in axes)
    assert top + high <= height + figures.MARGIN
    assert 0 <= left < left + wide <= width


def test_panels_that_are_incomplete_by_themselves_have_no_boxes():
    one, _ = figures.grid(1, 1, 3.0, 2.5)
    assert figures.panel_boxes(one) == []
    shared, _ = figures.new_figure(1, 2, 6.0, 2.5, share_y=True)
    assert figures.panel_boxes(shared) == []  # the second panel has no tick labels


def test_text_in_a_figure_is_shown_as_it_is(tmp_path):
    figure, axes = figures.grid(1, 1, 4, 3)
    names = ["$x$", r"$\frac$", "a\x1b\x07b", "\udcff", "\u65e5"]
    axes[0].set_yticks(range(len(names)), names)
    axes[0].plot([0, 1], [0, 4], label="$y$")
    axes[0].set_title("$z$\nbelow")
    axes[0].set_xscale("log")  # whose labels are mathematics
    figures.legend_below(figure, axes[0])
    figures.save(figure, tmp_path, "names")
    shown = [label.get_text() for label in axes[0].get_yticklabels()]
    assert shown == [r"\$x\$", r"\$\frac\$", r"a\x1b\x07b", r"\udcff", "\u65e5"]
    assert axes[0].get_title() == "\\$z\\$\nbelow"
    assert axes[0].get_legend_handles_labels()[1] == ["$y$"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [r"\$y\$"]
    assert any(label.get_text().startswith("$") for label in axes[0].get_xticklabels())
