"""The claim across runs with tables of several sizes, on made-up losses."""

import math

import numpy as np
import pytest

from tiejax.lab.studies.causal_untying.claims import claims_across as claims
from tiejax.statistics.claims import assess

SEEDS = 10
RATIOS = {(1024, 48): 0.02, (1024, 128): 0.01, (8192, 48): 0.06, (8192, 128): 0.05}  # (V, d) -> gap in bits a byte


def run(vocabulary, width, gap, bytes_per_token=2.5, failed="", steps=100):
    rng = np.random.default_rng(vocabulary + width)
    never = rng.normal(3, 0.1, SEEDS)
    tied = never + (gap + rng.normal(0, 0.001, SEEDS)) * (bytes_per_token or 1) * math.log(2)
    results = {
        "seeds": list(range(SEEDS)),
        "steps": steps,
        "data": {"vocabulary": vocabulary},
        "bytes_per_token": bytes_per_token,
        "gate": {"failed": failed},
        "arms": {"tied": {"loss": tied.tolist()}, "never-independent": {"loss": never.tolist()}},
    }
    return {"width": width}, results


def test_the_slope_is_that_of_numpy():
    runs = [run(*corner, gap, bytes_per_token=2 + corner[0] / 8192) for corner, gap in RATIOS.items()]
    (row,) = assess(claims(runs))
    x = [math.log(vocabulary / width) for vocabulary, width in RATIOS]
    assert row["estimate"] == pytest.approx(np.polyfit(x, list(RATIOS.values()), 1)[0], abs=1e-3)
    assert (row["id"], row["verdict"], row["n"]) == ("corner", "supported", SEEDS)


@pytest.mark.parametrize("change", [{"failed": "No claim is tested, since ..."}, {"steps": 200}])
def test_runs_that_cannot_be_compared_are_not_tested(change):
    runs = [run(1024, 48, 0.02), run(8192, 48, 0.06, **change)]
    assert assess(claims(runs))[0]["verdict"] == "exploratory"


def test_runs_of_one_size_make_no_claim():
    assert claims([run(1024, 48, 0.02), run(1024, 48, 0.02)]) == []
    assert claims([run(1024, 48, 0.02), run(8192, 48, 0.02, bytes_per_token=None)]) == []
