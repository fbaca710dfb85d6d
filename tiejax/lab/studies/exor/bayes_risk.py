"""The Bayes predictor of EXor: the accuracy and the cross-entropy that no model can beat."""

import math

import numpy as np
from jaxtyping import Int

from tiejax.lab.studies.exor.task import EXor


def bayes_risk(task: EXor, rows: Int[np.ndarray, "strings bits"]) -> tuple[float, float]:
    r"""Return the accuracy and the cross-entropy (nats) of the Bayes predictor on these strings.

    The other bits and the parity fix the masked bit b, so p(symbol | context) is the distribution that spells b:

        accuracy = E_b[max_s p(s | b)],    cross-entropy = E_b[-sum_s p(s | b) ln p(s | b)],

    with b uniform over all positions of all strings. NaN for an empty split.
    """
    if len(rows) == 0:
        return math.nan, math.nan
    share_one = float(rows.mean())
    accuracy = cross_entropy = 0.0
    for share, probabilities in ((1 - share_one, task.zero), (share_one, task.one)):
        accuracy += share * max(probabilities)
        cross_entropy -= share * sum(p * math.log(p) for p in probabilities if p > 0)
    return accuracy, cross_entropy
