"""The three panels: every seed and the median, or mean and band as in the paper."""

import numpy as np
from pictures import curves

from tiejax.lab.reporting import figures
from tiejax.lab.reporting.figures import plot_three_panels, plot_three_panels_published


def test_figures_show_every_seed_and_the_median():
    steps, values = curves(seeds=5)
    figure = plot_three_panels(steps, {"tied": {"zero pair": values}}, "distance", {"zero pair": figures.BLUE})
    lines = figure.axes[0].lines
    assert len(lines) == 6
    for line, seed in zip(lines[:5], values, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), seed)
    np.testing.assert_array_equal(lines[5].get_ydata(), np.median(values, 0))


def test_published_style_is_mean_and_band_at_every_1000th_step():
    steps, values = curves(seeds=5)
    figure = plot_three_panels_published(steps, {"tied": {"zero pair": values}}, {"zero pair": figures.BLUE})
    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == [step for step in steps if step % 1000 == 0]
    np.testing.assert_allclose(line.get_ydata(), values[:, ::2].mean(0))
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    half = 1.96 * values[:, 0].std(ddof=1) / np.sqrt(5)
    assert np.isclose(band[:, 1][band[:, 0] == 0], values[:, 0].mean() + half).any()
    assert figure.axes[0].get_ylim() == (0, 4)
