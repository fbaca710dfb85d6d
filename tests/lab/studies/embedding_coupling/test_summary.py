"""Tests of the collected results of a run with diverged models, and of its gate, on tiny arrays."""

from types import SimpleNamespace

import numpy as np
import pytest

from tiejax.lab.studies.embedding_coupling import study
from tiejax.lab.studies.embedding_coupling.preparation import Prepared
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.summary import collect, collect_all
from tiejax.lab.studies.embedding_coupling.text import Text
from tiejax.pretraining.step_plan import StepPlan
from tiejax.text.sequences import Sequences
from tiejax.text.tokenizer import Vocabulary
from tiejax.text.twins import Twins

SEEDS = [5, 7, 9]


def scores(*shape):
    """Return distinct scores `[start, seed, run]`, all of finite models."""
    values = np.arange(np.prod(shape), dtype=float).reshape(shape) / 100
    names = ("development_accuracy", "test_accuracy", "test_macro_f1")
    return {"finite": np.ones(shape, bool)} | {name: values + index for index, name in enumerate(names)}


@pytest.fixture
def stages():
    """Two shapes, three reported seeds and a tuning seed, which is last in pre-training."""
    found = {}
    for shape in ("a", "b"):
        found |= {
            f"pretrain.{shape}": {
                "record_finite": np.ones((4, 2), bool),
                "record_accuracy": np.zeros((4, 2)),
                "validation_loss": np.arange(8.0).reshape(4, 2),
                "validation_accuracy": np.arange(8.0).reshape(4, 2) / 10,
                "validation_step": np.array([0, 4]),
            },
            f"rates.{shape}.tags": {
                "rate": np.array([1e-3, 2e-3]), "tried": np.array([1e-3, 2e-3]), "development": np.full((2, 2, 1), 0.5),
            },
            f"scores.{shape}.tags": scores(2, 3, 2),
            f"dropped.{shape}.1": scores(1, 3, 2),
            f"probes.{shape}": {
                "retrieval_all": np.ones((2, 3, 2)), "retrieval_held_out": np.ones((2, 3, 2)),
                "similarity_input": np.ones(3), "similarity_input_interval": np.ones((3, 2)),
            },
        }  # fmt: skip
    return found


def test_all_seeds_are_collected_alike_if_none_diverged(stages):
    every, finite = (collected(["a", "b"], ["tags"], stages, SEEDS) for collected in (collect_all, collect))
    assert finite["seeds"] == SEEDS
    assert every == {name: value for name, value in finite.items() if name in every}
    assert every["pretraining"]["a"]["loss"] == [1, 3, 5]  # not the tuning seed


def test_a_diverged_fine_tuning_run_is_undefined_for_its_start_and_seed(stages):
    stages["scores.b.tags"]["finite"][1, 2, 0] = False
    found = collect_all(["a", "b"], ["tags"], stages, SEEDS)["scores"]["tags"]
    assert np.isnan(found["b"]["control"]["test_accuracy"]).tolist() == [False, False, True]
    assert np.isfinite([found["b"]["pretrained"]["test_accuracy"], found["a"]["control"]["test_accuracy"]]).all()
    assert collect(["a", "b"], ["tags"], stages, SEEDS)["excluded_seeds"] == [9]


def test_a_diverged_pre_training_leaves_only_the_control(stages):
    stages["pretrain.a"]["record_finite"][0, 1] = False
    body = collect_all(["a", "b"], ["tags"], stages, SEEDS)
    lost = [True, False, False]
    for values in (
        body["pretraining"]["a"]["loss"],
        body["scores"]["tags"]["a"]["pretrained"]["test_accuracy"],
        body["dropped"]["a"]["1"]["pretrained"]["test_macro_f1"],
        np.array(body["retrieval"]["a"]["held_out"]["pretrained"])[:, -1],
        body["similarity"]["a"]["input"],
    ):
        assert np.isnan(values).tolist() == lost
    assert np.isfinite(body["scores"]["tags"]["a"]["control"]["test_accuracy"]).all()
    assert np.isfinite(body["retrieval"]["a"]["held_out"]["control"]).all()
    assert np.isfinite(body["scores"]["tags"]["b"]["pretrained"]["test_accuracy"]).all()
    assert collect(["a", "b"], ["tags"], stages, SEEDS)["seeds"] == [7, 9]


def test_a_tuning_seed_that_diverges_excludes_nothing(stages):
    stages["pretrain.a"]["record_finite"][3] = False
    assert collect(["a", "b"], ["tags"], stages, SEEDS)["seeds"] == SEEDS


def concluded(stages, gate, bigram):
    """Return results.json of a run of these stages. Shapes `a` and `b` end with 1, 3 and 5 nats."""
    shape = {"embed_in": 4, "embed_out": 4, "width": 8, "layers": 2, "heads": 2}
    settings = Settings(
        seeds=SEEDS, rate_seeds=1, shapes={"a": shape, "b": shape}, tasks={"tags": {"train": "x"}}, gate=gate
    ).resolved()
    train, vocabulary = Sequences(np.arange(9), np.array([0, 9])), Vocabulary(9, 0, 1, 2, 3, 4, ("",) * 9)
    text = Text(None, vocabulary, Twins(9, (), (), ()), train, train, None, {}, b"")
    task, probes = SimpleNamespace(name="tags", facts={}), SimpleNamespace(facts={})
    prepared = Prepared(text, StepPlan(4, 1, 1, 1, 0.0, 0.0), [task], probes, None)
    return study.conclude(settings, prepared, stages, {"left": 4.0, "right": 4.5, "both": bigram})


@pytest.mark.parametrize(
    ("gate", "bigram", "failing"),
    [(0.1, 3.2, []), (0.1, 3.05, ["a", "b"]), (0.1, 9.0, []), (-1.0, 2.5, []), (None, 1.0, []), (1.5, 9.0, ["a", "b"])],
)
def test_claims_are_tested_if_the_reported_models_pass_the_gate(stages, gate, bigram, failing):
    """The best bigram model counts, which has 4 nats where that of both neighbours is worse."""
    found = concluded(stages, gate, bigram)
    assert found["bigram"] == {"left": 4.0, "right": 4.5, "both": bigram}
    assert (found["gate"]["margin"], found["gate"]["bigram"]) == (gate, min(bigram, 4.0))
    assert found["gate"]["losses"] == {"a": 3.0, "b": 3.0}  # without the tuning seed, whose models end with 7 nats
    assert [name for name in ("a", "b") if f"the {name} models end with 3.000" in found["gate"]["failed"]] == failing
    families = {row["family"] for row in found["claims"]}
    assert families == {"exploratory" if failing else "registered"}


def test_the_gate_judges_a_shape_without_its_diverged_seed(stages):
    stages["pretrain.a"]["record_finite"][0, 1] = False
    found = concluded(stages, 0.1, 3.5)
    assert found["gate"]["losses"] == {"a": 4.0, "b": 3.0}
    assert "the a models end with 4.000" in found["gate"]["failed"]
    assert "the b models" not in found["gate"]["failed"]


def test_the_condition_on_transfer_is_about_development(stages):
    """In the stages of this module, the control scores higher."""
    found = concluded(stages, 0.1, 3.2)["transfer"]
    of_start = stages["scores.a.tags"]["development_accuracy"].mean(-1)
    assert found == {"baseline": "a", "development_gain": np.median(of_start[0] - of_start[1]), "passed": False}
    stages["scores.a.tags"]["development_accuracy"] = stages["scores.a.tags"]["development_accuracy"][::-1]
    assert concluded(stages, 0.1, 3.2)["transfer"]["passed"]
