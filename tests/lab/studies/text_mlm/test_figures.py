"""Tests of the text study's figures."""

import numpy as np
import pytest
from text_metrics import DECAY, GATE, metrics_of

from tiejax.lab.reporting import figures
from tiejax.lab.studies.text_mlm.claims import analyse
from tiejax.lab.studies.text_mlm.figures import plot_all, plot_learning, shades


@pytest.mark.slow
def test_figures_show_every_pair_seed_and_bucket(tmp_path, drawn):
    metrics = metrics_of(seeds=4)
    body, runs = analyse(metrics, DECAY, GATE)
    shown = {plot.name: plot.figure for plot in plot_all(runs, body)}
    assert list(shown) == [
        "distance", "distance_published", "distance_ratio", "learning", "buckets", "uses",
    ]  # fmt: skip
    panels = shown["distance"].axes
    assert [panel.get_title() for panel in panels] == ["untied, input", "untied, output", "tied"]
    assert [len(panel.lines) for panel in panels] == [82 + 3] * 3
    np.testing.assert_allclose(panels[1].lines[0].get_ydata(), np.median(metrics["distance_output"][0, :, :, 0], axis=0))
    np.testing.assert_allclose(panels[2].lines[0].get_ydata(), np.median(metrics["distance_input"][1, :, :, 0], axis=0))
    assert panels[0].get_ylim()[0] == 0
    labels = [text.get_text() for text in shown["distance"].legends[0].get_texts()]
    assert labels == ["twins .5 (DH holds)", "twins .1 (DH fails)", "unrelated"]

    twins = shown["distance_published"].axes[0].lines[0]
    np.testing.assert_allclose(twins.get_ydata(), metrics["distance_input"][0, 0, :, :30].mean(1))
    top = 1.1 * metrics["distance_input"][0, 0, :, 42:].mean(1).max()
    assert shown["distance_published"].axes[0].get_ylim() == (0, pytest.approx(max(5, top)))

    learning = shown["learning"].axes
    assert [len(panel.lines) for panel in learning] == [2 * (4 + 1) + 1, *[2 * (4 + 1)] * 3]
    bigram = learning[0].lines[-1]
    assert (set(bigram.get_ydata()), bigram.get_linestyle()) == ({GATE.bigram}, ":")
    assert learning[0].get_ylim()[0] < GATE.bigram < learning[0].get_ylim()[1]
    assert [text.get_text() for text in learning[0].texts] == [f"bigram {GATE.bigram:.4f}"]
    assert len(shown["buckets"].axes) == 4
    cost = shown["buckets"].axes[2].lines[0].get_ydata().reshape(4, 3)
    np.testing.assert_allclose(cost[:, 0], np.subtract(*metrics["validation_loss"][::-1, :, -1]))
    assert np.isnan(cost[:, 1]).all()
    strips = shown["distance_ratio"].axes[0].lines
    assert [len(line.get_ydata()) for line in strips[:3]] == [30, 12, 40]
    for name, figure in shown.items():
        assert figures.save(figure, tmp_path, name).stat().st_size > 10_000


def test_sets_of_a_kind_differ_in_shade():
    blues = shades(figures.BLUE, 3)
    assert blues[0].upper() == figures.BLUE
    assert len(set(blues)) == 3


def test_constant_curves_are_drawn():
    """A tiny run may have an accuracy of 0 at every record."""
    metrics = metrics_of(seeds=1)
    metrics["validation_accuracy"][:] = 0
    found, runs = analyse(metrics, DECAY, GATE)
    assert not plot_learning(runs, np.nan).figure.axes[1].lines[0].get_ydata().any()
    assert found["final"]["tied"]["validation_accuracy"] == [0]
