"""The untie curve against numpy and scipy: means, bands, shares of solved seeds, claims."""

import numpy as np
import pytest
from scipy import stats

from tiejax.statistics import untie_curve
from tiejax.statistics.claims import assess
from tiejax.statistics.untie_arms import BASELINES, Arms
from tiejax.statistics.untie_curve import Finals

STEPS = [0, 25, 50, 75, 100]


def losses(seeds=12, best=50):
    """Return losses with a minimum at step `best`, highest if always tied; most noise is common to all arms of a seed."""
    rng = np.random.default_rng(0)
    arms = Arms.of([25, 0.5, 0.75, 0, 1.0], 100, ["copy"])
    base = {-1: 0.9, 0: 1.0, 100: 1.2} | {step: 0.5 + abs(step - best) / 100 for step in (25, 50, 75)}
    own = rng.normal(size=seeds)
    return arms, np.array([base[step] + own + 0.01 * rng.normal(size=seeds) for step in arms.step.tolist()])


def analysed(arms, loss, solved=None, others=(), diverged=None):
    diverged = np.zeros(loss.shape, bool) if diverged is None else diverged
    return untie_curve.analyse(arms, Finals(loss, diverged, solved, dict(others)), "loss", 0.05)


def test_means_shares_and_claims():
    arms, loss = losses()
    solved = loss < 1
    body = analysed(arms, loss, solved, {"twice": 2 * loss})
    (curve,) = body["curves"]
    assert (curve["curve"], curve["steps"]) == ("copy", STEPS)
    rows = {row["id"]: row for row in body["claims"]}
    assert set(rows) == set(curve["claims"].values()) == {f"untying-helps/{base}/copy" for base in BASELINES}
    # The losses at the inner steps are 0.75, 0.5 and 0.75.
    for base, gain in {"tied": 2 / 3 - 1.2, "equal": 2 / 3 - 1, "independent": 2 / 3 - 0.9}.items():
        row, number = rows[f"untying-helps/{base}/copy"], arms.baseline(base)
        assert (row["verdict"], row["family"], row["margin"]) == ("supported", "registered", 0.05)
        assert row["estimate"] == pytest.approx(gain, abs=0.02)
        assert row["estimate"] == pytest.approx(np.mean([loss[arm] - loss[number] for arm in (3, 4, 5)]), rel=1e-12)
        means = [np.mean(loss[arm] - loss[number]) for arm in (3, 4, 5)]
        np.testing.assert_allclose([point["estimate"] for point in curve["against"][base]], means)
    point, tied = curve["points"][2], body["ends"]["tied"]
    assert point["mean"] == pytest.approx(loss[4].mean())
    assert point["solved"] == solved[4].sum()
    share = stats.binomtest(point["solved"], 12).proportion_ci(1 - 0.05 / 6, "wilson")
    assert point["solved_band"] == [share.low, share.high]
    assert tied["means"]["twice"] == pytest.approx(2 * loss[2].mean())
    assert tied["words"] == "always tied"


def flipped_band(differences):
    """The band from the definition: the largest |t| over all 2^n sign flips of the centred curves."""
    seeds = differences.shape[1]
    centred = differences - differences.mean(1, keepdims=True)
    largest = []
    for flip in range(2**seeds):
        signs = np.array([-1 if flip >> seed & 1 else 1 for seed in range(seeds)])
        flipped = centred * signs
        error = flipped.std(1, ddof=1) / np.sqrt(seeds)
        largest.append(np.max(np.abs(flipped.mean(1)) / error))
    half = np.quantile(largest, 0.95, method="higher") * differences.std(1, ddof=1) / np.sqrt(seeds)
    return differences.mean(1) - half, differences.mean(1) + half


def test_bands_hold_for_all_arms_at_once():
    arms, loss = losses(seeds=7)
    body = analysed(arms, loss)
    low, high = flipped_band(loss)
    for place, arm in enumerate((1, 3, 4, 5, 2)):
        np.testing.assert_allclose(body["curves"][0]["points"][place]["band"], [low[arm], high[arm]], rtol=1e-6)
    np.testing.assert_allclose(body["ends"]["independent"]["band"], [low[0], high[0]], rtol=1e-6)
    low, high = flipped_band(loss[3:] - loss[0])
    bands = [point["band"] for point in body["curves"][0]["against"]["independent"]]
    np.testing.assert_allclose(bands, np.stack([low, high], 1), rtol=1e-6)
    assert "p" not in body["curves"][0]["against"]["independent"][0]  # single steps are not tested


def test_one_seed_has_no_bands_and_decides_nothing():
    arms, loss = losses(seeds=1)
    body = analysed(arms, loss)
    assert np.isnan(body["ends"]["tied"]["band"]).all()
    assert {row["verdict"] for row in body["claims"]} == {"undecided"}
    assert all("1 seed cannot decide" in row["note"] for row in body["claims"])


def test_a_diverged_member_has_the_highest_loss_of_its_arm_and_solved_nothing():
    arms, loss = losses()
    diverged = np.zeros(loss.shape, bool)
    diverged[4, 3] = True
    broken = np.where(diverged, np.nan, loss)
    body = analysed(arms, broken, np.ones(loss.shape, bool), diverged=diverged)
    highest = loss[~diverged].max()
    point = body["curves"][0]["points"][2]
    assert len(point["loss"]) == 12
    assert point["loss"][3] >= highest
    assert np.delete(point["loss"], 3).tolist() == np.delete(loss[4], 3).tolist()
    assert (point["solved"], body["ends"]["tied"]["solved"]) == (11, 12)
    assert {row["n"] for row in body["claims"]} == {12}
    for broken_in, expected in ((diverged, 1.0), (diverged & False, 2.0**-12)):  # a margin that bounds all finite differences
        rows = assess(untie_curve.claims(arms, np.where(broken_in, np.nan, loss), broken_in, "loss", 1e3))
        assert {row["equivalence"]["p"] for row in rows if row["id"].endswith("/copy")} == {expected}


def test_claims_do_not_select_a_step():
    """The best step of each seed is random, and no step is better than another: untying neither helps nor harms."""
    rng, arms = np.random.default_rng(3), Arms.of(list(range(1, 21)), 21, ["copy"])
    low = []
    for _ in range(40):
        loss = rng.exponential(size=(len(arms.step), 12))
        rows = assess(untie_curve.claims(arms, loss, np.zeros(loss.shape, bool), "loss", 0.05))
        low += [row["p"] < 0.05 for row in rows if row["id"].startswith("untying-helps/tied")]
    assert len(low) == 40
    # The mean of 20 exponential values minus one of them has mean 0, and is slightly skewed.
    assert sum(low) <= 8


@pytest.mark.parametrize("effect", [0.0, 0.3, 1.0])
def test_claims_are_decided_if_their_adjusted_interval_excludes_0(effect):
    rng = np.random.default_rng(5)
    arms = Arms.of([25, 50], 100, ["copy", "zero", "split"])
    loss = rng.normal(size=(len(arms.step), 14)) + effect * (arms.policy != "")[:, None]
    for row in analysed(arms, loss)["claims"]:
        low, high = row["interval_adjusted"] or (None, None)
        excludes = (low is not None and low > 0) or (high is not None and high < 0)
        assert row["verdict"] != "undecided" or not excludes, row
