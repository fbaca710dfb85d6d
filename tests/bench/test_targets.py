"""Counts of kernels and products in compiled programs, comparison with earlier numbers, and the table in the docs."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import jax
import jax.numpy as jnp
import pytest

from experiments.bench import targets
from experiments.bench.causal import products_of_token
from experiments.bench.settings import Recorded, TargetsBench
from tiejax.lab.runs.console import Console
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.causal_untying.model import size_of
from tiejax.lab.studies.causal_untying.settings import STUDY

DOCS = Path(__file__).parents[2] / "docs"
# Three kernels: two fusions (one in the body of a loop) and a copy. Computations inside fusions and reductions do not count.
HLO = """HloModule jit_step

%fused_computation (param_0: f32[8]) -> f32[8] {
  %param_0 = f32[8]{0} parameter(0)
  ROOT %add.1 = f32[8]{0} add(%param_0, %param_0)
}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.2 = f32[] add(%a, %b)
}

%fused_computation.1 (param_0.1: f32[8]) -> f32[] {
  %param_0.1 = f32[8]{0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %reduce = f32[] reduce(%param_0.1, %zero), dimensions={0}, to_apply=%sum
}

%body (loop: (s32[], f32[8])) -> (s32[], f32[8]) {
  %loop = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%loop), index=1
  %fusion = f32[8]{0:T(128)} fusion(%x), kind=kLoop, calls=%fused_computation
  ROOT %pair = (s32[], f32[8]{0}) tuple(%x, %fusion)
}

ENTRY %main (given: f32[8]) -> f32[] {
  %given = f32[8]{0} parameter(0)
  %copy.1 = f32[8]{0} copy(%given)
  %while.1 = (s32[], f32[8]{0}) while(%copy.1), condition=%body, body=%body
  ROOT %fusion.1 = f32[] fusion(%copy.1), kind=kInput, calls=%fused_computation.1
}
"""


def test_scheduled_kernels_are_counted():
    assert targets.kernels(HLO) == 3


def test_products_are_counted_by_type_and_precision():
    def function(x, y):
        return jnp.dot(x, x, precision="highest") + x @ x + (y @ y).astype(x.dtype)

    given = [jax.ShapeDtypeStruct((4, 4), kind) for kind in (jnp.float32, jnp.bfloat16)]
    with jax.default_matmul_precision("default"):  # a run in this process may have raised it
        text = jax.jit(function).trace(*given).lower(lowering_platforms=("tpu",)).as_text()
    assert targets.products(text) == {"f32 highest": 1, "f32 default": 1, "bf16 default": 1}


def test_line_has_the_numbers_that_changed():
    found = {"kernels": 5, "argument_bytes": 2**20, "temporary_bytes": 0, "products": {}, "compile_s": 2.0}
    assert "as before" in targets.program_line("text", found, {**found, "compile_s": 9.0})
    assert targets.program_line("text", found, {**found, "kernels": 4}).endswith("before: {'kernels': 4}")
    assert "before" not in targets.program_line("text", found, None)


def test_the_preset_is_that_of_gpt2():
    """124,439,808 is the number of parameters of the released model; 10 billion tokens to two parts in a thousand."""
    study = targets.study_settings(STUDY, "causal_untying/gpt2_124m")
    tied = next(arm for arm in study.arms if arm.tied)
    assert size_of(study, targets.GPT2_VOCABULARY, tied).parameters == 124_439_808
    assert study.steps * study.batch_size * (study.context - 1) == pytest.approx(10e9, rel=2e-3)
    size = SimpleNamespace(context=study.context, width=study.width, layers=study.layers, vocab_size=targets.GPT2_VOCABULARY)
    of_step = products_of_token(size) * study.batch_size * study.context
    words = f"{of_step / 1e12:.1f} TFLOP, those of its {study.steps:,} steps {of_step * study.steps / 1e18:.2f} EFLOP"
    assert words in " ".join((DOCS / "devices_details.md").read_text().split())


def test_every_program_has_a_function():
    assert list(targets.PROGRAMS) == TargetsBench().programs


@pytest.mark.parametrize(
    ("target", "compiler", "extra"), [("v5e:2x2", "libtpu", "tpu"), ("h100:2", "jax_cuda13_plugin", "cuda")]
)
def test_missing_compiler_is_one_line(tmp_path, target, compiler, extra):
    if importlib.util.find_spec(compiler) is not None:
        pytest.skip("the compiler is installed")
    with pytest.raises(BadInput, match=rf"--target: .*pip install -e '\.\[{extra}\]'"):
        targets.run(TargetsBench(target=target, programs=["exor, fast"], out=str(tmp_path)), Console(quiet=True))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"v5e:2x2": {}}', '{"v5e:2x2": 3}'])
def test_file_to_compare_with_must_have_the_target(tmp_path, content):
    file = tmp_path / "before.json"
    file.write_text(content)
    with pytest.raises(BadInput, match=r"--compare: .* has no programs of v5e:2x2"):
        targets.read_before(TargetsBench(compare=str(file)))
    file.write_text('{"v5e:2x2": {"programs": {"text": {"kernels": 3}}}}')
    assert targets.read_before(TargetsBench(compare=str(file))) == {"text": {"kernels": 3}}


def test_table_in_the_docs_is_that_of_the_file():
    found = json.loads((DOCS / "targets.json").read_text())
    details = " ".join((DOCS / "devices_details.md").read_text().split())
    assert list(found) == ["h100:16", "v5e:4x4"]
    assert " ".join(targets.table_rows(found)) in details
    for of_target in found.values():
        assert list(of_target["programs"]) == list(targets.PROGRAMS)
        programs = {**of_target["programs"]}
        for name in ("causal, 124M", *get_args(Recorded)):
            assert set(programs.pop(name)["products"]) == {"f32 default"}
        kinds = {kind for program in programs.values() for kind in program["products"]}
        assert {kind for kind in kinds if kind.startswith("f32")} == {"f32 highest"}
