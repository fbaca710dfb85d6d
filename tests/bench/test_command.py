"""The command `bench.py`: bad input is one line with status 2, before jax is imported; good settings reach the benchmark."""

import dataclasses
import importlib
import json
import re
import subprocess
import sys

import pytest
from processes import EXPERIMENTS, Ended, assert_refused, end, start_python, tree

from experiments.bench import command
from experiments.bench.command import BENCHMARKS
from tiejax.lab.settings.command_line import run_main
from tiejax.lab.settings.study import function_of

SCRIPT = EXPERIMENTS / "bench.py"


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "some_file").write_text("mine\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_here(line, monkeypatch, capsys):
    """Run the command in this process; the test fails if it gets as far as running a benchmark."""
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *line.split()])

    def run(settings, console):
        pytest.fail(f"{line} was accepted")

    never_run = {name: dataclasses.replace(benchmark, run=run) for name, benchmark in BENCHMARKS.items()}
    monkeypatch.setattr(command, "BENCHMARKS", never_run)
    with pytest.raises(SystemExit) as ended:
        run_main(command.main)
    return Ended(ended.value.code, *capsys.readouterr())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "",
            (
                "expected a benchmark",
                "exor, text, layers, decoder, causal, encoder, transfer, device, targets, checkpoints, statistics; got none",
            ),
        ),
        ("layer", ("expected a benchmark", "got 'layer'; did you mean 'layers'?")),
        ("--seeds [1] exor", ("expected a benchmark", "got '--seeds'")),
        ("exor --seeds []", ("--seeds",)),
        ("exor --seeds [0]", ("--seeds", ">= 1")),
        ("exor --repeats 4", ("--repeats", "at least 5")),
        ("exor --engines []", ("--engines", "got []")),
        ("exor --engines [fast,slow]", ("--engines", "slow")),
        ("exor --model lstm --engines [fast]", ("--engines", "lstm depends on the order of its symbols, so only [plain]")),
        ("exor --size large", ("--size", "small, medium")),
        ("exor --seconds 0", ("--seconds", "> 0")),
        ("exor --repeat 9", ("'--repeat'", "'--repeats'?")),
        ("exor --out some_file/x", ("--out", "cannot be written")),
        ("text --forms []", ("--forms", "got []")),
        ("text --forms [packed,tight]", ("--forms", "tight")),
        ("text --repeats 1", ("--repeats", "at least 5")),
        ("text --seeds 0", ("--seeds", "at least one")),
        ("text --batch_size 0", ("--batch_size", ">= 1")),
        ("layers --layers [1]", ("--layers", ">= 2")),
        ("layers --width 48", ("--width", "multiple of 32")),
        ("layers --width 48 --heads 5", ("--heads", "5 heads do not divide the width 48")),
        ("layers --context 1", ("--context", "2")),
        ("layers --share 0", ("--share", ">= 1")),
        ("layers --seconds -1", ("--seconds", "> 0")),
        ("encoder --repeats 4", ("--repeats", "at least 5")),
        ("encoder --batch_rows 0", ("--batch_rows", ">= 1")),
        ("encoder --max_length 2", ("--max_length", "3")),
        ("transfer --repeats 4", ("--repeats", "at least 5")),
        ("checkpoints --commands []", ("--commands", "got []")),
        ("checkpoints --rows 0", ("--rows", ">= 1")),
        ("checkpoints --factorised [5]", ("--factorised", "[ROWS, COLUMNS]")),
        ("transfer --seeds 0", ("--seeds", ">= 1")),
        ("statistics --claims 0", ("--claims", ">= 1")),
        ("statistics --seeds 16", ("--seeds", "at least 17")),
        ("statistics --repeats 4", ("--repeats", "at least 5")),
    ],
)
def test_bad_input_is_refused(here, monkeypatch, capsys, line, words):
    before = tree(here)
    assert_refused(run_here(line, monkeypatch, capsys), *words, script=SCRIPT)
    assert tree(here) == before


@pytest.mark.parametrize("name", ["", *BENCHMARKS])
def test_help_lists_every_option(here, monkeypatch, capsys, name):
    ended = run_here(f"{name} --help", monkeypatch, capsys)
    assert ended.status == 0
    for benchmark in BENCHMARKS if not name else [name]:
        assert benchmark in ended.out
    for field in BENCHMARKS[name or "exor"].settings.__dataclass_fields__:
        assert re.search(rf"--{field}[ ,]", ended.out)  # Python 3.13 writes the value of two spellings once


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_runs_its_module(monkeypatch, name):
    calls = []
    module = importlib.import_module(f"experiments.bench.{name}")
    monkeypatch.setattr(module, "run", lambda *arguments: calls.append(arguments))
    settings, console = BENCHMARKS[name].settings(), object()
    function_of(BENCHMARKS[name].run)(settings, console)
    assert calls == [(settings, console)]


def test_settings_reach_the_benchmark(here, monkeypatch):
    from experiments.bench import layers

    calls = []
    monkeypatch.setattr(layers, "run", lambda settings, console: calls.append((settings, console.quiet)))
    assert command.main(["layers", "--layers", "[2]", "--quiet"]) == 0
    assert calls == [(BENCHMARKS["layers"].settings(layers=[2]), True)]


@pytest.mark.slow
def test_missing_corpus_is_refused(here, tmp_path_factory):
    before = tree(here)
    ended = end(
        start_python(SCRIPT, "text", "--corpus", "nothing.txt", "--data_dir", tmp_path_factory.mktemp("data"), cwd=here)
    )
    assert_refused(ended, "--corpus nothing.txt", script=SCRIPT)
    assert tree(here) == before


@pytest.mark.slow
def test_benchmark_as_a_process(here):
    ended = end(start_python(SCRIPT, "checkpoints", "--commands", "[check]", "--folders", "2", "--quiet", cwd=here))
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == "results: runs/bench/checkpoints/results.json\n"
    assert json.loads((here / "runs/bench/checkpoints/results.json").read_text())["benchmark"] == "checkpoints"


def test_command_loads_no_jax():
    check = "import experiments.bench.settings, experiments.bench.command, sys; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=120)
