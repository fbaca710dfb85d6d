"""The benchmark of the commands on checkpoints: its tables, and the measured commands."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from experiments.bench.checkpoints import INPUT, OUTPUT, measure_command, measure_process, run, write_tables
from experiments.bench.settings import CheckpointsBench
from tiejax.checkpoints.check import check_folder
from tiejax.lab.runs.console import Console


def test_output_table_is_correlated_with_the_input_table(tmp_path):
    write_tables(tmp_path / "c", 5000, 8, "F32")
    tables = load_file(tmp_path / "c" / "model.safetensors")
    first, second = tables[INPUT], tables[OUTPUT]
    assert first.shape == second.shape == (5000, 8)
    np.testing.assert_allclose([first.std(), second.std()], [1, 1.49**0.5], rtol=0.02)
    np.testing.assert_allclose(np.mean(first * second), 0.7, rtol=0.05)
    assert len(np.unique(first[:, 0])) > 4990  # no block is repeated
    assert (check_folder(tmp_path / "c").answer, check_folder(tmp_path / "c").stored) == ("agrees", "two different tables")


def test_tied_table_in_half_precision(tmp_path):
    write_tables(tmp_path / "c", 10, 4, "BF16", tied=True)
    tables = load_file(tmp_path / "c" / "model.safetensors")
    assert {name: (str(table.dtype), table.shape) for name, table in tables.items()} == {INPUT: ("bfloat16", (10, 4))}


@pytest.mark.bench
def test_every_command_is_measured(tmp_path, capsys):
    settings = CheckpointsBench(folders=3, factorised=[40, 8], rows=60, width=8, out=str(tmp_path / "out"))
    run(settings, Console())
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    names = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert names == list(results["commands"])
    assert [name.split(",")[0] for name in names] == ["check", "check", "factorise", "tie", "diagnose"]
    for usage in results["commands"].values():
        assert usage["seconds"]["median"] > 0
        assert usage["memory"]["max"] > 2**24
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.json"]


def test_failing_command_is_an_error(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as error:
        measure_command(["check", "none"], tmp_path)
    assert error.value.returncode == 2
    assert "none: not found; a checkpoint is a folder" in error.value.output


@pytest.mark.slow
def test_memory_excludes_that_of_the_parent(tmp_path):
    array = np.ones(2**26)  # 512 MiB
    empty = measure_process([sys.executable, "-S", "-c", "pass"], tmp_path)
    assert 2**20 < empty.memory < 2**26
    assert 0 < empty.cpu_s < 5
    filled = measure_process([sys.executable, "-S", "-c", "x = bytearray(b'x' * 2**27)"], tmp_path)
    assert 2**27 < filled.memory < array.nbytes
