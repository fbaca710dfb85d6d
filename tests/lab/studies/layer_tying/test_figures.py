"""Tests of the layer-tying figures, read off their artists."""

import numpy as np
import pytest
from layer_runs import LAYERS, METHODS, SIZES, TOKENS_PER_WORD, run

from tiejax.lab.studies.layer_tying import figures, settings
from tiejax.lab.studies.layer_tying.analysis import analyse


def test_figures_show_the_maps_and_every_seed():
    findings, runs = analyse(run(), SIZES, TOKENS_PER_WORD)
    shown = {plot.name: plot.figure for plot in figures.plot_all(runs, findings)}
    assert list(shown) == ["bytes", "map", "learning", "agent"]
    dots = {line.get_label(): line for line in shown["bytes"].axes[0].lines[:3]}
    np.testing.assert_allclose(dots["agent"].get_ydata(), np.log([4, 4]))
    np.testing.assert_allclose(dots["agent"].get_xdata(), np.array([520, 440]) / 2**20)
    panels = shown["map"].axes
    assert [panel.get_title() for panel in panels[:2]] == ["seed 3", "seed 5"]
    # Rows are layers, columns episodes.
    np.testing.assert_array_equal(panels[0].collections[0].get_array(), [[0, 0], [0, 1], [2, 2], [0, 0]])
    assert panels[0].get_xlim() == (0.5, 2.5)
    assert panels[0].collections[0].get_cmap().N == LAYERS
    over_steps, over_time = shown["learning"].axes
    assert len(over_steps.lines) == len(over_time.lines) == 3 * (2 + 1)
    np.testing.assert_allclose(over_time.lines[0].get_xdata(), [2, 4])
    np.testing.assert_allclose(over_steps.lines[5].get_ydata(), np.exp([2.85, 1.85]))  # the agent, the mean of nats
    np.testing.assert_allclose(over_time.lines[5].get_xdata(), [2.5, 5.5])  # 3 and 2 s, 7 and 4 s
    assert [len(panel.lines) for panel in shown["agent"].axes] == [3, 3, 3, 2]


def test_figures_of_losses_have_the_line_of_the_bigram():
    findings, runs = analyse(run(), SIZES, TOKENS_PER_WORD)
    losses = {"test": np.log(32.0), "validation": 3.0, "selection": np.log(64.0)}
    shown = {plot.name: plot for plot in figures.plot_all(runs, findings, {"seed": 3, "losses": losses})}
    for name, panel, value in (("bytes", 0, np.log(32)), ("learning", 0, 64), ("learning", 1, 64)):
        panel = shown[name].figure.axes[panel]
        (line,) = (line for line in panel.lines if line.get_label() == "bigram")
        np.testing.assert_allclose(line.get_ydata(), value)
        assert line.get_linestyle() == ":"
        low, high = panel.get_ylim()
        assert low <= value <= high
        assert "Dotted: a bigram model" in shown[name].caption


@pytest.mark.parametrize("layers", [1, 4, 12, 48])
def test_layers_have_distinct_colours(layers):
    colours = figures.owner_colours(layers).colors
    apart = np.abs(colours[:, None] - colours[None]).max(-1) + np.eye(layers)
    assert apart.min() > 0.01
    # Neighbours must be distinguishable in small cells.
    assert (np.diag(apart, 1) > 0.1).all()


def test_methods_of_almost_equal_bytes_are_drawn_side_by_side():
    shift = figures.side_by_side({"a": 100.0, "b": 50.0, "c": 101.0, "d": 103.0})
    assert shift["b"] == shift["d"] == 1
    assert shift["a"] * shift["c"] == pytest.approx(1)
    assert shift["c"] / shift["a"] == pytest.approx(figures.APART)


def test_methods_keep_their_colours_and_differ():
    names = [*METHODS, *(name for name in settings.METHODS if name not in METHODS), "mine"]
    styles = figures.styles(names)
    assert len({(style.colour, style.line) for style in styles.values()}) == len(names)
    assert styles["agent"] == figures.styles(["agent"])["agent"]


def test_methods_without_a_fixed_map_have_fixed_colours():
    assert set(figures.METHOD_COLOURS) == set(settings.NOT_STATIC)


def test_tie_maps_show_at_most_six_seeds():
    owner = np.zeros((1, 7, 2, 3), int)
    runs = {"seeds": np.arange(7), "agents": np.array(["agent"]), "episode": np.array([1, 2]), "episode_owner": owner}
    plot = figures.plot_tie_maps(runs)
    assert [panel.get_title() for panel in plot.figure.axes if panel.get_title()] == [f"seed {seed}" for seed in range(6)]
    assert "The first 6 of 7 seeds" in plot.caption
