"""The script that makes the runs of record on a lent GPU: order, deadline, resumption, and archives without states.

An interpreter that only writes the files of a run stands for the studies, which need hours.
"""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RUN = """#!/usr/bin/env bash
echo "$@" >> calls
out=$(echo "$*" | sed 's/.*--out \\([^ ]*\\).*/\\1/')
mkdir -p "$out/checkpoints" "$out/states" "$out/finished"
touch "$out/run.json" "$out/results.json" "$out/checkpoints/1" "$out/states/1.npz" "$out/finished/tied.npz"
sleep {seconds}
"""


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "experiments").mkdir()
    shutil.copy(ROOT / "experiments" / "record_h100.sh", tmp_path / "experiments")
    return tmp_path


def record(checkout, limit, seconds):
    interpreter = checkout / "interpreter"
    interpreter.write_text(RUN.replace("{seconds}", str(seconds)))
    interpreter.chmod(0o755)
    command = ["experiments/record_h100.sh", str(limit), "novels", "wikitext-2", "tasks", str(checkout / "out")]
    return subprocess.run(command, cwd=checkout, env=os.environ | {"PYTHON": str(interpreter)}, capture_output=True, text=True)


def test_runs_in_order_with_archives_and_resumed(checkout):
    ended = record(checkout, 300, 0)
    assert ended.returncode == 0, ended.stderr
    first = (checkout / "calls").read_text().splitlines()
    configurations = [line.split("--config ")[1].split()[0] for line in first]
    corners = [f"causal_untying/corner_{name}" for name in ("v1024_d48", "v1024_d128", "v8192_d48", "v8192_d128")]
    expected = ["causal_untying/h100", *corners, "layer_tying/length", "embedding_coupling/length"]
    assert configurations == [f"configs/{name}.yaml" for name in expected]
    assert not any("--resume" in line for line in first)
    with tarfile.open(checkout / "out" / "coupling.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"coupling/run.json", "coupling/results.json", "coupling/finished/tied.npz"} <= names
    assert not any("checkpoints" in name or "states" in name for name in names)
    record(checkout, 300, 0)
    assert [line.endswith("--resume") for line in (checkout / "calls").read_text().splitlines()[7:]] == [True] * 7


@pytest.mark.slow
def test_a_run_is_interrupted_at_the_deadline_and_later_ones_are_named(checkout):
    ended = record(checkout, 52, 600)
    assert len((checkout / "calls").read_text().splitlines()) == 1
    assert (checkout / "out" / "causal.tar.gz").exists()
    assert "layers: no time left" in ended.stdout


def test_its_configurations_exist():
    script = (ROOT / "experiments" / "record_h100.sh").read_text()
    named = [part for part in script.replace('"', " ").split() if part.startswith("configs/") and "$" not in part]
    assert len(named) >= 1
    for name in named:
        assert yaml.safe_load((ROOT / name).read_text())
