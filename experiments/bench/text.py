"""Tokens per second in training on text, in three forms: predictions everywhere, at masked tokens, and in packed rows.

The packed form is then compared with torch, in processes that take turns.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.arithmetic import device_rates, text_flops
from experiments.bench.contender import Side, Train, allocator, compare, environment_of_sides, installed
from experiments.bench.encoder import OURS, TORCH, TRAINER, torch_job
from experiments.bench.settings import Form, TextBench
from experiments.bench.timing import TimedEnsemble, over_words, range_words, ratio, recording_nothing, spread, write_results
from tiejax import training
from tiejax.lab.runs import environment
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.text_mlm.ensemble import build_ensemble, build_model
from tiejax.lab.studies.text_mlm.settings import Settings
from tiejax.lab.studies.text_mlm.text import Text, prepare
from tiejax.models.shapes import Shape
from tiejax.pretraining.step_plan import StepPlan
from tiejax.training.loss import cross_entropy

SIDES = {
    OURS: Side("ours", (), "experiments.bench.text:train_ours"),
    "trainer": TRAINER,
    "loop": Side("the plain torch loop", ("torch",), f"{TORCH}:train_published_by_loop"),
}


def run(settings: TextBench, console: Console) -> None:
    """Measure every form, print one table, write results.json. Raises BadInput for an unusable text."""
    rows: list[dict[str, Any]] = []
    rates: dict[str, float] = {}
    for form in settings.forms:
        row = measure_form(settings, form, console)
        rows.append(row)
        rates = rates or device_rates()
        row["of_rate"] = row["flops_per_s"] / rates["flops"]
        row["over_first"] = row["median"] / rows[0]["median"]
        console.say(row_line(row, rows[0]["form"]))
    console.say(
        f"memory: as counted by the compiler; matrix products: {rates['flops'] / 1e9:,.0f} GFLOP/s; {rows[0]['models']} "
        f"models on {jax.device_count()} devices; the longest sentence of a batch has {rows[0]['longest_of_batch']:.0f} tokens "
        f"on average, a padded row {rows[0]['row_length']}"
    )
    comparison = compare_with_torch(settings, console)
    measured = {"rows": rows, "device_rates": rates, "beside_torch": comparison, "allocator": allocator()}
    console.result(f"results: {write_results('text', settings, measured)}")


def compare_with_torch(settings: TextBench, console: Console) -> list[dict[str, Any]]:
    """Return tokens per second of the packed form and of the torch sides; they take turns, each on all cores."""
    study = settings.study_settings("packed")
    text, planned = prepare(study, console)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder, "tokenizer.json")
        tokenizer.write_bytes(text.tokenizer)
        jobs = {side: job_of(settings, side, text, planned, tokenizer) for side in installed(SIDES, console)}
        variables = environment_of_sides(device_a_core=settings.seeds % environment.cores() == 0)
        rates = compare(settings, {side: (SIDES[side].train, [job], variables) for side, job in jobs.items()})
    rows: list[dict[str, Any]] = []
    for side, measured in rates.items():
        over = ratio(rates[OURS], measured)
        rows.append({"side": side, **spread(measured), "ours_over": None if side == OURS else over})
        console.say(
            f"{SIDES[side].label:>22}  {rows[-1]['median']:8,.0f} tokens/s {range_words(rows[-1])}"
            + ("" if side == OURS else f"  ours is {over_words(over, SIDES[side].label)}")
        )
    return rows


def job_of(settings: TextBench, side: str, text: Text, planned: StepPlan, tokenizer: Path) -> Any:
    """Return the job of a side's process. Torch trains one tied model, with as many real tokens per step as one of ours."""
    if side == OURS:
        return settings
    study = settings.study_settings("packed")
    shape = Shape(study.width, study.width, study.width, study.layers, study.heads, coupled=True)
    return torch_job(study, text, planned, tokenizer, shape, settings.batch_size, environment.cores())


def train_ours(settings: TextBench) -> Train:
    """Return training of the packed form, all members on all devices, compiled and warmed up."""
    study = settings.study_settings("packed")
    text, planned = prepare(study, Console(quiet=True))
    timed = TimedEnsemble(ensemble_of(study, text, planned, "packed"), study.seed_list)
    return timed.paced(2 * settings.seeds * planned.tokens, 2)


def measure_form(settings: TextBench, form: Form, console: Console) -> dict[str, Any]:
    """Return the row of a form in results.json: real tokens per second over all models, memory, and flops per second."""
    study = settings.study_settings(form)
    text, planned = prepare(study, console)
    ensemble = TimedEnsemble(ensemble_of(study, text, planned, form), study.seed_list)
    ensemble.train(1)
    steps = max(1, round(settings.seconds / ensemble.train(1).seconds))
    models = 2 * settings.seeds
    times = [ensemble.train(steps) for _ in range(settings.repeats)]
    positions, slots = planned.rows * study.max_length, planned.slots * planned.mesh
    flops = text_flops(study, text.twins.vocabulary, positions, predicted=positions if form == "published" else slots)
    return {
        "form": form,
        "models": models,
        "rows": planned.rows,
        "tokens_per_step": planned.tokens,
        "padding": planned.padding,
        "row_length": study.max_length,
        "longest_of_batch": longest_of_batch(np.diff(text.train.offsets), settings.batch_size),
        "slots": slots,
        "compile_s": ensemble.compile_s,
        "bytes": ensemble.memory_bytes,
        "idle_share": 1 - sum(timed.worked_s for timed in times) / sum(timed.seconds for timed in times),
        "flops_per_model_step": flops,
        "flops_per_s": float(np.median([models * steps * flops / timed.seconds for timed in times])),
        **spread([models * steps * planned.tokens / timed.seconds for timed in times]),
    }


def ensemble_of(settings: Settings, text: Text, planned: StepPlan, form: Form) -> training.Ensemble:
    """Return the study's ensemble in one form, without records, since only training and its memory are measured."""
    ensemble = build_ensemble(settings, text, planned)
    loss = everywhere(settings, text) if form == "published" else ensemble.loss
    return recording_nothing(dataclasses.replace(ensemble, loss=loss))


def everywhere(settings: Settings, text: Text) -> Callable[..., Any]:
    """Return the published loss: logits at every position of every row, cross-entropy at the masked ones."""
    model = build_model(settings, text)

    def loss(params: Any, batch: Any, key: Any) -> Any:
        logits = model.apply({"params": params}, batch.tokens, None, batch.segments).reshape(batch.tokens.size, -1)
        target = jnp.zeros(batch.tokens.size, jnp.int32).at[batch.slot].max(batch.target)
        weight = jnp.zeros(batch.tokens.size).at[batch.slot].max(batch.weight)
        nats = jnp.sum(weight * cross_entropy(logits, target))
        masked = training.total(jnp.sum(weight))
        return nats / masked, {"loss": training.total(nats) / masked}

    return loss


def longest_of_batch(lengths: np.ndarray, batch_size: int) -> float:
    """Return the mean length of the longest sentence in a batch, to which padding by batch would pad."""
    whole = len(lengths) // batch_size * batch_size
    chosen = np.random.default_rng(0).permutation(len(lengths))[:whole]
    return float(lengths[chosen].reshape(-1, batch_size).max(1).mean())


def row_line(row: Mapping[str, Any], first: str) -> str:
    """Return the line of a form for the terminal. first: the form that it is compared with."""
    return (
        f"{row['form']:>9}  {row['median']:8,.0f} tokens/s {range_words(row)}  "
        f"{row['over_first']:.1f} x {first}  {row['padding']:.1%} padding  {row['bytes'] / 2**30:.2f} GiB  "
        f"{row['of_rate']:.0%} of the matrix-product rate  idle {row['idle_share']:.1%}"
    )
