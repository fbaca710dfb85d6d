"""The figures of a dose-and-response run of EXor, from plain arrays."""

import numpy as np

from tiejax.lab.reporting.plot import Plot
from tiejax.lab.studies.exor.dose_response import Responses
from tiejax.lab.studies.exor.figures import plot_dose_cost, plot_dose_gap
from tiejax.statistics.arms import ARMS


def plot_doses(responses: Responses) -> list[Plot]:
    """Plot the gap against its bound, and the price of tying against the dose."""
    bound, doses, solved = responses.bound, responses.doses, responses.solved

    def sorted_by(x: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
        return {name: values[np.argsort(x), arm] for arm, name in enumerate(ARMS)}

    return [
        Plot(
            "dose_gap",
            "How far apart the output table holds the two spellings of 0: the smallest |e1 - e2| |h| over contexts, against "
            "what the conflict asks of an optimal model (dashed). One dot a seed, filled where it solved the task; line: "
            "median of the solved.",
            plot_dose_gap(np.sort(bound), sorted_by(bound, responses.gap), sorted_by(bound, solved)),
        ),
        Plot(
            "dose_cost",
            "Exact cross-entropy of the training split over Bayes, and what tying costs, against the probability p of the "
            "first spelling of 0. One dot a seed; line: median; bottom right: share of seeds within .1 nat of Bayes.",
            plot_dose_cost(np.sort(doses), sorted_by(doses, responses.excess), sorted_by(doses, solved)),
        ),
    ]
