"""End-to-end tests of the study: its files, forks that continue their parents bit for bit, and resumption after kills."""

import itertools
import json
import shlex
from fractions import Fraction

import jax
import numpy as np
import pytest
import yaml
from processes import EXPERIMENTS, end, start, wait_until
from stream_runs import corpus_folder, metrics, text_of

from tiejax.lab.comparison.segments import Segment
from tiejax.lab.comparison.training import Members, Trainer
from tiejax.lab.runs import entry
from tiejax.lab.runs.console import Console
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.causal_untying import plan, text
from tiejax.lab.studies.causal_untying.model import Recipe
from tiejax.lab.studies.causal_untying.page import EXPLORED
from tiejax.lab.studies.causal_untying.settings import STUDY, Settings
from tiejax.training.checkpoint import from_arrays, to_arrays
from tiejax.training.loop import Training

pytestmark = pytest.mark.slow
SCRIPT = EXPERIMENTS / "causal_untying.py"
SIZE = shlex.split("""
  --vocab_size 300 --layers 1 --width 8 --heads 2 --context 12 --batch_size 4 --steps 60 --record_every 20 --validate_every 20
  --validation_blocks 8 --untie_at [1/3,2/3] --tied_rate .01 --untied_rate .02 --seeds [3,7]
""")
SMALL = [*SIZE, *shlex.split("--wide false --deep false --factorised false --lengths [] --table_factors [1] --gate -9")]
TABLES = ("embed", "head")
ARMS = ["tied", "untie-1/3", "untie-2/3", "never-equal", "never-independent"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus_folder(tmp_path_factory)


def arguments(data, *more):
    return [*text_of(data), *SMALL, *map(str, more)]


def train_here(argv):
    """Run the study in this process, in which jax is already initialised."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiejax.lab.runs.train.stop_flag", lambda: lambda: False)
        assert entry.main(STUDY, argv) == 0


@pytest.fixture(scope="module")
def run(data):
    """A run of two seeds in this process."""
    out = data / "run"
    train_here(arguments(data, "--out", out))
    return out


class NoStages:
    """Trains without a run directory."""

    def train(self, name, ensemble, seeds, conditions, first, start):
        training = Training(ensemble, seeds, conditions=conditions, start=start)
        training.compile()
        for _ in training.chunks():
            pass
        return training.result()


def trainer_of(run):
    settings = Settings(**yaml.safe_load((run / "config.yaml").read_text()))
    return Trainer(Recipe(settings, text.prepare(settings, Console(quiet=True))), settings.steps, NoStages())


def test_results_and_records(run):
    results, arrays = json.loads((run / "results.json").read_text()), metrics(run)
    assert set(results["arms"]) == set(ARMS)
    assert results["tokens"] == 60 * 4 * 11
    assert {row["id"] for row in results["claims"] if row["family"] == "registered"} == {
        "tied/never",
        "late/tied",
        "late/never",
        "frequency/late-tied",
    }
    for arm in ARMS:
        name = arm.replace("/", ".")
        assert arrays[f"{name}.train_step"].tolist() == [0, 20, 40, 60]
        assert arrays[f"{name}.validation_loss"].shape == (2, 4)
        nats, count = (arrays[f"{name}.{field}"].sum(-1) for field in ("nats", "count"))
        np.testing.assert_allclose(results["arms"][arm]["loss"], nats / count, rtol=1e-6)
    assert (run / "report.html").read_text().count("At this size (1 layers of width 8") >= 1


def test_arms_share_what_they_should(run):
    """An arm that unties has its parent's records until then; equal tables start apart by 0, independent ones do not."""
    arrays = metrics(run)
    for arm, step in (("untie-1.3", 1), ("untie-2.3", 2)):
        for field in ("train_loss", "validation_loss", "train_cosine"):
            np.testing.assert_array_equal(arrays[f"{arm}.{field}"][:, : step + 1], arrays[f"tied.{field}"][:, : step + 1])
        assert (arrays[f"{arm}.train_loss"][:, step + 1 :] != arrays["tied.train_loss"][:, step + 1 :]).all()
        assert (arrays[f"{arm}.train_distance"][:, : step + 1] == 0).all()
        assert (arrays[f"{arm}.train_distance"][:, step + 1 :] > 0).all()
    assert (arrays["tied.train_distance"] == 0).all()
    assert (arrays["never-equal.train_distance"][:, 0] == 0).all()
    assert (arrays["never-independent.train_distance"][:, 0] > 0.5).all()


def test_states_are_dropped_once_their_readers_have_ended(run):
    assert not [*(run / "states").iterdir()]
    assert not [name for name in json.loads((run / "run.json").read_text())["files"] if name.startswith("states/")]


def test_a_fork_continues_an_uninterrupted_run_bit_for_bit(run):
    """The tied model in one segment equals the one in three; a child that stays tied equals its parent."""
    trainer, arrays = trainer_of(run), metrics(run)
    tied = plan.Arm(plan.TIED, True)
    members = Members([3, 7], [(0.01, 1.0)] * 2)
    whole = trainer.segment("whole", Segment(tied, Fraction(0), Fraction(1), None), members, None, True)
    np.testing.assert_array_equal(whole["nats"], arrays["tied.nats"])
    np.testing.assert_array_equal(whole["train_loss"], arrays["tied.train_loss"])
    half = Segment(tied, Fraction(0), Fraction(1, 3), None)
    first = trainer.segment("first", half, members, None, True)
    rest = trainer.segment("rest", Segment(tied, Fraction(1, 3), Fraction(1), half), members, first, True)
    for name in (name for name in whole if name.startswith("state/")):
        np.testing.assert_array_equal(rest[name], whole[name])


def test_a_branch_is_a_shorter_run_bit_for_bit(data, monkeypatch):
    """Of 120 steps, the branches that end at half equal a run of 60 steps that warms up for as many steps as the longer one."""
    monkeypatch.setattr("tiejax.lab.studies.causal_untying.model.WARM_UP", 0)
    long, short = (data / name for name in ("lengths", "short"))
    same = [
        "--untie_at",
        "[2/3]",
        "--record_every",
        "4",
        "--validate_every",
        "4",
        "--tied_factor",
        "2",
        "--untied_factor",
        ".5",
    ]
    more = ["--lengths", "[1/2]", "--deep", "true"]
    train_here(arguments(data, "--out", long, *same, *more, "--steps", "120"))
    train_here(arguments(data, "--out", short, *same))
    branches, whole = metrics(long), metrics(short)
    for arm in ("tied", "untie-2.3", "never-independent"):
        for field in ("nats", "train_loss", "validation_loss", "train_step"):
            np.testing.assert_array_equal(branches[f"{arm}@1.2.{field}"], whole[f"{arm}.{field}"], err_msg=f"{arm} {field}")
    results, of_short = (json.loads((out / "results.json").read_text()) for out in (long, short))
    assert {"slope/length", "deep/never"} <= set(results["families"]["plain"])
    assert results["bigram"]["losses"]["1/2"] == of_short["bigram"]["losses"]["1"]
    page = (long / "report.html").read_text()
    assert "tied@1/2" in page
    assert "bigram@1/2" in page
    assert (long / "figures" / "lengths.png").exists()


def test_untying_at_once_is_never_tying_from_equal_tables(run):
    """A child that leaves a tied parent at step 0, before which nothing is trained."""
    trainer = trainer_of(run)
    members, tied = Members([3, 7], [(0.02, 1.0)] * 2), plan.Arm(plan.TIED, True)
    child = plan.Arm("untie-0", False, fork=Fraction(0), parent=plan.TIED)
    before = to_arrays(trainer.first_state(tied, members), "state")
    at_once = Segment(child, Fraction(0), Fraction(1), Segment(tied, Fraction(0), Fraction(0), None))
    untied = trainer.segment("at-once", at_once, members, before, False)
    np.testing.assert_array_equal(untied["nats"], metrics(run)["never-equal.nats"])


def test_exploratory_arms(run, data):
    """They train for one block of seeds; those that fork equal their parents until then."""
    out = data / "explore"
    with pytest.MonkeyPatch.context() as patch:
        # The rule is fulfilled at once, at the record of step 20 of 60: the models equal those that are untied at 1/3.
        patch.setattr("tiejax.lab.studies.causal_untying.trigger.WINDOW", 1)
        patch.setattr("tiejax.lab.studies.causal_untying.trigger.PATIENCE", 0)
        train_here([*arguments(data, "--out", out), "--explore", "true", "--trigger", "1"])
    arrays, whole = metrics(out), metrics(run)
    np.testing.assert_array_equal(arrays["untie-1.3.nats"], whole["untie-1.3.nats"])  # trained in two segments here
    arms = {name.rpartition(".")[0] for name in arrays if name.startswith(plan.EXPLORE)}
    assert arms == {plan.EXPLORE + name for name in EXPLORED if name != "yoked"}  # which needs another seed
    assert json.loads((out / "results.json").read_text())["trigger"]["steps"] == {"3": 20}
    for field in ("nats", "train_loss"):
        np.testing.assert_array_equal(arrays[f"explore-trigger.{field}"], whole[f"untie-1.3.{field}"][:1])
    for name, parent in (("long-tied", "tied"), ("long-early", "untie-1.3")):
        assert arrays[f"explore-{name}.train_step"].tolist() == [0, 20, 40, 60, 80, 90]
        np.testing.assert_array_equal(arrays[f"explore-{name}.train_loss"][:, :3], arrays[f"{parent}.train_loss"][:1, :3])
    for name in ("zero", "zero-input", "slow", "fast", "split"):
        losses = arrays[f"explore-{name}.train_loss"]
        assert losses.shape[0] == 1  # a block is one seed on one device
        np.testing.assert_allclose(losses[:, :3], arrays["tied.train_loss"][:1, :3], rtol=1e-6)
        assert losses[0, 3] != arrays["untie-2.3.train_loss"][0, 3]
    assert (arrays["explore-retie.train_distance"] == 0).all()  # recorded at both forks, while the tables are equal
    assert arrays["explore-retie.train_loss"][0, 2] != arrays["tied.train_loss"][0, 2]
    page = (out / "report.html").read_text()
    assert "Numbers: exploratory arms, means of few seeds, not tested" in page


@pytest.fixture(scope="module")
def many_words(tmp_path_factory):
    """A folder with a text of 300 words of three letters in sentences of thirty."""
    folder, rng = tmp_path_factory.mktemp("words"), np.random.default_rng(0)
    words = ["".join(letters) for letters in itertools.islice(itertools.product("abcdefg", repeat=3), 300)]
    frequency = 1 / np.arange(20, 320)
    sentences = rng.choice(words, (800, 30), p=frequency / frequency.sum())
    (folder / "corpus.txt").write_text("".join(f" {' '.join(sentence)} ." for sentence in sentences))
    return folder


def test_planted_text(many_words):
    out = many_words / "planted"
    size = ["--vocab_size", "700", "--planted", "true", "--context", "20", "--out", str(out)]
    train_here([*text_of(many_words), *SIZE, *size])
    results, arrays = json.loads((out / "results.json").read_text()), metrics(out)
    assert list(results["arms"]) == ["tied", "untie-1/3", "untie-2/3", "never-independent"]
    assert results["families"]["planted"][:3] == ["input-distance/conflict", "output-distance/reverse", "excess/contextual"]
    assert {row["family"] for row in results["claims"][3:]} == {"exploratory"}
    planted = results["planted"]
    assert {kind: len(words) for kind, words in planted["words"].items()} == {"holding": 20, "constant": 20, "contextual": 20}
    assert results["frequency_ranks"][-1] == "planted"
    for arm in results["arms"]:
        name = arm.replace("/", ".")
        assert arrays[f"{name}.train_pair_input"].shape == (2, 4, 100)
        assert arrays[f"{name}.choices"].astype(int).tolist() == [list(planted["choices"].values())] * 2
        for kind, place in (("holding", 0), ("cipher", 4)):
            expected = arrays[f"{name}.excess"][:, place] / arrays[f"{name}.choices"][:, place]
            np.testing.assert_allclose(results["arms"][arm]["excess"][kind], expected, rtol=1e-6)
    assert (arrays["tied.train_pair_input"] == arrays["tied.train_pair_output"]).all()
    page = (out / "report.html").read_text()
    assert "Numbers: planted words" in page
    assert {path.stem for path in (out / "figures").glob("*.png")} >= {"planted_distances", "planted_excess", "final"}


def test_natural_pairs(many_words):
    """They are measured before the tied arm, and their distances are recorded in all arms."""
    out = many_words / "natural"
    size = ["--vocab_size", "700", "--context", "32", "--natural_pairs", "40", "--out", str(out)]
    train_here([*text_of(many_words), *SMALL, *size])
    natural, arrays = json.loads((out / "results.json").read_text())["natural"], metrics(out)
    assert len(natural["pairs"]) == 40
    assert all(len(word) == 3 for pair in natural["pairs"] for word in pair["words"])
    with np.load(out / "finished" / "natural-pairs.npz") as measured:
        for field in ("semantic", "conditional"):
            assert measured[field].shape == (2, 40)
            np.testing.assert_allclose([pair[field] for pair in natural["pairs"]], measured[field].mean(0), rtol=1e-5)
    assert list(natural["tables"]) == ARMS
    assert natural["tables"]["tied"]["input"] == natural["tables"]["tied"]["output"]
    assert all(arrays[f"{arm.replace('/', '.')}.train_pair_output"].shape == (2, 4, 40) for arm in ARMS)
    assert (out / "figures" / "natural_pairs.png").exists()
    assert "natural pairs in the lowest or highest fifth" in (out / "report.html").read_text()


def test_changes_at_a_fork(run):
    """Moments and counts of the tables after each change, by path; other leaves stay."""
    trainer = trainer_of(run)
    members = Members([3], [(0.01, 1.0)])
    arms = {arm.name: arm for arm in [*trainer.recipe.settings.arms, *plan.exploratory(trainer.recipe.settings.forks)]}
    by_use = Segment(arms["explore-by-use"], Fraction(0), Fraction(1, 3), None)
    like = jax.eval_shape(lambda: trainer.first_state(by_use.arm, members))
    state = from_arrays(trainer.segment("by-use", by_use, members, None, True), like, "state")

    def moments(arm, parent):
        after = trainer.changed(arms[arm], arms[parent], state).opt_state
        parts = jax.tree.leaves(after, is_leaf=lambda part: hasattr(part, "mu"))
        adam = next(part for part in parts if hasattr(part, "mu"))
        mu, count = ({table: np.asarray(part[table]["embedding"]) for table in TABLES} for part in (adam.mu, adam.count))
        return {table: (mu[table], int(count[table].max())) for table in TABLES}

    shared = moments("untie-1/3", "tied")
    np.testing.assert_array_equal(shared["embed"][0], shared["head"][0])
    assert shared["embed"][1] == shared["head"][1] == 20
    zero, other = moments("explore-zero", "tied"), moments("explore-zero-input", "tied")
    assert (zero["head"][0] == 0).all()
    assert zero["head"][1] == other["embed"][1] == 0
    np.testing.assert_array_equal(zero["embed"][0], shared["embed"][0])
    np.testing.assert_array_equal(other["head"][0], shared["head"][0])
    split = moments("explore-split", "explore-by-use")
    np.testing.assert_allclose(split["embed"][0] + split["head"][0], shared["embed"][0], rtol=1e-4, atol=1e-8)
    assert np.abs(split["embed"][0] - split["head"][0]).max() > 1e-4


def test_killed_and_resumed_anywhere(run, data):
    """Kill the process as soon as it has ended 1 and 3 stages: within a parent, and between a parent and its child."""
    out, one_device = data / "killed", {"JAX_NUM_CPU_DEVICES": "1"}  # as the uninterrupted run in this process
    for stages in (1, 3):
        resume = ["--resume"] if out.exists() else []
        more = ["--checkpoint_every", ".01", *resume]
        process = start(*arguments(data, "--out", out, *more), script=SCRIPT, env=one_device)
        wait_until(lambda stages=stages: len(list((out / "finished").glob("*.npz"))) >= stages, process)
        process.kill()
        end(process)
    assert end(start(*arguments(data, "--out", out, "--resume"), script=SCRIPT, env=one_device)).status == 0
    killed, whole = metrics(out), metrics(run)
    assert killed.keys() == whole.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(killed[name], values, err_msg=name)


def test_a_missing_state_is_named(data):
    """Killed after the first segment of the parent, whose state is then removed, with what a child has made of it."""
    out = data / "missing"
    process = start(*arguments(data, "--out", out), script=SCRIPT)
    wait_until(lambda: list((out / "finished").glob("tied.0.*.npz")), process)
    process.kill()
    end(process)
    (parent,) = (out / "finished").glob("tied.0.*.npz")
    state = out / "states" / parent.name
    state.unlink(missing_ok=True)
    for child in (out / "finished").glob("untie-*.npz"):
        child.unlink()
    ended = end(start(*arguments(data, "--out", out, "--resume"), script=SCRIPT))
    assert ended.status == 2
    assert f"{state} is missing, from which other stages continue" in ended.err


def test_a_finished_run_goes_on_with_a_control(run, data):
    """A control is added for the first seed, and taken away; models of the other arms stay as they are."""
    before, resumed = metrics(run), [*arguments(data, "--out", run), "--resume", "--control_seeds"]
    train_here([*resumed, "1"])
    arms, after = json.loads((run / "results.json").read_text())["arms"], metrics(run)
    assert set(arms) == {*ARMS, "tied-cosine", "untie-2/3-cosine", "never-equal-cosine"}
    assert len(arms["tied-cosine"]["loss"]) == 1
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values, err_msg=name)
    train_here([*resumed, "0"])
    assert set(json.loads((run / "results.json").read_text())["arms"]) == set(ARMS)


def test_seeds_are_appended(run, data):
    """The seeds that were trained stay as they are; results cover all."""
    before = metrics(run)
    train_here([*arguments(data, "--out", run, "--resume"), "--seeds", "[3,7,11]"])
    after = metrics(run)
    assert after["tied.nats"].shape[0] == 3
    np.testing.assert_array_equal(after["tied.nats"][:2], before["tied.nats"])
    assert json.loads((run / "results.json").read_text())["seeds"] == [3, 7, 11]


def test_the_gate_ends_a_run_before_its_first_seed(data):
    out = data / "gate"
    tuned = arguments(data, "--out", out)
    for name in ("--tied_rate", "--untied_rate"):
        place = tuned.index(name)
        del tuned[place : place + 2]
    with pytest.raises(BadInput, match=r"--gate: the tied models end with .* where a bigram model has"):
        train_here([*tuned, "--gate", "9", "--rate_seeds", "1", "--rates", "[.005,.01,.02]"])
    assert not list((out / "finished").glob("tied*"))
