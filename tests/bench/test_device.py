"""The benchmark of a machine: comparison of losses, output, and results on disk."""

import json
import multiprocessing
import time
from pathlib import Path
from typing import get_args

import pytest
from processes import EXPERIMENTS, end, start, wait_until

from experiments.bench import device
from experiments.bench.device_parts import PARTS
from experiments.bench.settings import DeviceBench, Part
from tiejax.lab.runs.console import Console

DOCS = Path(__file__).parents[2] / "docs"


def test_difference_is_relative_to_the_larger_loss():
    assert device.relative_difference([1.0, 2.0, 4.0], [1.0, 2.5, 4.0]) == pytest.approx(0.2)
    assert device.relative_difference([3.0], [3.0]) == 0


def test_every_part_has_a_function():
    assert tuple(PARTS) == get_args(Part) == tuple(DeviceBench().parts)


def test_lines_have_rates_and_solved_seeds():
    rate = {"median": 1234.5, "min": 1.0, "max": 2.0, "compile_s": 1.0}
    here = {"losses": [1.0], "model_steps_per_s": {"8 models": rate}, "seeds": 4, "solved": {"untied": 3, "tied": 2}}
    cpu = {"losses": [2.0], "solved": {"untied": 4, "tied": 1}}
    assert device.line_of_rates("exor", here) == "exor: 8 models 1,234.5 model steps/s"
    assert device.line_of_comparison("exor", here, cpu) == (
        "exor: losses of the first steps differ from the CPU's by 5.0e-01; seeds that solve the task, of 4: untied 3 (4 on the "
        "CPU), tied 2 (1 on the CPU)"
    )
    assert device.line_of_comparison("exor", here, {}) == "exor: not compared"


def test_a_part_that_fails_keeps_what_it_measured(tmp_path, monkeypatch):
    settings = DeviceBench(parts=["text"], out=str(tmp_path))

    def fails(settings, rates):
        yield {"tokens_per_s": {"float32": {"median": 2.0}}}
        yield {"tokens_per_s": {"bfloat16": {"median": 3.0}}}
        raise ValueError("no such kernel")

    monkeypatch.setitem(PARTS, "text", fails)
    device.measure(settings, ["text"], "here", [])
    assert device.read(settings, "text", "here")["tokens_per_s"] == {"float32": {"median": 2.0}, "bfloat16": {"median": 3.0}}
    line = device.line_of_rates("text", device.read(settings, "text", "here"))
    assert line == "text: float32 2.0 tokens/s; bfloat16 3.0 tokens/s; failed: ValueError: no such kernel"
    assert device.part_of(settings, "text")["cpu"] == {}


def test_a_killed_process_is_noted_and_keeps_what_it_measured(tmp_path):
    settings = DeviceBench(parts=["text", "exor"], out=str(tmp_path))
    device.keep(settings, "text", "here", {"losses": [1.0], "ended": True})
    device.keep(settings, "exor", "here", {"losses": [2.0]})
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    process.kill()
    device.wait(process, settings, ["text", "exor"], "here")
    assert device.read(settings, "text", "here") == {"losses": [1.0], "ended": True}
    assert device.read(settings, "exor", "here") == {"losses": [2.0], "failed": "the process ended with status -9"}


@pytest.mark.slow
def test_interrupted_benchmark_keeps_its_measurements_and_leaves_no_process(tmp_path):
    out = tmp_path / "out"
    argv = "device", "--parts", "[layers]", "--first_steps", 2, "--seconds", 30, "--out", out
    process = start(*argv, script=EXPERIMENTS / "bench.py")
    assert wait_until(lambda: (out / "parts" / "layers-here.json").exists(), process), process.communicate()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.terminate()
    assert end(process).status == 130
    assert len(json.loads((out / "results.json").read_text())["parts"]["layers"]["here"]["losses"]) == 2
    assert children
    deadline = time.monotonic() + 20  # Python's tracker of shared memory ends a moment later
    while left := [child for child in children if Path(f"/proc/{child}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_page_has_the_rates_of_the_h100():
    found, page = json.loads((DOCS / "h100.json").read_text()), " ".join((DOCS / "devices.md").read_text().split())
    for form, rate in found["exor"]["model_steps_per_s"].items():
        assert f"| {form} | {rate['median']:,} ({rate['min']:,} to {rate['max']:,}) | {rate['compile_s']} |" in page
    layers = found["layer_tying"]
    for ms in (*layers["ms_a_step"].values(), layers["ms_a_step_on_a_cpu_core"]["untied"]):
        assert f"{ms['median']:.1f} ms ({ms['min']:.1f} to {ms['max']:.1f})" in page
    apart = layers["losses_apart_from_cpu"].values()
    assert f"at most {max(seed['first_50'] for seed in apart):.1e} of their value" in page
    assert f"at most {max(seed['all_600'] for seed in apart):.1e}." in page


@pytest.mark.bench
def test_results_agree_with_those_of_the_cpu(tmp_path, capsys):
    """Without an accelerator both are measured on the CPU."""
    device.run(DeviceBench(parts=["layers"], first_steps=3, seconds=0.001, out=str(tmp_path)), Console())
    part = json.loads((tmp_path / "results.json").read_text())["parts"]["layers"]
    assert part["losses_apart"] < 1e-5
    assert len(part["here"]["losses"]) == len(part["cpu"]["losses"]) == 3
    assert part["here"]["losses"][0] > part["here"]["losses"][2] > 0
    assert set(part["here"]["ms_a_step"]) == {"float32", "bfloat16"}
    assert "ms_a_step" not in part["cpu"]
    assert capsys.readouterr().out.splitlines()[-1] == f"results: {tmp_path / 'results.json'}"
