"""The figures of an EXor run are not blank."""

import numpy as np
import pytest
from pictures import curves, is_a_picture

from tiejax.lab.reporting.figures import save
from tiejax.lab.studies.exor import figures
from tiejax.lab.studies.exor.dose_page import plot_dose_cost, plot_dose_gap
from tiejax.lab.studies.exor.dose_response import Responses
from tiejax.lab.studies.exor.task import EXor

pytestmark = pytest.mark.usefixtures("drawn")


def plotted():
    steps, values = curves()
    both = np.stack([values, values * 1.1])
    table = {"zero": both, "one": both * 0.5, "even_odd": both * 2}
    labels = {"zero": "zero pair (DH fails)", "one": "one pair (DH holds)"}
    risk = {"cross_entropy": both, "accuracy": both / 4}
    best = {split: {"cross_entropy": 0.5, "accuracy": 0.7} for split in ("train", "validation")}
    both_tables = {"input": table, "output": table}
    return [
        *figures.plot_distances(steps, both_tables, labels),
        figures.plot_relative_distances(steps, both_tables, labels),
        figures.plot_learning(steps, {name: np.stack([a] * 3, -1) for name, a in risk.items()}, steps, risk, best),
        figures.plot_learning(steps, {}, steps, risk, best),
    ]


@pytest.mark.slow
def test_figures_are_saved_as_png_and_pdf(tmp_path):
    for number, plot in enumerate(plotted()):
        assert is_a_picture(save(plot.figure, tmp_path, f"{plot.name}{number}"))


@pytest.mark.parametrize("plot", [plot_dose_gap, plot_dose_cost])
def test_dose_figures_are_saved(tmp_path, plot):
    values = np.array([[[0.1, 0.2], [0.2, 0.3]], [[0.3, 0.4], [0.4, 0.5]]])
    solved = np.array([[[True, False], [False, False]], [[True, True], [False, False]]])
    responses = Responses(np.array([0.5, 0.9]), np.array([0.0, 2.2]), values, values, solved)
    assert is_a_picture(save(plot(responses).figure, tmp_path, "doses"))


def test_figure_of_plateaus_is_saved(tmp_path):
    losses = {"untied": np.array([[1.2, 0.5], [1.2, 1.2]]), "tied": np.array([[1.2, 0.9], [1.2, np.nan]])}
    levels = [{"knows": name, "loss": loss} for name, loss in (("all", 0.5), ("some", 0.7), ("nothing", 1.2))]
    plot = figures.plot_plateaus(np.array([0, 10]), losses, levels)
    labels = plot.figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["0.50: all", "1.20: nothing", "rarer plateaus", "none"]
    assert is_a_picture(save(plot.figure, tmp_path, "plateaus"))


def test_symbol_names():
    assert EXor(7, (0.1, 0.9), (0.2, 0.3, 0.5)).names == ["0a", "0b", "1a", "1b", "1c", "even", "odd", "mask"]
    assert len(set(EXor(7, (1 / 40,) * 40).names)) == 45
