"""Tests of the exclusion of non-finite seeds, on tiny arrays."""

import numpy as np
import pytest
from layer_runs import BY_NUMBER, LAYERS, SIZES, TOKENS_PER_WORD, findings_of, run

from tiejax.lab.runs.parts import Looks
from tiejax.lab.studies.layer_tying import figures
from tiejax.lab.studies.layer_tying.analysis import HORIZON, analyse, value_errors
from tiejax.lab.studies.layer_tying.page import tables
from tiejax.statistics.arms import select_seeds
from tiejax.system.json_values import plain


def test_a_seed_with_a_diverged_method_counts_only_in_claims():
    """Seed 9 is added: untied diverges at step 1, all-one at its last validation."""
    whole = run()
    shared = ("methods", "validation_step", "agents", "action_episode", "action_layer", "epsilon")
    metrics = {
        name: values if name in shared else np.concatenate([values[:, :1], values], axis=1)
        for name, values in whole.items()
        if name != "seeds"
    }
    metrics["seeds"] = np.array([9, 3, 5])
    metrics["train_loss"][0, 0, 1:] = np.nan
    metrics["validation_loss"][0, 0, 1:] = np.nan
    metrics["validation_loss"][2, 0, 2] = np.inf
    metrics["test_loss"][0, 0] = np.nan
    findings, runs, _ = findings_of(metrics)
    assert findings["non_finite"] == [
        {"arm": "untied", "seed": 9, "step": 1}, {"arm": "all-one", "seed": 9, "step": 4},
    ]  # fmt: skip
    assert (findings["seeds"], findings["excluded_seeds"]) == ([3, 5], [9])
    expected, finite_runs, _ = findings_of(whole)
    for name in ("methods", "agents", "equal_time_s"):
        assert plain(findings[name]) == plain(expected[name])
    rows = {row["id"]: row for row in findings["claims"]}
    # Both diverged models get the largest test loss, ln 16, of all others; the agent's stayed at 4.
    np.testing.assert_allclose(rows["perplexity/agent"]["differences"], np.log([4 / 16, 4 / 8, 4 / 2]))
    np.testing.assert_allclose(rows["static/all-one"]["differences"], np.log([4 / 16, 4 / 16, 4 / 4]))
    for name, values in finite_runs.items():
        np.testing.assert_array_equal(runs[name], values)


def test_a_method_that_diverges_in_every_seed_counts_as_the_worst():
    metrics = run()
    metrics["train_loss"][0] = np.nan
    metrics["test_loss"][0] = np.nan
    findings, runs = analyse(metrics, SIZES, TOKENS_PER_WORD)
    assert (findings["seeds"], findings["methods"], findings["excluded_seeds"]) == ([], [], [3, 5])
    rows = {row["id"]: row for row in findings["claims"]}
    np.testing.assert_allclose(rows["perplexity/agent"]["differences"], np.log([4 / 16, 4 / 16]))
    assert figures.plot_all(runs, findings) == []


def first_seed_repeated(seeds):
    """Return the arrays of a run whose seeds are all equal."""
    return select_seeds(run(), np.zeros(seeds, int), least_axes=2) | {"seeds": np.arange(seeds)}


def test_verdicts_of_looks_stay():
    """At the first of two looks a difference that is the same in ten seeds is decided; later seeds contradict it."""
    seeds = 16
    many = first_seed_repeated(seeds)
    many["test_loss"] = np.stack([np.full(seeds, 3.0), np.where(np.arange(seeds) < 10, 2.0, 9.0), np.full(seeds, 4.0)])
    findings, _ = analyse(many, SIZES, TOKENS_PER_WORD, {}, Looks([10, 16], [10, 16]))
    row = {row["id"]: row for row in findings["claims"]}["perplexity/agent"]
    assert (row["verdict"], row["look"], row["n"], row["estimate"]) == ("supported", 10, 16, (-10 + 6 * 6) / 16)


def test_a_diverged_model_of_the_first_look_does_not_depend_on_later_seeds():
    """untied diverges in seed 3 and counts as the worst of the look's models; only seed 12 has a model with loss 9."""
    seeds = 16
    many = first_seed_repeated(seeds)
    many["test_loss"] = np.stack([np.full(seeds, 3.0), np.full(seeds, 2.0), np.full(seeds, 4.0)])
    many["test_loss"][2, 12] = 9.0
    many["train_loss"][0, 3] = many["test_loss"][0, 3] = np.nan

    def row_of(done):
        first = select_seeds(many, slice(done[-1]), least_axes=2)
        findings, _ = analyse(first, SIZES, TOKENS_PER_WORD, {}, Looks([10, 16], done))
        return {row["id"]: row for row in findings["claims"]}["perplexity/agent"]

    at_ten, at_sixteen = row_of([10]), row_of([10, 16])
    assert (at_ten["verdict"], at_ten["differences"]) == ("supported", [-1.0] * 3 + [-2.0] + [-1.0] * 6)
    assert at_sixteen["estimate"] == (-15 + 2.0 - 9.0) / 16
    for name in ("verdict", "look", "p", "p_adjusted"):
        assert at_sixteen[name] == at_ten[name]


def test_no_findings_without_a_finite_model():
    metrics = run()
    metrics["train_loss"][:] = np.nan
    findings, runs = analyse(metrics, SIZES, TOKENS_PER_WORD)
    assert (findings["seeds"], findings["methods"], findings["claims"], findings["excluded_seeds"]) == ([], [], [], [3, 5])
    assert figures.plot_all(runs, findings) == []
    assert tables(findings) == {}


def test_claims_that_are_not_tested_are_exploratory():
    findings, _ = analyse(run(), SIZES, TOKENS_PER_WORD, tested=False)
    assert findings["claims"]
    assert {row["family"] for row in findings["claims"]} == {"exploratory"}


def test_values_are_compared_with_the_returns_of_the_last_quarter_of_complete_episodes():
    """Episodes of 10 actions: 40 end before the horizon, the last 10 of which count; by brute force."""
    rng, actions = np.random.default_rng(0), 400 + HORIZON
    episode, reward = np.arange(actions) // 10, -1 - rng.random((2, actions))
    returns = np.array([[sum(0.99**n * r for n, r in enumerate(row[start:])) for start in range(actions)] for row in reward])
    judged = slice(300, 400)
    value = np.full_like(returns, 99.0)
    value[:, judged] = returns[:, judged] * [[1.0], [1.25]]
    np.testing.assert_allclose(value_errors(value, reward, episode), [0, 0.25], atol=1e-12)
    assert 0.99**HORIZON <= 0.01 < 0.99 ** (HORIZON - 1)
    value[0, 350] = np.nan
    assert value_errors(value, reward, episode)[0] is None
    assert value_errors(value[:, :HORIZON], reward[:, :HORIZON], episode[:HORIZON]) == [None, None]


@pytest.mark.parametrize(("error", "family"), [(0.15, "registered"), (0.25, "exploratory"), (np.nan, "exploratory")])
def test_claims_that_an_agent_learns_are_tested_if_its_values_predict_its_returns(error, family):
    """Rewards of -1 for ever: a return is -1 / (1 - .99), up to the hundredth that lies beyond the horizon."""
    actions = 400 + HORIZON
    metrics = run() | {
        "methods": np.array(["untied", "agent", "random-agent"]),
        "action_episode": np.arange(actions) // 10,
        "action_layer": np.arange(actions) % 3 + 1,
        "reward": np.full((1, 2, actions), -1.0),
        "value": np.full((1, 2, actions), -100 * (1 + error)),
        "epsilon": np.ones(actions),
    }
    for name in ("action", "greedy", "q_loss"):
        metrics[name] = np.zeros((1, 2, actions), metrics[name].dtype)
    metrics["action_owner"] = np.zeros((1, 2, actions, LAYERS), int)
    findings, _ = analyse(metrics, dict.fromkeys(metrics["methods"].tolist(), BY_NUMBER), TOKENS_PER_WORD)
    families = {row["id"]: row["family"] for row in findings["claims"]}
    assert families["learns/random-agent"] == family
    assert families["perplexity/agent"] == "registered"
