"""Page sections: arrays named in words, medians and quartiles, settings in words."""

import numpy as np

from tiejax.lab.reporting import sections


def test_arrays_are_named_by_their_path():
    nested = {"loss": {"train_split": [1, None]}, "solved": None, "distance": [2.0]}
    arrays = sections.arrays_in_words(nested)
    assert {name: str(values.tolist()) for name, values in arrays.items()} == {
        "loss, train split": "[1.0, nan]",
        "distance": "[2.0]",
    }


def test_medians_are_shown_with_quartiles():
    nested = {"loss": [1.0, 2, 3, 4, 5]}, {"loss": [2.0, 3, 4, 5, 6]}
    untied, tied = map(sections.arrays_in_words, nested)
    assert sections.medians_table(untied, tied) == (
        ["", "untied", "tied", "tied - untied"],
        [["loss", "3.0000  [2.0000, 4.0000]", "4.0000  [3.0000, 5.0000]", "1.0000  [1.0000, 1.0000]"]],
    )


def test_accuracies_are_percentages():
    untied, tied = {"exact accuracy, train": np.array([0.5, 0.75])}, {"exact accuracy, train": np.array([np.nan, np.nan])}
    _, ((_, before, after, difference),) = sections.medians_table(untied, tied)
    assert (before, after, difference) == ("62.50 %  [56.25 %, 68.75 %]", "-", "-")


def test_times_are_those_of_this_process():
    timing, facts = {"train_s": 60.0, "compile_s": 2.0, "model_steps_per_s": 1000.0}, {"devices": ["cpu", "cpu"]}
    words = sections.timing_words(timing, facts | {"resumed": [{}]})["time"]
    assert words.startswith("1 min 00 s of training since the run was last resumed")
    assert words.endswith("1,000 model-steps per second, on 2 x cpu")
    assert "resumed" not in sections.timing_words(timing, facts)["time"]
    assert sections.timing_words(timing | {"train_s": 0.0}, facts) == {}


def test_excluded_members_are_named():
    row = {"arm": "tied", "seed": 3, "step": 40}
    (note,) = sections.excluded_notes({"non_finite": [row], "excluded_seeds": [3]})
    assert "tied seed 3 (at step 40)" in note
    assert sections.excluded_notes({"non_finite": [], "excluded_seeds": []}) == []


def test_models_are_described_by_their_settings():
    model = {"architecture": "transformer", "identical_layers": True, "bidirectional": False, "heads": 1}
    assert sections.model_words({"model": model}) == "architecture transformer, identical layers yes, bidirectional no, heads 1"
