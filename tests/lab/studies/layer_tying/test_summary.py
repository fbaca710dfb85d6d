"""Tests of the summary of each method, computed by hand."""

import numpy as np
import pytest
from layer_runs import findings_of, run

from tiejax.lab.studies.layer_tying.analysis import distinct_layers


def test_perplexity_is_exp_of_mean_nats_with_a_t_interval():
    rows = findings_of(run())[2]
    untied = rows["untied"]
    assert untied["test_perplexity"]["seeds"] == pytest.approx([8, 2])
    assert untied["test_perplexity"]["mean"] == pytest.approx(4)  # sqrt(8 x 2)
    # ln 8 and ln 2: standard error ln 2, one degree of freedom, t = 12.7062 (tables).
    assert untied["test_perplexity"]["interval"] == pytest.approx([4 * 2**-12.7062, 4 * 2**12.7062], rel=1e-4)
    assert untied["test_perplexity_per_word"]["seeds"] == pytest.approx([8**1.5, 2**1.5])
    assert untied["test_perplexity_per_word"]["mean"] == pytest.approx(8)
    assert untied["test_perplexity_per_word"]["interval"] == pytest.approx([8 * 8**-6.3531, 8 * 8**6.3531], rel=1e-3)
    assert rows["all-one"]["validation_perplexity"]["mean"] == pytest.approx(np.exp(2.65))
    assert rows["agent"]["test_perplexity"]["interval"] == pytest.approx([4, 4])


def test_layers_and_bytes_of_each_method():
    """Bytes are means over steps: the agent's first seed has 1, 2, 2 and 3 distinct layers, 2 on average."""
    rows = findings_of(run())[2]
    agent = rows["agent"]
    assert agent["distinct"] == [3, 1]
    assert agent["distinct_in_training"] == [2, 1]
    assert agent["replicated"] == [0.25, 0.75]
    assert agent["parameters"] == [130, 110]
    assert agent["parameter_bytes"] == [520, 440]
    assert agent["bytes"]["parameter_bytes"] == {"seeds": [480, 440], "largest": [520, 440]}
    assert agent["bytes"]["gradient_bytes"] == {"seeds": [480, 440], "largest": [520, 440]}
    assert agent["bytes"]["optimizer_bytes"] == {"seeds": [960, 880], "largest": [1040, 880]}
    assert agent["bytes"]["stored_bytes"] == {"seeds": [1920, 1760], "largest": [2080, 1760]}
    assert agent["bytes"]["peak_bytes"] == {"seeds": [7000, 6000], "largest": [8000, 6000]}
    assert rows["untied"]["bytes"]["stored_bytes"] == {"seeds": [2240, 2240], "largest": [2240, 2240]}
    assert rows["all-one"]["replicated"] == [0.75, 0.75]
    assert agent["final_owner"] == [[0, 1, 2, 0], [0, 0, 0, 0]]


def test_seconds_per_step_are_means_over_seeds_of_medians():
    rows = findings_of(run())[2]
    assert rows["untied"]["seconds_per_step"] == {"seeds": [1, 1], "mean": 1}
    assert rows["agent"]["seconds_per_step"] == {"seeds": [2, 1], "mean": 1.5}
    assert rows["all-one"]["seconds_per_step"] == {"seeds": [0.75, 2], "mean": 1.375}


def test_training_perplexity_is_over_the_last_steps():
    metrics = run()
    metrics["train_loss"][0, :, -1] = 2.0  # a tenth of four steps is one
    assert findings_of(metrics)[2]["untied"]["train_perplexity"]["mean"] == pytest.approx(np.exp(2))
    assert findings_of(metrics)[2]["agent"]["train_perplexity"]["mean"] == pytest.approx(np.exp(4))


def test_distinct_layers_of_maps():
    maps = [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 2, 3], [0, 0, 2, 0]]
    assert distinct_layers(np.array(maps)).tolist() == [len(set(one)) for one in maps]
