"""The claims of a comparison with models that diverged."""

import numpy as np
import pytest

from tiejax.lab import tied, untied
from tiejax.lab.comparison.claims import claims
from tiejax.statistics.claims import Claim, assess

UNTIED = 3 + 0.004 * np.random.default_rng(0).normal(size=16)
TIED = 3 + 0.004 * np.random.default_rng(1).normal(size=16)


def own(losses):
    assert np.isfinite(losses["tied"]).all()
    differences = losses["tied"] - losses["untied"]
    return [Claim("free", "Tying is free.", "tied - untied", differences, -1, goal="non-inferiority", margin=0.05)]


@pytest.mark.parametrize("number", [0, 1, 4, 15])
@pytest.mark.parametrize("arm", ["tied", "untied"])
def test_diverged_models_do_not_show_that_losses_differ_by_less_than_a_margin(number, arm):
    losses = {"tied": TIED.copy(), "untied": UNTIED.copy()}
    losses[arm][:number] = np.nan
    families = claims(losses, [tied, untied], 0.05, "nats", own)
    (main,), (mine,) = (assess(families[family]) for family in ("main", "own"))
    expected = "undecided" if number else "supported"
    assert (main["equivalence"]["verdict"], mine["verdict"]) == (expected, expected)
    if number == 15:  # every loss is below those of the diverged models of the other arm
        assert main["verdict"] == ("contradicted" if arm == "tied" else "supported")
