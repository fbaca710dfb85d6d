"""Training steps of every study compiled for absent GPUs and TPUs: number of kernels, memory and precision.

This needs only the target's compiler, which runs on a CPU. Nothing is executed, so there are no times. For GPUs the compiler
tunes nothing and plans no cuDNN kernels, since both need a GPU.
"""

import collections
import dataclasses
import functools
import importlib.util
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.bench.causal import parts_of as causal_parts
from experiments.bench.encoder import plan as encoder_plan
from experiments.bench.h100 import TARGET_CONFIG
from experiments.bench.layers import random_blocks
from experiments.bench.settings import EncoderBench, LayersBench, TargetsBench, TextBench
from experiments.bench.timing import write_results
from tiejax import training, tying
from tiejax.lab.runs.console import Console
from tiejax.lab.settings import command_line
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.study import Study
from tiejax.lab.studies.causal_untying import settings as causal_settings
from tiejax.lab.studies.embedding_coupling.encoders import build_ensemble as build_coupling
from tiejax.lab.studies.embedding_coupling.text import prepare_text
from tiejax.lab.studies.exor import settings as exor_settings
from tiejax.lab.studies.exor.ensemble import Platform
from tiejax.lab.studies.exor.ensemble import build_ensemble as build_exor
from tiejax.lab.studies.layer_tying import settings as layer_settings
from tiejax.lab.studies.layer_tying.model import build as build_layered
from tiejax.lab.studies.text_mlm import text as study_text
from tiejax.lab.studies.text_mlm.ensemble import build_ensemble as build_text
from tiejax.models import bert
from tiejax.models.shapes import PUBLISHED_SHAPES
from tiejax.pretraining.masked import MaskedLM
from tiejax.system.visible import cut
from tiejax.text.masking import MaskedRows, slots_for
from tiejax.training.placement import DATA, SEEDS, spec
from tiejax.tying.layer_ties import fixed_wiring

PyTree = Any
GPT2_VOCABULARY = 50_257
RECORDED = "--matmul_precision", "bfloat16"  # the products of the runs in record_h100.sh
# Instructions of a scheduled program that are not kernels.
NO_KERNELS = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"}
NO_KERNELS |= {"partition-id", "replica-id", "iota"}


def run(settings: TargetsBench, console: Console) -> None:
    """Compile every program for the target, print one table compared with earlier numbers, write results.json."""
    platform, devices = devices_of(settings.target)
    before = read_before(settings)
    programs: dict[str, Any] = {}
    for name in settings.programs:
        began = time.perf_counter()
        lowered = PROGRAMS[name](devices).lower(lowering_platforms=(platform,))
        programs[name] = describe(lowered) | {"compile_s": time.perf_counter() - began}
        console.say(program_line(name, programs[name], before.get(name)))
    console.result(f"results: {write_results('targets', settings, {'programs': programs})}")


def read_before(settings: TargetsBench) -> dict[str, Any]:
    """Return the programs of the target in the file of `compare`, by name. Raises BadInput."""
    if settings.compare is None:
        return {}
    try:
        before = json.loads(Path(settings.compare).read_text())[settings.target]["programs"]
    except (ValueError, KeyError, TypeError):
        raise BadInput(
            f"--compare: {settings.compare} has no programs of {settings.target}; give a file such as docs/targets.json"
        ) from None
    return dict(before)


def devices_of(target: str) -> tuple[str, list[Any]]:
    """Return the platform and the devices of a target such as h100:2 or v5e:2x2. Raises BadInput."""
    return _gpus(target) if target.startswith("h100:") else _tpus(target)


def _gpus(target: str) -> tuple[str, list[Any]]:
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        raise BadInput("--target: the compiler for NVIDIA GPUs is not installed (pip install -e '.[cuda]')")
    number = target.removeprefix("h100:")
    if not number.isdecimal() or int(number) < 1:
        raise BadInput(f"--target: expected a number of GPUs such as h100:2, got {cut(target)}")
    shape = f"1x1x{number}"  # slices, hosts, devices per host
    topology = topologies.get_topology_desc("h100", platform="cuda", topology=shape, target_config=TARGET_CONFIG)
    return "cuda", list(topology.devices)


def _tpus(target: str) -> tuple[str, list[Any]]:
    found = importlib.util.find_spec("libtpu")
    if found is None or found.origin is None:
        raise BadInput("--target: the compiler for TPUs is not installed (pip install -e '.[tpu]')")
    os.environ.setdefault("TPU_LIBRARY_PATH", str(Path(found.origin).with_name("libtpu.so")))
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # otherwise libtpu queries the cloud's metadata server
    try:
        bounds = [*(int(size) for size in target.split(":")[1].split("x")), 1]
        topology = topologies.get_topology_desc(f"{target}x1", platform="tpu", chips_per_host_bounds=bounds)
    except (ValueError, IndexError, RuntimeError) as error:
        first_line = str(error).splitlines()[0]
        raise BadInput(f"--target: expected a topology such as v5e:2x2 or h100:2, got {cut(target)} ({first_line})") from None
    return "tpu", list(topology.devices)


def describe(lowered: Any) -> dict[str, Any]:
    """Compile a program; return the number of its kernels, its bytes per device, and the precisions of its products."""
    compiled = lowered.compile()
    memory = compiled.memory_analysis()
    return {
        "kernels": kernels(compiled.as_text()),
        "argument_bytes": int(memory.argument_size_in_bytes),
        "temporary_bytes": int(memory.temp_size_in_bytes),
        "products": products(lowered.as_text()),
    }


def kernels(text: str) -> int:
    """Return the number of kernels in the HLO text of a compiled program; those in a loop's body count once.

    Computations that a fusion or a reduction names are parts of a kernel; those that a `call` names are not.
    """
    named = re.findall(r"%[\w.\-]+ = [^\n]*? ([a-z][\w\-]*)\([^\n]*?(?:calls|to_apply)=%([\w.\-]+)", text)
    parts = {name for opcode, name in named if opcode != "call"}
    number, counted = 0, False
    for line in text.splitlines():
        if line and not line[0].isspace():
            head = re.match(r"(?:ENTRY )?%([\w.\-]+) ", line)
            counted = head is not None and head.group(1) not in parts
        elif counted and (found := re.match(r"\s+(?:ROOT )?%[\w.\-]+ = .*? ([a-z][\w\-]*)\(", line)):
            number += found.group(1) not in NO_KERNELS
    return number


def products(text: str) -> dict[str, int]:
    """Return the number of matrix products in the StableHLO text of a program, by data type and precision."""
    found = re.findall(r"stablehlo\.dot_general[^\n]*?precision = \[(\w+), \w+\][^\n]*?\(tensor<(?:\w+x)*(\w+)>", text)
    return dict(collections.Counter(f"{kind} {precision.lower()}" for precision, kind in found))


def program_line(name: str, found: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Return the line of a program for the terminal, with the earlier numbers that differ."""
    words = f"{name:>22}: {found['kernels']:>5} kernels, {found['argument_bytes'] / 2**20:,.1f} + "
    words += f"{found['temporary_bytes'] / 2**20:,.1f} MiB, products {found['products']}, {found['compile_s']:.0f} s"
    if before is None:
        return words
    changed = {field: before[field] for field in ("kernels", "argument_bytes", "temporary_bytes", "products")}
    changed = {field: value for field, value in changed.items() if value != found[field]}
    return f"{words}; {'as before' if not changed else f'before: {changed}'}"


def table_rows(targets: dict[str, Any]) -> list[str]:
    """Return the rows of a Markdown table: every program on every target."""
    rows = []
    for name in PROGRAMS:
        for target, compiled in targets.items():
            found = compiled["programs"][name]
            kinds = ", ".join(f"{number} {kind}" for kind, number in found["products"].items()) or "-"
            sizes = " | ".join(f"{found[field] / 2**20:,.1f}" for field in ("argument_bytes", "temporary_bytes"))
            rows.append(f"| {name} | {target.split(':')[0]} | {found['kernels']:,} | {sizes} | {kinds} |")
    return rows


# The programs: functions from the target's devices to a training step, traced from shapes without values.


def traced_step(ensemble: training.Ensemble, devices: Sequence[Any], seeds: int, fed: PyTree) -> Any:
    """Return one step of `seeds` seeds, traced for these devices; fed: shapes of the host data for one seed and step."""
    mesh = Mesh(np.asarray(devices).reshape(-1, ensemble.devices), (SEEDS, DATA))
    by_seed = PartitionSpec(SEEDS)
    feed_specs = jax.tree.map(lambda leaf: PartitionSpec(SEEDS, DATA) if leaf.shape else by_seed, fed)
    state = jax.eval_shape(lambda: ensemble.start(range(seeds))).state
    state_specs = jax.tree.map(lambda leaf: PartitionSpec(SEEDS, None, *spec(leaf.shape[2:], ensemble.devices)), state)

    def step(names: jax.Array, state: PyTree, fed: PyTree) -> PyTree:
        keys = training.SeedKey(jax.vmap(jax.random.key)(names), jnp.zeros_like(names, jnp.int32))
        return ensemble.step(keys, state, jnp.int32(0), fed)[0]

    local = jax.shard_map(step, mesh=mesh, in_specs=(by_seed, state_specs, feed_specs), out_specs=state_specs, check_vma=False)

    def shaped(leaf: Any, how: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, how))

    names = shaped(jax.ShapeDtypeStruct((seeds,), jnp.uint32), by_seed)
    feed = jax.tree.map(lambda leaf, how: shaped(jax.ShapeDtypeStruct((seeds, *leaf.shape), leaf.dtype), how), fed, feed_specs)
    return jax.jit(local, donate_argnums=1).trace(names, jax.tree.map(shaped, state, state_specs), feed)


def feed_shapes(ensemble: training.Ensemble) -> PyTree:
    """Return the shapes of the host data for one seed and step, by reading the first window of the feed."""
    assert isinstance(ensemble.source, training.Feed)
    window = next(ensemble.source.open([(0, 0)], range(ensemble.devices), ensemble.devices, 0))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), window)


def drawn_shapes(ensemble: training.Ensemble) -> PyTree:
    """Return the shapes of the random draws for one seed and step if they are drawn ahead of training, otherwise None."""
    if not isinstance(ensemble.source, training.DrawAhead):
        return None
    seed_key = jax.tree.map(lambda leaf: leaf[0], training.seed_keys([0]))
    return jax.eval_shape(ensemble.source.draw, seed_key, jnp.int32(0))


def platform_of(devices: Sequence[Any]) -> Platform:
    """Return the platform of a target's devices."""
    return "tpu" if devices[0].platform == "tpu" else "gpu"


def exor(devices: Sequence[Any], engine: Any, **options: Any) -> Any:
    """Return a training step of EXor with 32 seeds on one device."""
    study = exor_settings.Settings(seeds=32, engine=engine, **options).resolved()
    ensemble = build_exor(study, platform_of(devices))
    return traced_step(ensemble, devices[:1], 32, drawn_shapes(ensemble))


def text(devices: Sequence[Any], dtype: Any = "float32") -> Any:
    """Return a training step of the text study at its published size: two seeds, tied and untied, in one program."""
    study = dataclasses.replace(TextBench(vocab_size=8192).study_settings("packed"), compute_dtype=dtype)
    ensemble = build_text(study, *study_text.prepare(study, Console(quiet=True)))
    ensemble = dataclasses.replace(ensemble, members=training.Vmapped())  # as on an accelerator
    return traced_step(ensemble, devices[:1], 2, feed_shapes(ensemble))


def layers(devices: Sequence[Any], number: int, dtype: Any = "float32") -> Any:
    """Return a training step of a GPT-2 with `number` layers; two devices share the rows of its batch."""
    bench = LayersBench()
    study = dataclasses.replace(bench.study_settings(number, "compact"), compute_dtype=dtype)
    owner = tying.independent(number)
    layered = build_layered(study, bench.vocab_size, 0, devices[:2])
    return layered.trace_shapes(owner, random_blocks(bench), fixed_wiring(owner, "compact"))


def encoder(devices: Sequence[Any]) -> Any:
    """Return a pre-training step of the coupled base encoder, 10 seeds on one device."""
    bench = EncoderBench()
    study = bench.study_settings(10)
    prepared = prepare_text(study, Console(quiet=True), False)
    ensemble = build_coupling(study, bench.SHAPE, prepared, encoder_plan(study, prepared, 10))
    return traced_step(ensemble, devices[:1], 10, feed_shapes(ensemble))


def rembert(devices: Sequence[Any]) -> Any:
    """Return a pre-training step of RemBERT at its published size in bfloat16, over all devices with one row each."""
    published, length = PUBLISHED_SHAPES[-1], 512
    model = bert.build(published.shape, published.vocabulary, length, rematerialise=True, dtype=jnp.bfloat16)
    objective = MaskedLM(model, published.shape.coupled)
    ensemble = training.Ensemble(
        init=objective.init,
        sample=lambda seed_key, step, masked: masked,
        loss=objective.loss,
        optimizer=training.make_optimizer("adamw", optax.constant_schedule(1e-3), 0.01),
        ties=[],
        arm_ties=np.zeros((1, 0), bool),
        steps=1,
        recorders={},
        max_norm=1.0,
        members=training.Scanned(),
        devices=len(devices),
    )
    number = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    rows, slots = len(devices), len(devices) * slots_for(length)
    tokens, slot, weight = number((rows, length)), number((slots,)), jax.ShapeDtypeStruct((slots,), jnp.float32)
    masked: Any = (tokens, tokens, number((rows,)), slot, slot, weight, number(()))
    return traced_step(ensemble, devices, 1, MaskedRows(*masked))


def causal(devices: Sequence[Any]) -> Any:
    """Return a training step of an untied model of the preset of 124 million parameters, on one GPU or over all TPU devices."""
    study = study_settings(causal_settings.STUDY, "causal_untying/gpt2_124m")
    shared = len(devices) if platform_of(devices) == "tpu" else 1
    trainer, arm = causal_parts(study, GPT2_VOCABULARY)
    recipe = trainer.recipe._replace(devices=shared)
    ensemble = dataclasses.replace(recipe.ensemble(arm, 0, trainer.steps, trainer.steps), recorders={})
    return traced_step(ensemble, devices[:shared], 1, feed_shapes(ensemble))


def recorded_causal(devices: Sequence[Any], name: str) -> Any:
    """Return a training step of the untied models of a run in `record_h100.sh`, all seeds on one device."""
    study = study_settings(causal_settings.STUDY, f"causal_untying/{name}", *RECORDED)
    trainer, arm = causal_parts(study, study.vocab_size)
    ensemble = trainer.recipe.ensemble(arm, 0, trainer.steps, trainer.steps)
    ensemble = dataclasses.replace(ensemble, recorders={}, members=training.Vmapped())  # as on an accelerator
    return traced_step(ensemble, devices[:1], len(study.seed_list), feed_shapes(ensemble))


def recorded_layers(devices: Sequence[Any]) -> Any:
    """Return a training step of one untied model of the layer study in `record_h100.sh`."""
    study = study_settings(layer_settings.STUDY, "layer_tying/length", *RECORDED)
    owner = tying.independent(study.layers)
    layered = build_layered(study, study.vocab_size, 0, devices[:1])
    return layered.trace_shapes(owner, random_blocks(study), fixed_wiring(owner, study.storage))


def study_settings(study: Study, config: str, *arguments: str) -> Any:
    """Return the resolved settings of a study from a configuration and further arguments."""
    return command_line.parse(study.settings, study.command, ["--config", config, *arguments])[0].resolved()


PROGRAMS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "exor, fast": lambda devices: exor(devices, "fast"),
    "exor, plain": lambda devices: exor(devices, "plain"),
    "exor, mixer": lambda devices: exor(devices, "plain", model="mixer"),
    "exor, lstm": lambda devices: exor(devices, "plain", model="lstm"),
    "text": text,
    "text, bfloat16": lambda devices: text(devices, "bfloat16"),
    "layers, 12": lambda devices: layers(devices, 12),
    "layers, 12, bfloat16": lambda devices: layers(devices, 12, "bfloat16"),
    "encoder": encoder,
    "rembert": rembert,
    "causal, 124M": causal,
    "causal, h100": lambda devices: recorded_causal(devices, "h100"),
    "causal, 8,192 x 128": lambda devices: recorded_causal(devices, "corner_v8192_d128"),
    "layers, length": recorded_layers,
}
