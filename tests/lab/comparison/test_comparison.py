"""A comparison as its user runs it: functions that are refused, results, forks, kills and resumption."""

import dataclasses
import json
import re
import shutil
import signal
import sys
import threading
import traceback
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import comparison_model
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from comparison_model import ARGUMENTS, TOKENS, WIDTH, comparison, examples, init, loss
from processes import end, processes_of_one_run, start, start_python, wait_until

from tiejax import Functions, Reshape, Slice, Tie
from tiejax.lab import Arm, tie_at, tied, untie_at, untied
from tiejax.lab.comparison.arms import Change
from tiejax.lab.comparison.comparison import Outcome, simple_study
from tiejax.lab.comparison.optimizer import warm_up_constant_decay
from tiejax.lab.comparison.page import in_words, sentence
from tiejax.lab.comparison.settings import Settings, settings_of
from tiejax.lab.runs import entry
from tiejax.lab.runs.parts import InSeries, _part, looks_done
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.shared import with_defaults
from tiejax.statistics.claims import Claim
from tiejax.training.keys import stream
from tiejax.training.sources import ExampleFeed

FILE = Path(comparison_model.__file__)
TWO_DEVICES = {"JAX_NUM_CPU_DEVICES": "2"}


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """In this process, in which jax has started."""
    monkeypatch.setattr("tiejax.lab.runs.train.stop_flag", lambda: lambda: False)
    monkeypatch.setattr(sys, "argv", ["test"])
    monkeypatch.chdir(tmp_path)


def iter_batches():
    made = iter([examples(8)])
    return lambda seed, step: next(made)


RANDOM = np.random.default_rng(0)
ALIKE = Arm("untie-1-2", False, fork=Fraction(1, 3), parent="tied", change=Change("zero-keep-count"))


def total(params, batch):
    return {"sum": params["embed"].sum()}


def branching(rate):
    return optax.sgd(rate if rate > 0 else 0.0)


def named(id, losses):
    return Claim(id, "Tied models end lower.", "the loss (tied - untied)", losses["tied"] - losses["untied"], -1)


REFUSED = [
    ({"loss": lambda params, batch, key: params["embed"].sum(axis=0)}, r"loss: expected the mean loss, .* of shape \(3,\)"),
    (
        {"loss": lambda params, batch, key: (loss(params, batch, key), 3)},
        "loss: expected a number, or a pair of a number",
    ),
    ({"loss": lambda params, batch, key: params["missing"]}, "loss: failed with KeyError: 'missing'"),
    ({"loss": lambda params, batch, key: loss(params, batch, jax.random.fold_in(key, 1))}, "evaluate: .*key None"),
    ({"init": lambda key: {"embed": jnp.ones(3), "f": jnp.tanh}}, "init: failed with TypeError|init: expected arrays only"),
    (
        {"init": lambda key: init(key) | {"rngs": {"count": jnp.zeros((), jnp.uint32)}}},
        r"^init: expected floating-point arrays, but rngs/count is uint32; .*nnx\.state\(model, nnx\.Param\)",
    ),
    ({"init": lambda: {}}, "init: failed with TypeError"),
    ({"ties": Tie("embed", "haed")}, "ties: .*no leaf haed; did you mean head"),
    ({"ties": Tie("embed", "body")}, "ties: .*embed -> body"),
    (
        {"ties": Tie("embed", "head", transform=Functions(jnp.flip, jnp.flip, rearranges=True))},
        r"^ties: tie embed -> head has a pair of functions, which checkpoints cannot store; expected transpose",
    ),
    ({"name": " "}, "name: expected a line of text"),
    ({"name": "two\nlines"}, "name: expected a line of text"),
    ({"max_norm": -1.0}, "max_norm: expected a finite number > 0, or None, got -1.0"),
    ({"steps": 1}, "--steps: untie-2/3 needs at least 2 steps"),
    ({"schedule": lambda step: 1.0}, "schedule: failed with TypeError"),
    ({"schedule": lambda step, steps: jnp.ones(3)}, r"schedule: expected a factor, got an array of shape \(3,\)"),
    ({"claims": lambda losses: 3}, "claims: expected a list of tiejax.statistics.claims.Claim, got 3"),
    ({"claims": lambda losses: losses["tide"]}, "claims: failed with KeyError: 'tide'"),
    ({"claims": lambda losses: [named("tied/untied", losses)]}, "claims: two have the id tied/untied, counting those that"),
    ({"claims": lambda losses: [named("mine", losses)] * 2}, "claims: two have the id mine"),
    (
        {"claims": lambda losses: [Claim("mine", "s", "e", np.ones(64), 1)]},
        "claims: mine: expected one difference per seed, got 64",
    ),
    (
        {"claims": lambda losses: [Claim("mine", "s", "e", np.array(1.0), 1)]},
        "claims: failed with ValueError: claim mine: expected one",
    ),
    ({"optimizer": 1e-3}, "optimizer: expected a function of the learning rate"),
    ({"optimizer": branching}, "optimizer: failed with TracerBoolConversionError: .*no Python branch"),
    (
        {"optimizer": lambda rate: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(rate))},
        "optimizer: .*max_norm of Comparison",
    ),
    ({"optimizer": optax.inject_hyperparams(optax.adamw)}, "optimizer: its updates do not depend on the learning rate"),
    ({"optimizer": lambda rate: optax.adamw(1e-2)}, "optimizer: its updates do not depend on the learning rate"),
    (
        {"optimizer": lambda rate, tables: optax.adamw(rate), "table_factors": [1.0, 2.0]},
        "optimizer: its updates do not depend on the table rate",
    ),
    ({"init": lambda key: init(key) | {"body": RANDOM.random((3, 3))}}, "init: returns another result each time"),
    ({"loss": lambda *given: loss(*given) + RANDOM.random()}, "loss: returns another result each time"),
    ({"training": lambda seed, step: examples(8, int(RANDOM.integers(2**31)))}, "training: .*two different batches"),
    ({"training": lambda seed, step: examples(4)}, r"training: expected batches of 8 examples \(batch_size\).* returned 4"),
    ({"arms": [tied, untied, untie_at(0.5), untie_at(0.501)]}, "arms: untie-1/2 and untie-.* are one: both change at step 30"),
    ({"arms": [tied, untied, ALIKE, untie_at(0.5)]}, "arms: the names untie-1-2 and untie-1/2 are too alike"),
    (
        {"optimizer": lambda rate: optax.contrib.galore(rate, rank=2), "arms": [tied, untied, untie_at(0.5, policy="split")]},
        "arms: untie-1/2-split: the change of the optimizer's state failed with|optimizer: ",
    ),
    ({"training": iter_batches()}, "training: the function failed for seed 0 and step 0: StopIteration"),
    ({"training": lambda seed, step: {"tokens": [[0] * 6] * 8}}, "training: expected batches of 8 examples"),
    ({"arms": [tied, untied, untie_at(0.5, policy="zero")]}, "arms: untie-1/2-zero: policy 'zero' cannot restart"),
    ({"arms": [tied, untied, Arm("half", False, parent="tied")]}, "arms: half needs both a parent and the fork"),
    (
        {"arms": [tied, untied, dataclasses.replace(untie_at(0.5), change=Change(rate=2.0))]},
        "arms: untie-1/2: expected a change with rate 1",
    ),
    ({"recorders": {"x": lambda params, batch: params["nope"]}}, "recorders: x: failed with KeyError"),
    ({"recorders": {"x": lambda params, batch: 3}}, "recorders: x: expected a dictionary"),
    (
        {"recorders": {"x": lambda params, batch: {"y_z": 1.0}, "x_y": lambda params, batch: {"z": 2.0}}},
        "recorders: x_y: z would be stored as x_y_z, as a field of x is",
    ),
    ({"rates": 1e-3}, "rates: expected a list of numbers, got 0.001"),
    ({"rates": ["a"]}, "rates: expected a number, got 'a'"),
    ({"steps": "20"}, "steps: expected an integer, got '20'"),
    ({"steps": 20.5}, "steps: expected an integer, got 20.5"),
    ({"margin": "0.01"}, "margin: expected a number, got '0.01'"),
    ({"arms": tied}, "arms: expected a list of arms, got Arm"),
    ({"gate": float("nan")}, "gate: expected a loss that models must end below, or None, got nan"),
    ({"table_factors": [1, 2]}, "table_factors: needs an optimizer of two learning rates"),
    ({"arms": [tied]}, "arms: expected at least two different ones"),
    ({"arms": [untied, untie_at(0.5)]}, "arms: untie-1/2 continues the models of tied, which is missing"),
    ({"arms": [Arm("one", True), Arm("two", False)]}, "arms: no two of them are compared; name one of them tied or untied"),
    ({"arms": ["tied", "untied"]}, "arms: expected tied, untied"),
    ({"steps": None}, "--steps: give a number of steps, or --hours"),
    ({"rates": [0.1, 0.01]}, "--rates: expected numbers > 0 in ascending order"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_a_wrong_argument_is_named_and_nothing_is_written(changes, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        comparison(**changes).run(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def missing(params, batch, key):
    return optax.squared_error(params["embed"], params["none"])


def test_an_error_in_a_function_has_its_place_and_its_traceback(tmp_path):
    """Of the function itself if it calls a library."""
    line, in_optimizer = (function.__code__.co_firstlineno + 1 for function in (missing, branching))
    place = r"\(test_comparison\.py, line"
    with pytest.raises(ValueError, match=rf"^loss: failed with KeyError: 'none' {place} {line}\)$") as found:
        comparison(loss=missing).run(tmp_path / "out")
    assert isinstance(found.value.__cause__, KeyError)
    assert traceback.extract_tb(found.value.__cause__.__traceback__)[-1].lineno == line
    with pytest.raises(ValueError, match=rf"^optimizer: .*{place} {in_optimizer}\);"):
        comparison(optimizer=branching).run(tmp_path / "out")
    with pytest.raises(ValueError, match=r"^max_norm: ") as found:  # not in a function of the user
        comparison(max_norm=-1.0).run(tmp_path / "out")
    assert found.value.__cause__ is None


def test_forks_need_records_within_the_run(tmp_path):
    with pytest.raises(ValueError, match=r"^--record_every: untie-2/3 changes at a record: expected less than 60 steps"):
        comparison().run(tmp_path / "out", record_every=60)


@pytest.mark.parametrize(
    ("claims", "margin", "most", "looks"),
    [
        # Of L looks at c claims the first needs 2^(1 - n) <= .05 / (c L); 2^-n with a margin.
        ((1, 0), None, 32, [8, 12, 16, 24, 32]),  # 2^-7 = .0078 <= .01
        ((3, 0), None, 32, [12, 16, 24, 32]),  # .0078 > .05 / 15
        ((3, 0), 0.01, 32, [12, 16, 24, 32]),  # 2^-8 = .0039 > .05 / 15
        ((2, 0), 0.01, 32, [8, 12, 16, 24, 32]),  # .0039 <= .05 / 10
        ((2, 0), None, 32, [12, 16, 24, 32]),
        ((3, 1), None, 32, [8, 12, 16, 24, 32]),  # one of one's own, perhaps one-sided
        ((3, 0), None, 8, [8]),
    ],
)
def test_the_first_look_is_one_that_can_decide(claims, margin, most, looks):
    chosen = settings_of({"steps": 4, "rates": [0.1], "margin": margin}, "out", claims)
    assert chosen(until="decided", max_seeds=most).resolved().looks == looks


@pytest.mark.slow
def test_seeds_too_few_to_decide_are_no_look(tmp_path):
    """Three claims take 7 seeds, and 6 with a margin: 2^-6 <= .05 / 3."""
    small = comparison(rates=[0.1], steps=3)
    for seeds, looks in ((5, None), (6, None), (7, {"planned": [6, 7], "done": [6, 7], "appended": True})):
        small.run(tmp_path / "run", seeds=seeds, resume=seeds > 5)
        assert json.loads((tmp_path / "run" / "results.json").read_text()).get("looks") == looks


def test_a_run_keeps_the_looks_with_which_it_was_begun():
    chosen = settings_of({"steps": 4, "rates": [0.1]}, "out", (3, 0))(until="decided", max_seeds=24).resolved()
    for parts, planned in (([8, 4], [8, 12, 16, 24]), ([12], [12, 16, 24])):
        assert looks_done(SimpleNamespace(settings=chosen), parts)[:2] == (planned, np.cumsum(parts).tolist())
        assert _part(chosen, len(parts) - 1, parts, InSeries()).label.startswith(f"look {len(parts)} of {len(planned)}, 12 ")


def test_a_comparison_without_claims_has_no_fewest_seeds():
    assert settings_of({"steps": 4, "rates": [0.1]}, "out", (0, 0))(until="decided", max_seeds=24).resolved().fewest() == 1


def test_hours_that_the_stages_exceed_are_refused_before_anything_is_written(tmp_path):
    """Of one device: 4 segments of 2 seeds, 2 rates of 2 classes with 2 seeds, and the measurement of a step."""
    words = r"^--hours: expected more than 0\.057, which 17 stages of 12 s need before any step, got 0\.01; give more hours or"
    with pytest.raises(ValueError, match=words):
        comparison(steps=None).run(tmp_path / "out", hours=0.01)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_run_is_not_resumed_by_another_script(tmp_path):
    """A finished run, to which seeds would be appended, and one that is only read again."""
    given = {"arms": [tied, untied], "rates": [0.1], "steps": 8, "recorders": {"sum": total}}
    before = comparison(**given).run(tmp_path / "out")
    for place, (changes, words) in enumerate(
        (
            ({"loss": lambda *given: 10 * loss(*given)}, "loss; evaluate"),
            ({"init": lambda key: jax.tree.map(jnp.zeros_like, init(key))}, "init"),
            ({"optimizer": lambda rate: optax.sgd(rate)}, "optimizer; optimizer's first state"),
            ({"max_norm": 0.01}, "max_norm: None -> 0.01"),
            ({"batch_size": 4}, "batch_size: 8 -> 4"),
            ({"arms": [tied, untied, untie_at(0.5)]}, "arms"),
            ({"rates": [0.3]}, r"rates: \[0.1\] -> \[0.3\]"),
            ({"steps": 9}, "steps: 8 -> 9"),
            ({"optimizer": lambda rate: optax.adagrad(rate, 0.5)}, "optimizer's first state"),
            ({"schedule": lambda step, steps: jnp.where(step < 7, 1.0, 0.5)}, "schedule"),
            ({"claims": lambda losses: [Claim("own", "Own", "loss", losses["tied"] - losses["untied"], 1)]}, "claims"),
            ({"recorders": {}}, "recorders: sum"),
        )
    ):
        with pytest.raises(ValueError, match=rf"^--resume: .* was started by another script \((|.*; ){words}\)"):
            comparison(**given | changes).run(tmp_path / "out", resume=True, **({"seeds": 3} if place % 2 else {}))
    again = comparison(**given).run(tmp_path / "out", resume=True, seeds=3)
    np.testing.assert_array_equal(again.final[:, :2], before.final)
    assert again.final.shape == (2, 3)
    with pytest.raises(BadInput, match=r"^--resume: .* was started by another script \(max_norm: None -> 0.01\)"):
        entry.main(comparison(**given, max_norm=0.01).study, ["--out", str(tmp_path / "out"), "--resume"])


@pytest.mark.slow
def test_a_finished_run_with_other_settings_than_the_scripts_is_resumed(tmp_path):
    """The script is checked with the settings of the run: its steps would not allow two arms that change."""
    script = comparison(arms=[tied, untied, untie_at(0.5), untie_at(0.6)], rates=[0.1], steps=2)
    settings = {"steps": 20, "matmul_precision": "bfloat16"}
    before = script.run(tmp_path / "out", **settings)
    for given in ({}, settings):
        np.testing.assert_array_equal(script.run(tmp_path / "out", resume=True, **given).final, before.final)


@pytest.mark.slow
def test_bfloat16_policy_split_and_a_list_of_batches_in_a_thread(tmp_path):
    """Parameters and records in bfloat16, which .npz files do not name; a function that knows only the run's steps."""
    batches = [examples(8, seed=step) for step in range(12)]
    found = []

    def run():
        found.append(
            comparison(
                init=lambda key: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), init(key)),
                training=lambda seed, step: batches[step],
                arms=[tied, untied, untie_at(0.5, policy="split")],
                recorders={"own": lambda params, batch: {"per_step": params["body"].sum()}},
                rates=[0.1],
                steps=12,
            ).run(tmp_path / "out")
        )

    handler = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is handler
    assert np.isfinite(found[0].final).all()
    with np.load(tmp_path / "out" / "metrics.npz") as archive:
        metrics = dict(archive)
    steps = metrics["tied.train_step"]
    assert metrics["tied.own_own_per_step"].shape == (2, len(steps))
    assert metrics["tied.own_own_per_step"].dtype == np.float32


def test_a_number_of_devices_that_are_missing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^--mesh: expected a divisor of the number of devices, 1, got 3$"):
        comparison().run(tmp_path / "out", mesh=3)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_models_that_all_diverge_are_reported(tmp_path, capsys):
    """With warnings as errors: every model is named, and no claim is decided."""
    nan = lambda params, batch, key: loss(params, batch, key) * jnp.nan  # noqa: E731
    outcome = comparison(loss=nan, rates=[0.1], steps=6).run(tmp_path / "out")
    assert "untie-2/3 seed 1 became non-finite" in capsys.readouterr().err
    assert {row["verdict"] for row in outcome.claims} == {"undecided"}


@pytest.mark.slow
def test_sections_that_fail_are_named_and_the_models_are_kept(tmp_path):
    def broken(results):
        return {"Own table": results["none"]}

    with pytest.raises(ValueError, match="sections: expected a list of functions of the results, got"):
        comparison(sections=[3]).run(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="sections: broken failed, or returned no tables, with KeyError") as found:
        comparison(sections=[broken], steps=4).run(tmp_path / "out", seeds=2)
    assert isinstance(found.value.__cause__, KeyError)
    assert comparison(steps=4).run(tmp_path / "out", seeds=2, resume=True).report.exists()


def test_a_model_that_is_too_large_is_refused_with_its_size(tmp_path):
    huge = lambda key: {name: jnp.zeros((2**20, 2**20)) for name in ("embed", "head")} | {"body": jnp.zeros((3, 3))}  # noqa: E731
    flat = lambda params, batch, key: params["embed"][0, 0] * params["head"][0, 0]  # noqa: E731
    with pytest.raises(ValueError, match=r"init: a model needs [0-9,]+ GiB with its gradients and optimizer state"):
        comparison(init=huge, loss=flat).run(tmp_path / "out")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiejax.lab.runs.train.stop_flag", lambda: lambda: False)
        patch.setattr(sys, "argv", ["test"])
        return comparison(
            claims=lambda losses: [
                Claim("own/tied", "Tied models end below 2.", "the loss of tied less 2", losses["tied"] - 2, -1)
            ],
            recorders={"norm": lambda params, batch: {"embed": jnp.linalg.norm(params["embed"])}},
            sections=[lambda results: {"Own table": (["arm"], [[arm] for arm in results["arms"]])}],
        ).run(tmp_path_factory.mktemp("comparison") / "run")


@pytest.mark.slow
def test_models_that_do_not_pass_the_gate_decide_nothing(tmp_path, capsys):
    """With rates to choose, the run ends before its first seed; with one rate, it is reported without tests."""
    with pytest.raises(ValueError, match=r"^gate: the tied models end with .* nats, the untied models end with"):
        comparison(gate=0.1, rates=[0.1, 0.2], steps=6).run(tmp_path / "tuned")
    with pytest.raises(ValueError, match=r"^gate: the tied models") as kept:  # the exception keeps what it refers to
        comparison(gate=0.1, rates=[0.1, 0.2], steps=6).run(tmp_path / "tuned", resume=True)
    with pytest.raises(ValueError, match=r"^gate: the tied models"):
        comparison(gate=0.1, rates=[0.1, 0.2], steps=6).run(tmp_path / "tuned", resume=True)
    del kept
    assert not [*(tmp_path / "tuned" / "finished").glob("tied*")]
    outcome = comparison(gate=0.1, rates=[0.1], steps=6, arms=[tied, untied]).run(tmp_path / "given", seeds=6)
    assert {row["verdict"] for row in outcome.claims} == {"exploratory"}
    assert "No claim is tested, since the tied models end with" in (page := outcome.report.read_text())
    assert outcome.sentence.startswith("No claim is tested, since the tied models end with ")
    assert ", not tested)." in outcome.sentence
    assert f"\n{outcome.sentence}\n" in capsys.readouterr().out
    assert ", not tested)." in page
    assert "<td>gate</td><td>0.1000</td>" in page


@pytest.mark.slow
def test_the_outcome(outcome, tmp_path):
    folder = outcome.report.parent
    results = json.loads((folder / "results.json").read_text())
    assert outcome.arms == ["tied", "untied", "untie-2/3"]
    assert outcome.final.shape == (3, 2)
    assert outcome.losses.shape == (3, 2, len(outcome.steps))
    assert outcome.steps.tolist() == list(range(0, 61, 2))
    np.testing.assert_allclose(outcome.losses[..., -1], outcome.final, rtol=1e-5)  # all 37 examples fit the records too
    assert set(results["families"]) == {"main", "own"}
    assert [row["id"] for row in outcome.claims if row["id"].startswith("own")] == ["own/tied"]
    assert "For A small model, after 60 steps: " in outcome.sentence
    assert "; those of tied models also for untie-2/3</" in (folder / "report.html").read_text()
    edge = "The best learning rate of tied models is the last that was tried; another may be better. "
    shutil.copy(folder / "metrics.npz", tmp_path)
    for at_edge in (False, True):
        tuning = {"tied": {**results["tuning"]["tied"], "at_edge": at_edge}}
        (tmp_path / "results.json").write_text(json.dumps(results | {"tuning": tuning}))
        found = Outcome.of(tmp_path).sentence
        assert found.removeprefix(edge) in (folder / "report.html").read_text()
        assert found.startswith(edge) == at_edge
    assert "Own table" in (folder / "report.html").read_text()
    assert results["costs"]["tied"]["parameters"] == 33 + 9
    assert results["costs"]["untied"]["bytes"] == 4 * (66 + 9)
    assert results["rates"]["tied"][0] in results["tuning"]["tied"]["rates"]
    with np.load(folder / "metrics.npz") as arrays:
        np.testing.assert_array_equal(arrays["untie-2.3.train_loss"][:, :20], arrays["tied.train_loss"][:, :20])
        assert (arrays["tied.train_distance"] == 0).all()
        assert arrays["tied.own_norm_embed"].shape == arrays["tied.train_loss"].shape
        names = {name.rpartition(".")[2] for name in arrays} - {"own_norm_embed"}
    page = Path(__file__).parents[3] / "docs" / "run_directory_details.md"
    described = page.read_text().partition("A `Comparison` has `seeds`")[2].partition("\n## ")[0]
    assert names - {"seeds"} == set(re.findall(r"`((?:final|train|validation|own)_\w+)`", described)) - {"own_NAME_FIELD"}


@pytest.mark.slow
def test_recorded_gradients_are_those_of_the_loss_whatever_is_evaluated(tmp_path):
    """Of an error rate the gradients are 0; the final values are error rates, and the records those of the default."""

    def error_rate(params, batch):
        return loss(params, batch, None) > 1e9

    arrays = []
    for name, evaluate in (("loss", None), ("errors", lambda *given: jnp.float32(error_rate(*given)))):
        comparison(arms=[tied, untied], rates=[0.1], steps=4, evaluate=evaluate).run(tmp_path / name)
        with np.load(tmp_path / name / "metrics.npz") as archive:
            arrays.append(dict(archive))
    for field in ("train_loss", "train_source", "train_cosine"):
        np.testing.assert_array_equal(arrays[0][f"untied.{field}"], arrays[1][f"untied.{field}"])
        assert (arrays[1][f"untied.{field}"] != 0).all()
    assert (arrays[1]["untied.final_loss"] == 0).all()


def with_head(params):
    return params | {"head": params.get("head", params["embed"])}


@pytest.mark.slow
def test_arms_are_models_trained_by_hand(outcome):
    """Tied: one table, the sum of the gradients of its uses; untied: both; the order of examples is that of the feed."""
    folder = outcome.report.parent
    rates = json.loads((folder / "results.json").read_text())["rates"]
    window = next(ExampleFeed(ARGUMENTS["training"], 8).open([(1, 0)], range(1), 1, 0))
    tokens, following = (jnp.asarray(window[name][0]) for name in ("tokens", "next"))
    key = jax.random.key(1)
    for place, arm in enumerate(("tied", "untied")):
        full = init(stream(key, "init"))
        params = {name: leaf for name, leaf in full.items() if arm == "untied" or name != "head"}
        optimizer = optax.adamw(lambda step, rate=rates[arm][0]: rate * warm_up_constant_decay(step, 60))
        state = optimizer.init(params)

        @jax.jit
        def trained(params, state, step, optimizer=optimizer):
            batch = {"tokens": tokens[step], "next": following[step]}
            dropout = jax.random.fold_in(stream(key, "dropout"), step)
            grads = jax.grad(lambda params: loss(with_head(params), batch, dropout))(params)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        for step in range(60):
            params, state = trained(params, state, step)
        expected = float(loss(with_head(params), ARGUMENTS["held_out"], None))
        np.testing.assert_allclose(outcome.final[place, 1], expected, rtol=1e-3)  # of 60 steps in float32


def of_rows(params, batch, key):
    """The loss of a head of any number of rows, in one axis or two."""
    head = params["head"].reshape(-1, WIDTH)
    logits = jnp.tanh(params["embed"][batch["tokens"]] @ params["body"]) @ head.T
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"] % len(head)).mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transform", "shape", "read"),
    [
        (Slice((0, 5)), (5, WIDTH), lambda table: table[:5]),
        (Reshape((TOKENS * WIDTH,)), (TOKENS * WIDTH,), jnp.ravel),
    ],
)
def test_a_tie_on_the_first_axis_is_a_model_trained_by_hand(transform, shape, read, tmp_path):
    """Parameters of a comparison have axes of seeds and arms in front, which are not those of the transform."""
    steps, rate, key = 12, 0.5, jax.random.key(1)
    found = comparison(
        init=lambda key: init(key) | {"head": jax.random.normal(key, shape)},
        loss=of_rows,
        ties=Tie("embed", "head", transform=transform),
        optimizer=optax.sgd,
        schedule=lambda step, steps: 1.0,
        rates=[rate],
        steps=steps,
    ).run(tmp_path / "run")
    full = init(stream(key, "init"))
    params = {"embed": full["embed"], "body": full["body"]}
    window = next(ExampleFeed(ARGUMENTS["training"], 8).open([(1, 0)], range(1), 1, 0))

    @jax.jit
    def of_tied(params, batch):
        return of_rows(params | {"head": read(params["embed"])}, batch, None)

    for step in range(steps):
        batch = {name: window[name][0, step] for name in ("tokens", "next")}
        params = jax.tree.map(lambda leaf, grad: leaf - rate * grad, params, jax.grad(of_tied)(params, batch))
    np.testing.assert_allclose(found.final[0, 1], of_tied(params, ARGUMENTS["held_out"]), rtol=1e-5)
    assert (found.final[1:, 1] != found.final[0, 1]).all()  # untied, and untied later


@pytest.mark.slow
def test_two_learning_rates_and_a_function_of_batches(tmp_path):
    labels = lambda params: {name: "table" if name in ("embed", "head") else "body" for name in params}  # noqa: E731
    found = comparison(
        training=lambda seed, step: jax.tree.map(lambda leaf: leaf[(seed + step) % 20 :][:8], ARGUMENTS["training"]),
        optimizer=lambda rate, table: optax.multi_transform({"table": optax.sgd(table), "body": optax.sgd(rate)}, labels),
        rates=[0.1],
        table_factors=[1, 4],
        arms=[tied, untied],
        margin=None,
    ).run(tmp_path / "run", seeds=[3])
    assert {tuple(np.round(np.array(rates) / 0.1, 3)) for rates in found.rates.values()} <= {
        (1, f) for f in (1, 2, 4, 8, 16, 32)
    }
    assert found.final.shape == (2, 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of one process with two devices."""
    out = tmp_path_factory.mktemp("whole") / "run"
    ended = end(start("--out", out, script=FILE, env=TWO_DEVICES))
    assert ended.status == 0, ended.err
    return out


@pytest.mark.slow
def test_killed_and_resumed_anywhere(whole, tmp_path):
    """A process is killed twice, and more seeds are appended to the run when it has ended."""
    killed = tmp_path / "killed"

    def started(*flags):
        return start("--out", killed, *flags, script=FILE, env=TWO_DEVICES)

    for stage in ("rate.", "tied"):
        process = started("--checkpoint_every", "0.1", *(["--resume"] if killed.exists() else []))
        wait_until(lambda stage=stage: [*(killed / "finished").glob(f"{stage}*")], process)
        process.kill()
        end(process)
    end(started("--resume"))
    one, other = (json.loads((folder / "results.json").read_text()) for folder in (whole, killed))
    assert one["arms"] == other["arms"]
    assert one["tuning"] == other["tuning"]
    end(started("--resume", "--seeds", "3"))
    more = json.loads((killed / "results.json").read_text())
    assert more["seeds"] == [0, 1, 2]
    assert [row["loss"][:2] for row in more["arms"].values()] == [row["loss"] for row in one["arms"].values()]


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_one_resumes_what_they_leave(whole, tmp_path):
    folders = [whole, tmp_path / "two", tmp_path / "killed"]

    def both(out):
        each = ({**variables, "JAX_NUM_CPU_DEVICES": "1"} for variables in processes_of_one_run(2))
        return [start("--out", out, "--checkpoint_every", "0.1", script=FILE, env=variables) for variables in each]

    first, second = (end(process) for process in both(folders[1]))
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert "2 x cpu" in first.out
    assert [line for line in second.out.splitlines() if not line.startswith("[Gloo]")] == []
    first, second = both(folders[2])
    assert wait_until(lambda: [*(folders[2] / "finished").glob("rate.*")], first)
    second.kill()
    assert end(second).status == -signal.SIGKILL
    assert end(first).status not in (0, None)
    ended = end(start("--out", folders[2], "--resume", script=FILE, env=TWO_DEVICES))
    assert ended.status == 0, ended.err
    one, *others = (json.loads((folder / "results.json").read_text()) for folder in folders)
    for other in others:
        assert (other["arms"], other["tuning"]) == (one["arms"], one["tuning"])


@pytest.mark.slow
def test_an_arm_that_ties_has_the_rates_of_untied_models(tmp_path):
    """After a single step each, which is called one."""
    found = comparison(arms=[tied, untied, tie_at(0.5)], rates=[0.1], steps=2, batch_size=1).run(tmp_path / "run", seeds=1)
    assert "; those of untied models also for tie-1/2</" in (page := found.report.read_text())
    assert "of tied models also" not in page
    assert "2 steps of 1 example," in page
    assert sentence({"name": "A", "steps": 1, "families": {}}) == "For A, after 1 step:"


def test_the_answer_in_words():
    row = {
        "id": "untie-2/3/tied",
        "verdict": "contradicted",
        "estimate": -0.02,
        "interval": [-0.03, -0.01],
        "unit": "nats",
        "n": 8,
        "goal": "difference",
        "sign": 1,
        "margin": 0.05,
        "equivalence": None,
        "look": 8,
        "last_look": 8,
    }
    words = "Untie-2/3 models end 0.02 nats lower than tied ones [0.01, 0.03] (8 seeds)."
    assert in_words(row, "untie-2/3", "tied") == words
    assert "0.02 nats higher" in in_words(row | {"estimate": 0.02, "interval": [0.01, 0.03]}, "a", "b")
    later = in_words(row | {"last_look": 16, "n": 16}, "a", "b")
    assert later == "A models end 0.02 nats lower than b ones [0.01, 0.03] (16 seeds, decided with 8)."
    moved = in_words(row | {"last_look": 16, "n": 16, "estimate": 0.01, "interval": [-0.01, 0.03]}, "a", "b")
    assert moved.endswith("[-0.01, 0.03] (16 seeds, decided with 8; all 16 do not bear it out).")
    near = row | {"equivalence": {"verdict": "supported", "look": 8}}
    assert in_words(near, "a", "b") == "A and b models end less than 0.05 nats apart (a - b -0.02 [-0.03, -0.01], 8 seeds)."
    more = {"seeds_needed": 20, "note": None, "estimand": "the loss (a - b)", "interval": [-0.04, 0.01]}
    assert in_words(row | more | {"verdict": "undecided"}, "a", "b") == (
        "Whether a models end lower than b ones is not decided with 8 seeds: the loss (a - b) is -0.02 nats [-0.04, 0.01]; "
        "about 20 seeds would decide it if the true difference is 0.05 nats."
    )


@with_defaults(out="runs/scaled")
class Scaled(Settings):
    """All settings of a run.

    Args:
        scale: factor of the initial values
    """

    GIVEN = {"steps": 20, "rates": [0.1], "seeds": 1}  # noqa: RUF012, a constant

    scale: float = 1.0


@pytest.mark.slow
def test_a_study_in_one_file(tmp_path, capsys):
    def build(settings):
        return comparison(init=lambda key: jax.tree.map(lambda leaf: settings.scale * leaf, init(key)), arms=[tied, untied])

    study = simple_study("scaled", Scaled, build, "training of a scaled model")
    assert entry.main(study, ["--scale", "0.5", "--out", str(tmp_path / "run")]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (results["experiment"], results["steps"], results["tuning"]) == ("scaled", 20, {})
    with pytest.raises(BadInput, match=r"scale: 0\.5 -> 0\.25"):
        entry.main(study, ["--scale", "0.25", "--out", str(tmp_path / "run"), "--resume"])
    with pytest.raises(SystemExit):
        entry.main(study, ["--help"])
    assert "factor of the initial values" in capsys.readouterr().out


@pytest.mark.slow
def test_two_devices_train_a_model_as_one_does(tmp_path):
    """Each on half of a batch."""
    for out, devices in (("one", 1), ("two", 2)):
        flags = ("--rates", "[0.1]", "--seeds", "1", "--mesh", devices, "--out", tmp_path / out)
        ended = end(start(*flags, script=FILE, env={"JAX_NUM_CPU_DEVICES": str(devices), "KEPT": "1"}))
        assert ended.status == 0, ended.err
    with np.load(tmp_path / "one" / "metrics.npz") as one, np.load(tmp_path / "two" / "metrics.npz") as two:
        assert one.keys() == two.keys()
        for name in one:
            np.testing.assert_allclose(two[name], one[name], rtol=2e-3, atol=2e-3, err_msg=name)


@pytest.mark.slow
def test_rates_and_factors_are_chosen_together(tmp_path):
    """Six pairs are trained with one seed, and the best four with the others."""
    optimizer = {
        "optimizer": lambda rate, table: optax.multi_transform(
            {"tables": optax.sgd(table), "rest": optax.sgd(rate)},
            {"embed": "tables", "head": "tables", "body": "rest"},
        )
    }
    grid = {"rates": [0.02, 0.04], "table_factors": [1, 2, 4]}
    outcome = comparison(**optimizer, **grid, arms=[tied, untied]).run(tmp_path / "grid", seeds=2, steps=60)
    tuning = json.loads((outcome.report.parent / "results.json").read_text())["tuning"]["tied"]
    tried = dict(zip(zip(tuning["rates"], tuning["factors"], strict=True), tuning["losses"], strict=True))
    assert {(rate, factor) for rate in grid["rates"] for factor in grid["table_factors"]} <= set(tried)
    in_full = {pair for pair, losses in tried.items() if len(losses) > 1}
    assert set(sorted(tried, key=lambda pair: tried[pair][0])[:4]) <= in_full
    assert len(in_full) < len(tried)
    best = tuning["best"], tuning["best_factor"]
    assert np.mean(tried[best]) == min(np.mean(tried[pair]) for pair in in_full)
    assert outcome.rates["tied"] == pytest.approx([best[0], best[0] * best[1]])
    # The first seed's model of a pair is the reported one of that seed and pair.
    alone = comparison(**optimizer, rates=[0.02], table_factors=[2], arms=[tied, untied])
    alone = alone.run(tmp_path / "alone", seeds="[1000,1001]", steps=60)
    assert alone.final[0, 0] == pytest.approx(tried[0.02, 2.0][0], rel=1e-6)
    page = outcome.report.read_text()
    assert "factor of the tables" in page


@pytest.mark.slow
def test_switches_are_given_as_booleans(tmp_path, capsys):
    given = {"arms": [tied, untied], "rates": [0.1], "steps": 8}
    comparison(**given).run(tmp_path / "out", quiet=True)
    assert capsys.readouterr().out.startswith("report: ")
    comparison(**given).run(tmp_path / "other", quiet=False)
    assert not capsys.readouterr().out.startswith("report: ")


def test_records_of_an_outcome_are_those_of_one_step(tmp_path):
    """Of arms that change, or end, at steps of their own."""
    steps = {"tied": [0, 10, 20, 30, 40], "half": [0, 10, 20], "untie-1/3": [0, 10, 13, 20, 30, 40]}
    results = {"arms": {arm: {"loss": [1.0]} for arm in steps}, "claims": [], "rates": {}, "tuning": {}}
    (tmp_path / "results.json").write_text(json.dumps(results | {"name": "A", "steps": 40, "families": {}}))
    arrays = {arm.replace("/", "."): np.array(of_arm) for arm, of_arm in steps.items()}
    fields = {f"{arm}.validation_step": of_arm for arm, of_arm in arrays.items()}
    np.savez(tmp_path / "metrics.npz", **fields, **{f"{arm}.validation_loss": values[None] for arm, values in arrays.items()})
    found = Outcome.of(tmp_path)
    assert found.steps.tolist() == [0, 10, 20]
    assert found.losses.tolist() == [[[0, 10, 20]]] * 3


@pytest.mark.slow
def test_a_loss_that_is_not_a_mean_over_examples_is_refused_on_several_devices(tmp_path):
    code = """
import comparison_model
from comparison_model import comparison
def of_few(params, batch, key):
    few = batch["tokens"] < 3
    logits = comparison_model.jnp.tanh(params["embed"][batch["tokens"]] @ params["body"]) @ params["head"].T
    losses = comparison_model.optax.softmax_cross_entropy_with_integer_labels(logits, batch["next"])
    return (few * losses).sum() / few.sum()
comparison(loss=of_few).main()
"""
    flags = ("--rates", "[0.1]", "--seeds", "1", "--steps", "4", "--mesh", "2", "--out", tmp_path / "out")
    ended = end(start_python("-c", code, *flags, cwd=FILE.parent, env=TWO_DEVICES))
    assert ended.status == 2
    assert "--mesh: the loss of the first batch is " in ended.err
    assert not (tmp_path / "out").exists()
