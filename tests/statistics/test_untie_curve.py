"""The untie curve against numpy: best steps, intervals, claims."""

import numpy as np
import pytest

from tiejax.statistics import paired_test, untie_curve
from tiejax.statistics.claims import assess
from tiejax.statistics.untie_arms import BASELINES, Arms

STEPS = [0, 25, 50, 75, 100]


def losses(seeds=12, best=50):
    """Return losses with a minimum at step `best`, highest if always tied; most noise is common to all arms of a seed."""
    rng = np.random.default_rng(0)
    arms = Arms.of([25, 0.5, 0.75, 0, 1.0], 100, ["copy"])
    base = {-1: 0.9, 0: 1.0, 100: 1.2} | {step: 0.5 + abs(step - best) / 100 for step in (25, 50, 75)}
    own = rng.normal(size=seeds)
    return arms, np.array([base[step] + own + 0.01 * rng.normal(size=seeds) for step in arms.step.tolist()])


def test_best_step_and_its_gain():
    arms, loss = losses()
    body = untie_curve.analyse(arms, loss, loss < 1, {"twice": 2 * loss}, "loss")
    (curve,) = body["curves"]
    assert (curve["curve"], curve["best_step"], curve["steps"]) == ("copy", 50, STEPS)
    rows = {row["id"]: row for row in body["claims"]}
    assert set(rows) == {f"untying-helps/{base}/copy" for base in BASELINES}
    # The losses at the inner steps are 0.75, 0.5 and 0.75.
    for base, gain in {"tied": 2 / 3 - 1.2, "equal": 2 / 3 - 1, "independent": 2 / 3 - 0.9}.items():
        row = rows[f"untying-helps/{base}/copy"]
        assert row["verdict"] == "supported"
        assert row["estimate"] == pytest.approx(gain, abs=0.02)
        # The table has the paired difference at every inner step.
        number = arms.baseline(base)
        medians = [np.median(loss[one] - loss[number]) for one in (3, 4, 5)]
        np.testing.assert_allclose([one["estimate"] for one in curve["against"][base]], medians)
    assert curve["points"][2]["median"] == pytest.approx(np.median(loss[4]))
    assert curve["points"][2]["solved"] == int((loss[4] < 1).sum())
    assert body["ends"]["tied"]["medians"]["twice"] == pytest.approx(2 * np.median(loss[2]))


def test_claims_do_not_select_a_step(monkeypatch):
    """The best step of each seed is random, and no step is better than another: untying neither helps nor harms."""
    monkeypatch.setattr(paired_test, "RESAMPLES", 99)  # intervals take most of the time and are not tested
    rng, arms = np.random.default_rng(3), Arms.of(list(range(1, 21)), 21, ["copy"])
    verdicts = []
    for _ in range(40):
        rows = assess(untie_curve.claims(arms, rng.exponential(size=(len(arms.step), 20)), "loss"))
        verdicts += [row["p"] < 0.05 for row in rows if row["id"].startswith("untying-helps/tied")]
    assert len(verdicts) == 40
    # The mean of 20 exponential values minus one of them has mean 0 and a median slightly above 0.
    assert sum(verdicts) <= 8


def test_intervals_of_the_median_cover_it():
    """In 200 samples of 15 normal values, about 95 % of the intervals contain the true median, 0."""
    low, high = untie_curve.median_interval(np.random.default_rng(1).normal(size=(200, 15)))
    assert 0.88 < ((low <= 0) & (high >= 0)).mean() < 0.995
    assert np.isnan(untie_curve.median_interval(np.ones((3, 1)))).all()


def test_interval_of_the_best_step():
    arms, loss = losses(seeds=16)
    numbers = arms.curves()["copy"]
    assert untie_curve.best_step(arms.step[numbers], loss[numbers]) == (50, (50, 50))
    flat = np.random.default_rng(2).normal(size=(5, 16))
    _, (low, high) = untie_curve.best_step(np.array(STEPS), flat)
    assert high - low >= 50
