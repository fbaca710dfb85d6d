"""Tests of the collected results of a run with diverged models, on tiny arrays."""

import numpy as np
import pytest

from tiejax.lab.studies.embedding_coupling.summary import collect, collect_all

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
