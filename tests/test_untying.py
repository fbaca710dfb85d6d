"""The untying experiment: its statistics against numpy, and the command from its options to its page."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from processes import assert_refused, command_here, tree

from tiejax import training
from tiejax.runs import launch
from tiejax.statistics import paired_test as paired
from tiejax.statistics import untie_curve as untying
from tiejax.statistics.untie_curve import Arms
from tiejax.studies.untying import study as experiment

CONFIGS = Path(__file__).parents[1] / "configs" / "untying"
STEPS = [0, 25, 50, 75, 100]


def arms(policies=("copy", "zero"), new=("output", "input")):
    return Arms.of([25, 0.5, 0.75, 0, 1.0], 100, policies, new)


def test_variants_are_three_ends_and_every_policy_at_every_step():
    found = arms()
    assert found.step.tolist() == [-1, 0, 100, 25, 50, 75, 25, 50, 75, 25, 50, 75]
    assert found.policy.tolist() == [""] * 3 + ["copy"] * 3 + ["zero"] * 6
    assert found.new.tolist() == [""] * 3 + ["output"] * 6 + ["input"] * 3
    curves = found.curves()
    assert {name: found.step[numbers].tolist() for name, numbers in curves.items()} == dict.fromkeys(
        ["copy", "zero, new output", "zero, new input"], STEPS
    )
    assert curves["zero, new input"].tolist() == [1, 9, 10, 11, 2]
    assert len(set(found.names)) == 12
    assert found.names[:3] == ["never-tied-independent", "never-tied-equal", "tied"]


def losses(seeds=12, best=50):
    """A valley with its floor at `best`; the ends are high, tied ones highest; noise is a seed's own, nearly."""
    rng = np.random.default_rng(0)
    found = arms(("copy",))
    base = {-1: 0.9, 0: 1.0, 100: 1.2} | {step: 0.5 + abs(step - best) / 100 for step in (25, 50, 75)}
    own = rng.normal(size=seeds)
    return found, np.array([base[step] + own + 0.01 * rng.normal(size=seeds) for step in found.step.tolist()])


def test_the_best_step_and_what_untying_there_gives():
    found, loss = losses()
    body = untying.analyse(found, loss, loss < 1, {"twice": 2 * loss}, "loss")
    (curve,) = body["curves"]
    assert (curve["curve"], curve["best_step"], curve["steps"]) == ("copy", 50, STEPS)
    rows = {row["id"]: row for row in body["claims"]}
    assert set(rows) == {f"untying-helps/{base}/copy" for base in untying.BASELINES}
    # The inner steps are at .75, .5 and .75.
    for base, gain in {"tied": 2 / 3 - 1.2, "equal": 2 / 3 - 1, "independent": 2 / 3 - 0.9}.items():
        row = rows[f"untying-helps/{base}/copy"]
        assert row["verdict"] == "supported"
        assert row["estimate"] == pytest.approx(gain, abs=0.02)
        # In the table: the paired difference at every inner step.
        number = found.baseline(base)
        medians = [np.median(loss[one] - loss[number]) for one in (3, 4, 5)]
        np.testing.assert_allclose([one["estimate"] for one in curve["against"][base]], medians)
    assert curve["points"][2]["median"] == pytest.approx(np.median(loss[4]))
    assert curve["points"][2]["solved"] == int((loss[4] < 1).sum())
    assert body["ends"]["tied"]["medians"]["twice"] == pytest.approx(2 * np.median(loss[2]))


def test_claims_choose_no_step(monkeypatch):
    """Every seed is lucky at a step of its own, and no step is better than another: untying neither helps nor harms."""
    # The intervals take nearly all the time, and nothing is asked of them.
    for module in (untying, paired):
        monkeypatch.setattr(module, "RESAMPLES", 99)
    rng, found = np.random.default_rng(3), Arms.of(list(range(1, 21)), 21, ["copy"])
    verdicts = []
    for _ in range(40):
        body = untying.analyse(found, rng.exponential(size=(len(found.step), 20)), None, {}, "loss")
        verdicts += [row["p"] < 0.05 for row in body["claims"] if row["id"].startswith("untying-helps/tied")]
    # The mean of 20 exponential values against one: the difference has mean 0 and a median a little above it.
    assert sum(verdicts) <= 8


def test_intervals_of_the_median_cover_it():
    """Of 200 samples of 15 normal values, about 95 % of the intervals hold the true median, 0."""
    low, high = untying.median_interval(np.random.default_rng(1).normal(size=(200, 15)))
    assert 0.88 < ((low <= 0) & (high >= 0)).mean() < 0.995
    assert np.isnan(untying.median_interval(np.ones((3, 1)))).all()


def test_the_interval_of_the_best_step_tells_how_sure_it_is():
    found, loss = losses(seeds=16)
    numbers = found.curves()["copy"]
    assert untying.best_step(found.step[numbers], loss[numbers]) == (50, (50, 50))
    flat = np.random.default_rng(2).normal(size=(5, 16))
    _, (low, high) = untying.best_step(np.array(STEPS), flat)
    assert high - low >= 50


TINY = ["--steps", "40", "--bits", "4", "--record_every", "10", "--exact_every", "10", "--half_period", "10", "--quiet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("untying") / "run"
    argv = [*TINY, "--seeds", "6", "--policies", "[copy,zero]", "--new", "[input]", "--out", str(out)]
    assert experiment.main(argv) == 0
    with np.load(out / "metrics.npz") as metrics:
        return out, json.loads((out / "results.json").read_text()), dict(metrics)


def test_a_run_leaves_a_curve_for_each_policy(run):
    out, results, metrics = run
    assert metrics["untie_step"].tolist() == [-1, 0, 40, 20, 20]
    assert metrics["train_loss"].shape == (5, 6, 5)
    assert [curve["curve"] for curve in results["curves"]] == ["copy", "zero, new input"]
    assert results["curves"][0]["steps"] == [0, 20, 40]
    assert len(results["claims"]) == 6
    assert {path.stem for path in (out / "figures").glob("*.png")} == {"untie_curve", "untie_distances", "untie_trajectories"}
    page = (out / "report.html").read_text()
    for words in ("tied, then untied", "copy: best untie step", "never tied, from equal tables", "How to reproduce"):
        assert words.lower() in page.lower()


def test_members_are_tied_before_their_step_and_apart_after_it(run):
    _, _, metrics = run
    apart = np.abs(metrics["distance_input"] - metrics["distance_output"]).max(axis=(1, 3))
    assert metrics["step"].tolist() == [0, 10, 20, 30, 40]
    # Independent, equal at the start, tied throughout, tied up to step 20 twice.
    expected = [[True] * 5, [False, *[True] * 4], [False] * 5, [False] * 3 + [True] * 2, [False] * 3 + [True] * 2]
    np.testing.assert_array_equal(apart > 0, expected)
    # All but the independent ones share their past, whatever is to come.
    np.testing.assert_array_equal(metrics["train_loss"][2, :, :3], metrics["train_loss"][3, :, :3])
    assert (metrics["train_loss"][3, :, 3:] != metrics["train_loss"][4, :, 3:]).any()


def test_ends_are_the_members_of_the_experiment_that_never_unties(run):
    """Always tied and never tied from independent tables: EXor's own tied and untied members, in another ensemble."""
    _, _, metrics = run
    config = experiment.base.Config(seeds=6, steps=40, bits=4, record_every=10, exact_every=10, half_period=10).resolved()
    records = training.train(experiment.base.build_ensemble(config), config.seed_list).records["record"]
    for arm, number in ((0, 0), (1, 2)):
        np.testing.assert_allclose(records["train_loss"][:, :, arm].T, metrics["train_loss"][number], rtol=1e-5)


def test_a_run_is_resumed_across_the_split(tmp_path, monkeypatch, run):
    """Stopped by a request after the first chunk, before the split, and gone on with: the same bits."""
    _, _, wanted = run
    out = tmp_path / "run"
    argv = [*TINY, "--seeds", "6", "--policies", "[copy,zero]", "--new", "[input]", "--out", str(out)]
    asked = iter([False, False, True])
    monkeypatch.setattr(experiment, "stop_flag", lambda: lambda: next(asked))
    assert experiment.main(argv) == 130
    monkeypatch.undo()
    assert experiment.main([*argv, "--resume"]) == 0
    with np.load(out / "metrics.npz") as metrics:
        for name, values in wanted.items():
            assert metrics[name].tobytes() == values.tobytes(), name


def test_defaults_are_whole_cycles_and_published_settings():
    config = launch.read_command_line(experiment.STUDY, [])[0]
    assert config.untie_at == [20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 140_000]
    assert (config.steps, config.seeds, config.out) == (150_000, 32, "runs/untying/main-transformer-small")
    assert len(config.arms.step) == 3 + 6 * 7


BAD = {
    "--untie_at [5,50] --steps 20": ("--untie_at", "--steps 20", "got 50"),
    "--untie_at [1.5]": ("--untie_at", "from 0. to 1.", "got 1.5"),
    "--untie_at []": ("--untie_at", "at least one"),
    "--policies []": ("--policies", "at least one"),
    "--policies [copy,copy]": ("--policies", "every value once"),
    "--policies [half]": ("--policies", "half"),
    "--new [middle]": ("--new", "middle"),
    "--doses [.5,.9]": ("--doses", "no setting of this experiment"),
    "--untie 3": ("--untie", "did you mean --untie_at"),
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ended = command_here(line.split(), monkeypatch, capsys, experiment)
    assert_refused(ended, *BAD[line], script=Path(experiment.__file__))
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_is_one(file):
    """It resolves, holds nothing but what differs from the defaults, and its header names its source and command."""
    config = launch.read_command_line(experiment.STUDY, ["--config", str(file)])[0]
    given = yaml.safe_load(file.read_text())
    defaults = dataclasses.asdict(experiment.Config())
    assert not {name for name, value in given.items() if value == defaults[name]}
    assert Path(config.out).name == file.stem
    head = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert head[0].startswith("# Source: ")
    assert f"# Command: python experiments/untying.py --config configs/untying/{file.name}" in head
