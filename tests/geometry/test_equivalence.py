"""Equivalence of symbols. Oracles: slow loops, scipy, predictors whose distances are known, and EXor's planted truth."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import distance
from scipy.special import log_softmax, rel_entr

from tiejax.geometry import equivalence as measures
from tiejax.geometry import optimality
from tiejax.geometry.equivalence import conditional_distance, jensen_shannon, semantic_distance, violation
from tiejax.geometry.optimality import condition_number, optimality_residual
from tiejax.lab.studies.exor import contexts as exor_contexts
from tiejax.lab.studies.exor import ensemble as exor_ensemble
from tiejax.lab.studies.exor.settings import Settings
from tiejax.lab.studies.exor.task import VARIANTS, EXor
from tiejax.training import Recorder, train

pytestmark = pytest.mark.slow

LN2 = math.log(2)
ZERO, ONE, PARITY, ACROSS = (0, 1), (2, 3), (4, 5), (0, 2)


def log(p):
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(p, float))


def random_log_probabilities(rng, *shape):
    return log(rng.dirichlet(np.ones(shape[-1]), size=shape[:-1]))


def test_jensen_shannon_is_scipys_squared():
    rng = np.random.default_rng(0)
    p, q = random_log_probabilities(rng, 2, 3, 4, 9)
    expected = [distance.jensenshannon(*rows) ** 2 for rows in zip(*np.exp([p, q]).reshape(2, 12, 9), strict=True)]
    np.testing.assert_allclose(jensen_shannon(p, q).reshape(12), expected, rtol=1e-12)


def test_jensen_shannon_where_symbols_are_impossible():
    p, q = log([[1, 0, 0], [0.5, 0.5, 0], [0.3, 0.7, 0]]), log([[0, 0, 1], [0, 0.5, 0.5], [0.3, 0.7, 0]])
    np.testing.assert_allclose(jensen_shannon(p, q), [LN2, LN2 / 2, 0], atol=1e-15)


def test_occurrences_are_swapped_one_at_a_time():
    rng = np.random.default_rng(1)
    tokens, position = rng.integers(0, 4, (30, 6)), rng.integers(0, 6, 30)
    expected = []
    for context, (row, asked) in enumerate(zip(tokens.tolist(), position.tolist(), strict=True)):
        for place, symbol in enumerate(row):
            if place != asked and symbol in (3, 1):
                expected.append((context, [*row[:place], 4 - symbol, *row[place + 1 :]]))
    row, swapped = measures.swaps(tokens, position, (3, 1))
    assert list(zip(row.tolist(), swapped.tolist(), strict=True)) == expected


def counting(tokens, position):
    """A predictor over three labels that depends on the numbers of ones and twos in a context."""
    ones, twos = (np.asarray(tokens) == 1).sum(1), (np.asarray(tokens) == 2).sum(1)
    logits = np.stack([0.3 * ones, -0.5 * twos, 0.1 * ones * twos], axis=1)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def semantic(predict, tokens, position, pair, weight=None):
    """Return the semantic distance, with equal weights by default."""
    weight = np.ones(len(tokens)) if weight is None else weight
    return semantic_distance(predict, tokens, position, pair, weight, predict(tokens, position))


def conditional(log_probabilities, pair):
    """Return the conditional distance with equal weights."""
    return conditional_distance(log_probabilities, pair, np.full(len(log_probabilities), 1 / len(log_probabilities)))


@pytest.mark.parametrize("block", [7, 256])
def test_semantic_distance_against_a_loop(monkeypatch, block):
    monkeypatch.setattr(measures, "BLOCK", block)
    rng = np.random.default_rng(2)
    tokens, position, weight = rng.integers(0, 5, (20, 5)), rng.integers(0, 5, 20), rng.uniform(size=20)
    weight[[3, 8, 11]] = 0  # contexts that never occur
    total = share = 0.0
    for row, asked, w in zip(tokens, position, weight, strict=True):
        places = [place for place in range(5) if place != asked and row[place] in (1, 2)]
        changes = []
        for place in places:
            other = row.copy()
            other[place] = 3 - other[place]
            p, q = (np.exp(counting(one[None], None)[0]) for one in (row, other))
            changes.append(distance.jensenshannon(p, q) ** 2)
        if places:
            total, share = total + w * np.mean(changes), share + w
    found, both = semantic(counting, tokens, position, (1, 2), weight)
    assert found == pytest.approx(total / share, rel=1e-9)
    assert both


def test_both_symbols_occur_only_in_contexts_with_a_probability():
    tokens, position = np.array([[1, 0], [2, 0], [1, 2]]), np.array([1, 1, 1])
    assert semantic(counting, tokens, position, (1, 2), np.array([1.0, 1, 0]))[1]
    assert not semantic(counting, tokens, position, (1, 2), np.array([1.0, 0, 1]))[1]


def test_two_flips_do_not_cancel_in_a_parity():
    """Two ones: flipping both would change nothing; in one place they mean the opposite of a zero."""

    def parity(tokens, position):
        return log(np.eye(2)[(tokens == 1).sum(1) % 2])

    tokens = np.array([[9, 1, 1, 7], [9, 1, 0, 7]])
    assert semantic(parity, tokens, np.zeros(2, int), (0, 1))[0] == pytest.approx(LN2)
    assert semantic(parity, tokens, np.zeros(2, int), (7, 8)) == (pytest.approx(0), False)


def test_symbols_absent_from_all_contexts():
    found, both = semantic(counting, np.array([[3, 1, 0]]), np.array([1]), (1, 2))  # only where the model is asked
    assert math.isnan(found)
    assert not both


def test_a_predictor_sees_one_shape(monkeypatch):
    shapes = []

    def predict(tokens, position):
        shapes.append((tokens.shape, position.shape))
        return counting(tokens, position)

    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 3, (10, 4))
    monkeypatch.setattr(measures, "BLOCK", 4)
    found = measures.in_blocks(predict, tokens, np.zeros(10, int))
    np.testing.assert_array_equal(found, counting(tokens, None))
    assert set(shapes) == {((4, 4), (4,))}


def test_conditional_distance_against_a_loop():
    """The bracket is the divergence between the model's distribution within the pair and the same with symbols swapped."""
    rng = np.random.default_rng(4)
    known, weight = random_log_probabilities(rng, 12, 5), rng.uniform(size=12)
    share, divergence, ratio = [], [], []
    for row, w in zip(np.exp(known), weight, strict=True):
        within = row[[3, 1]] / (row[3] + row[1])
        share.append(w * (row[3] + row[1]))
        divergence.append(distance.jensenshannon(within, within[::-1]) ** 2)
        ratio.append(math.log(row[3] / row[1]))
    distances = np.average(divergence, weights=share), np.average(ratio, weights=share)
    assert conditional_distance(known, (3, 1), weight / weight.sum()) == pytest.approx(distances)


def test_contexts_that_do_not_ask_for_a_pair_have_no_weight():
    known = log([[0.09, 0.81, 0.1], [0, 0, 1], [1e-9, 2e-10, 1 - 1.2e-9]])
    found, log_ratio_mean = conditional(known, (0, 1))
    assert log_ratio_mean == pytest.approx(-math.log(9))
    assert found == pytest.approx(0.1 * math.log(0.2) + 0.9 * math.log(1.8))  # KL of .1/.9 from .5/.5
    assert conditional(known[1:], (0, 1)) == (0, pytest.approx(math.nan, nan_ok=True))


def test_a_small_log_ratio_and_an_infinite_one():
    """A small log ratio l gives l^2 / 8; a symbol that is impossible, ln 2."""
    small, wide = (conditional(log([[1 / (1 + math.exp(-x)), 1 / (1 + math.exp(x))]]), (0, 1)) for x in (0.01, math.inf))
    assert small[0] == pytest.approx(0.01**2 / 8, rel=1e-4)
    assert wide == (pytest.approx(LN2), math.inf)


def test_four_cases_and_their_score():
    assert violation(0.001, 0.002)[0] == "holds: same"
    assert violation(0.5, 0.3)[0] == "holds: different"
    assert violation(0.0, 0.368) == ("fails: same meaning", pytest.approx(math.log(0.388 / 0.02)))
    assert violation(LN2, 0.0) == ("fails: same use", pytest.approx(-math.log((LN2 + 0.02) / 0.02)))
    assert violation(math.nan, 0.0)[0] == "unknown"


def test_the_threshold_is_about_forty_to_sixty():
    rounded = conditional(log([[0.4, 0.6]]), (0, 1))[0]
    assert round(rounded, 3) == measures.THRESHOLD


def test_optimality_residual_against_a_loop():
    rng = np.random.default_rng(5)
    states, table, weight = rng.normal(size=(9, 4)), rng.normal(size=(6, 4)), rng.uniform(size=9)
    truth = rng.normal(size=9)
    truth[[2, 5]] = np.nan
    found = optimality_residual(states, table, (4, 1), truth, weight)
    rows = [k for k in range(9) if k not in (2, 5)]
    residual = [abs(sum(states[k][i] * (table[4][i] - table[1][i]) for i in range(4)) - truth[k]) for k in rows]
    assert found == pytest.approx(math.sqrt(np.average(np.square(residual), weights=weight[rows])))
    # The optimal table: h . (e1 - e2) = truth where the states allow it.
    table[4] = table[1] + np.linalg.lstsq(states[:4], truth[[0, 1, 3, 4]], rcond=None)[0]
    assert optimality_residual(states[:4], table, (4, 1), truth[[0, 1, 3, 4]], np.ones(4)) < 1e-9


def test_the_residual_of_an_impossible_symbol_is_measured_from_sure():
    states, table = np.array([[1.0], [-6.0], [7.0]]), np.array([[1.0], [0.0]])
    found = optimality_residual(states, table, (0, 1), np.array([np.inf, -np.inf, -np.inf]), np.ones(3))
    sure = optimality.SURE
    assert found == pytest.approx(math.sqrt(((sure - 1) ** 2 + 0 + (sure + 7) ** 2) / 3))
    assert math.isnan(optimality_residual(states, table, (0, 1), math.nan, np.ones(3)))


def test_condition_number_against_numpy():
    rng = np.random.default_rng(6)
    states, times = rng.normal(size=(7, 3)), np.array([1, 2, 0, 1, 3, 1, 1])
    assert condition_number(states, times.astype(float)) == pytest.approx(np.linalg.cond(np.repeat(states, times, axis=0)))


def test_condition_number_of_bfloat16_and_integers():
    states = np.diag([4.0, 2.0, 1.0])
    for dtype in (jnp.bfloat16, np.int32):
        assert condition_number(np.asarray(states, dtype), np.ones(3)) == pytest.approx(4)


def test_condition_number_of_known_spectra():
    basis = np.linalg.qr(np.random.default_rng(7).normal(size=(5, 5)))[0]
    one = np.outer(np.arange(1.0, 9), [1, 2, 3]).astype(np.float32)
    # Four states span no five dimensions.
    for states, wanted in ((basis, 1), (basis * [1, 1, 1, 1, 0.1], 10), (one, math.inf), (basis[:4], math.inf)):
        assert condition_number(states, np.ones(len(states))) == pytest.approx(wanted)


def test_a_row_has_the_results_of_all_functions():
    """And NaN, not an error, for a pair that no context asks for."""
    rng = np.random.default_rng(8)
    tokens, position, weight = rng.integers(0, 3, (9, 4)), np.zeros(9, int), rng.dirichlet(np.ones(9))
    states, table, truth = rng.normal(size=(9, 2)), rng.normal(size=(5, 2)), rng.normal(size=9)

    def predict(*asked):
        return np.pad(counting(*asked), ((0, 0), (0, 2)), constant_values=-np.inf)

    pairs = [(0, 1), (3, 4)]
    asked, never = measures.equivalence(predict, tokens, position, pairs, 3 * weight, states, table, {(0, 1): truth})
    asking = weight * np.exp(predict(tokens, position))[:, :2].sum(1)
    distance, _ = semantic(predict, tokens, position, (0, 1), weight)
    conditional_of_pair, log_ratio_mean = conditional_distance(predict(tokens, position), (0, 1), weight)
    case, score = violation(distance, conditional_of_pair)
    expected = {
        "semantic_distance": distance,
        "conditional_distance": conditional_of_pair,
        "log_ratio_mean": log_ratio_mean,
        "score": score,
        "residual_rms": math.sqrt(np.average((states @ (table[0] - table[1]) - truth) ** 2, weights=asking)),
        "condition_number": np.linalg.cond(states * np.sqrt(asking)[:, None]),
    }
    assert asked.pop("case") == case
    assert asked == pytest.approx(expected)
    assert (never.pop("case"), never.pop("conditional_distance")) == ("unknown", 0)
    assert all(math.isnan(value) for value in never.values())


def everywhere(task):
    """All contexts of a task and their probability over all strings of all splits."""
    known = exor_contexts.all_contexts(task, ordered=False)
    weight = exor_contexts.over_all_strings(task, known)
    return known, weight / weight.sum()


def best(task):
    """The best possible predictor, from the definition of EXor: one bit at a time."""

    def predict(tokens, position):
        rows = np.zeros((len(tokens), task.vocabulary))
        for out, row in zip(rows, tokens.tolist(), strict=True):
            ones = sum(row.count(symbol) for symbol in task.spellings["one"])
            bit = "one" if (ones + row.count(task.odd)) % 2 else "zero"
            for symbol in task.spellings[bit]:
                out[symbol] = task.probability[symbol]
        return log(rows)

    return predict


@pytest.mark.parametrize(
    ("variant", "cases"),
    [
        ("main", ["fails: same meaning", "holds: same", "fails: same use", "holds: different"]),
        ("dh", ["unknown", "holds: same", "fails: same use", "holds: different"]),
        ("no-dh", ["unknown", "fails: same meaning", "fails: same use", "holds: different"]),
    ],
)
def test_what_each_variant_plants_by_its_definition(variant, cases):
    """`unknown`: symbol 1 never occurs in dh and no-dh, so no context determines its meaning."""
    task = EXor(4, *VARIANTS[variant])
    known, weight = everywhere(task)
    states, table = np.ones((len(weight), 1)), np.ones((task.vocabulary, 1))
    asked = known.tokens, known.position, [ZERO, ONE, PARITY, ACROSS]
    rows = measures.equivalence(best(task), *asked, weight, states, table, {})
    assert [row["case"] for row in rows] == cases
    assert [row["semantic_distance"] for row in rows] == pytest.approx([0, 0, LN2, LN2], abs=1e-12)
    p = task.probability
    for row, pair in zip(rows, (ZERO, ONE), strict=False):
        if min(p[symbol] for symbol in pair) > 0:
            assert row["log_ratio_mean"] == pytest.approx(math.log(p[pair[0]] / p[pair[1]]))
    assert math.isnan(rows[2]["log_ratio_mean"])  # no context asks for a parity


class Trained:
    """The members of a short training, by (seed, arm), with every context of their task."""

    def __init__(self, task, model, params):
        self.task, self.params = task, params
        self.known, self.weight = everywhere(task)
        self.encode = jax.jit(lambda params, *asked: model.apply({"params": params}, *asked, method="encode"))
        members = itertools.product(*map(range, params["head"]["embedding"].shape[:2]))
        self.excess = {member: self.divergence(*member) for member in members}

    def member(self, seed, arm):
        """Return its table and its functions to states and to log probabilities."""
        params = jax.tree.map(lambda leaf: leaf[seed, arm], self.params)
        table = params["head"]["embedding"]

        def states(tokens, position):
            return np.asarray(self.encode(params, tokens, position))

        return table, states, lambda *asked: log_softmax(states(*asked) @ table.T, axis=1)

    def divergence(self, seed, arm):
        """Return the mean KL divergence from the truth to the member: cross-entropy over all strings minus Bayes risk."""
        _, _, predict = self.member(seed, arm)
        predicted = np.exp(predict(self.known.tokens, self.known.position))
        return float(self.weight @ rel_entr(self.known.target, predicted).sum(1))

    def rows(self, seed, arm, pairs):
        """Return the member's row of every pair, with states and truth."""
        table, states, predict = self.member(seed, arm)
        asked = self.known.tokens, self.known.position
        target = log(self.known.target)
        with np.errstate(invalid="ignore"):
            truth = {pair: target[:, pair[0]] - target[:, pair[1]] for pair in pairs}
        rows = measures.equivalence(predict, *asked, pairs, self.weight, states(*asked), table, truth)
        return dict(zip(pairs, rows, strict=True))

    def members(self, chosen):
        members = [member for member, excess in self.excess.items() if chosen(excess)]
        assert members, f"no such member among {self.excess}"
        return members


@pytest.fixture(scope="module", params=["main", "no-dh"])
def trained(request):
    """Eight seeds of four bits, large steps and little weight decay: enough for some to solve the task."""
    steps = 3000
    shape = {"seeds": 8, "steps": steps, "half_period": steps, "record_every": steps}
    settings = Settings(variant=request.param, bits=4, learning_rate=0.01, weight_decay=0.01, **shape).resolved()
    # The exact risk would double the compilation.
    nothing = Recorder(steps, lambda params, batch, seed_key, step: {"nothing": step})
    ensemble = dataclasses.replace(exor_ensemble.build_ensemble(settings), recorders={"nothing": nothing})
    run = train(ensemble, settings.seed_list)
    params = jax.tree.map(np.asarray, run.members.state.params)
    return Trained(settings.tasks[0], exor_ensemble.build_model(settings), params)


def test_models_that_solved_exor_show_the_planted_cases(trained):
    """Tied or untied: the true distribution is unique, and each member that solved the task computes it."""
    main = trained.task.zero[1] > 0
    unequal, bound = (ZERO if main else ONE), math.log(9)
    pairs = [unequal, PARITY, ACROSS, *([ONE] if main else [])]
    for seed, arm in trained.members(lambda excess: excess < 0.01):
        rows = trained.rows(seed, arm, pairs)
        assert rows[unequal]["case"] == "fails: same meaning"
        assert rows[unequal]["semantic_distance"] < 0.005
        assert rows[unequal]["log_ratio_mean"] == pytest.approx(-bound, abs=0.25)
        assert rows[unequal]["residual_rms"] < 0.25
        assert rows[PARITY]["case"] == "fails: same use"
        assert rows[PARITY]["semantic_distance"] > 0.5
        assert rows[ACROSS]["case"] == "holds: different"
        assert rows[ACROSS]["semantic_distance"] > 0.5
        assert rows[ACROSS]["residual_rms"] < 1
        if main:
            assert rows[ONE]["case"] == "holds: same"
            assert abs(rows[ONE]["log_ratio_mean"]) < 0.25


def test_the_residual_across_bits_identifies_models_that_did_not_solve_exor(trained):
    """Their ratios within a bit are right nevertheless, because frequencies do not depend on the context."""
    within = ZERO if trained.task.zero[1] > 0 else ONE
    for seed, arm in trained.members(lambda excess: excess > 0.6):
        rows = trained.rows(seed, arm, [within, PARITY, ACROSS])
        assert rows[ACROSS]["residual_rms"] > 4
        assert rows[PARITY]["semantic_distance"] < 0.1
        assert rows[within]["residual_rms"] < 0.5
