"""The benchmark of training on text, at a tiny size: results on disk."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.bench import text
from experiments.bench.settings import TextBench
from tiejax.lab.runs.console import Console

WORDS = ("the", "day", "was", "long", "and", "night", "cold", "but", "nobody", "in", "old", "house", "river", "could", "sleep")


@pytest.mark.bench
def test_results(tmp_path, capsys):
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.choice(WORDS, rng.integers(4, 12))).capitalize() + "." for _ in range(400)]
    (tmp_path / "novel.txt").write_text(" ".join(sentences))
    settings = TextBench(
        corpus=[str(tmp_path / "novel.txt")],
        data_dir=str(tmp_path / "data"),
        vocab_size=80,
        seeds=1,
        batch_size=2,
        seconds=0.001,
        out=str(tmp_path / "out"),
    )
    text.run(settings, Console())
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(results) == {
        "benchmark",
        "config",
        "devices",
        "platform",
        "cpus",
        "jax",
        "rows",
        "device_rates",
        "beside_torch",
        "allocator",
    }
    assert (results["benchmark"], results["config"]) == ("text", dataclasses.asdict(settings))
    rows = results["rows"]
    assert [row["form"] for row in rows] == ["published", "masked", "packed"]
    for row in rows:
        assert set(row) == {
            *("form", "models", "rows", "tokens_per_step", "padding", "row_length", "longest_of_batch", "slots", "compile_s"),
            *("bytes", "idle_share", "flops_per_model_step", "flops_per_s", "median", "min", "max", "of_rate", "over_first"),
        }
        assert (row["models"], row["row_length"]) == (2, 128)
        assert 0 < row["min"] <= row["median"] <= row["max"]
        assert row["tokens_per_step"] == pytest.approx(row["rows"] * 128 * (1 - row["padding"]))
        assert row["of_rate"] == row["flops_per_s"] / results["device_rates"]["flops"]
        assert row["over_first"] == row["median"] / rows[0]["median"]
    published, masked, packed = rows
    assert published["padding"] == masked["padding"] > 0.8 > 0.2 > packed["padding"]
    assert published["flops_per_model_step"] > masked["flops_per_model_step"]
    assert published["rows"] == masked["rows"] == 2 > packed["rows"]
    lines = capsys.readouterr().out.splitlines()
    assert sum("tokens/s (" in line for line in lines) == 3 + len(results["beside_torch"])
    ours, *others = results["beside_torch"]
    assert (ours["side"], ours["ours_over"]) == ("ours", None)
    for row in others:
        assert row["ours_over"]["min"] <= ours["max"] / row["min"]
    assert lines[-1].startswith("results: ")


def test_longest_sentence_of_a_batch():
    """A single longer sentence counts in its batch, unless it is in the incomplete batch at the end, which is dropped."""
    lengths = np.full(9, 5)
    lengths[np.random.default_rng(0).permutation(9)[0]] = 15
    assert text.longest_of_batch(lengths, 4) == (15 + 5) / 2
    lengths = np.full(9, 5)
    lengths[np.random.default_rng(0).permutation(9)[8]] = 15
    assert text.longest_of_batch(lengths, 4) == 5
