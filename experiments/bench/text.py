"""Tokens per second of training on text: predicting everywhere in padded rows, at the masked tokens, and in packed rows.

The last is then measured beside torch, in processes that take turns.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.arithmetic import device_rates, text_flops
from experiments.bench.contender import Contender, Train, Work, allocator, environment_of_sides, take_turns
from experiments.bench.encoder import OURS, TOLD, sides
from experiments.bench.settings import Form, TextBench
from experiments.bench.timing import TimedEnsemble, recording_nothing, spread, write_results
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
    OURS: ((), "experiments.bench.text:train_ours"),
    "trainer": (("torch", "transformers", "accelerate"), "experiments.bench.torch_encoder:train_by_library"),
    "loop": (("torch",), "experiments.bench.torch_text:train_by_loop"),
}


def run(settings: TextBench, console: Console) -> None:
    """Measure every form, print one table, write results.json; raises BadInput if the text cannot be used."""
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
        f"memory by the compiler's count; matrix products at {rates['flops'] / 1e9:,.0f} GFLOP/s; {rows[0]['models']} models "
        f"on {jax.device_count()} devices; a batch is {rows[0]['longest_of_batch']:.0f} tokens long on average, a padded row "
        f"{rows[0]['row_length']}"
    )
    beside = measure_beside_torch(settings, console)
    measured = {"rows": rows, "device_rates": rates, "beside_torch": beside, "allocator": allocator()}
    console.result(f"results: {write_results('text', settings, measured)}")


class OurJob(NamedTuple):
    """What our process trains: the packed form."""

    settings: TextBench


def measure_beside_torch(settings: TextBench, console: Console) -> list[dict[str, Any]]:
    """Return tokens per second of the packed form and of what torch has, measured in turns, all on all cores."""
    study = settings.of_study("packed")
    text, planned = prepare(study, console)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder, "tokenizer.json")
        tokenizer.write_bytes(text.tokenizer)
        jobs = {side: job_of(settings, side, text, planned, tokenizer) for side in sides(SIDES, console)}
        told = environment_of_sides(a_core=settings.seeds % environment.cores() == 0)
        contenders = {side: Contender(SIDES[side][1], [job], told) for side, job in jobs.items()}
        rates = take_turns(contenders, settings.repeats, settings.seconds)
    rows = []
    for side, found in rates.items():
        over = spread([ours / theirs for ours, theirs in zip(rates[OURS], found, strict=True)])
        rows.append({"side": side, **spread(found), "ours_over": None if side == OURS else over})
        console.say(
            f"{TOLD[side]:>22}  {rows[-1]['median']:8,.0f} tokens/s ({rows[-1]['min']:,.0f} to {rows[-1]['max']:,.0f})"
            + ("" if side == OURS else f"  ours is {over['median']:.2f} x ({over['min']:.2f} to {over['max']:.2f})")
        )
    return rows


def job_of(settings: TextBench, side: str, text: Text, planned: StepPlan, tokenizer: Path) -> Any:
    """Return what the process of a side trains: torch one tied model, with as many real tokens a step as one of ours."""
    if side == OURS:
        return OurJob(settings)
    from experiments.bench.torch_encoder import Job

    study = settings.of_study("packed")
    return Job(
        shape=Shape(study.width, study.width, study.width, study.layers, study.heads, coupled=True),
        ids=text.train.ids,
        offsets=text.train.offsets,
        vocabulary=text.vocabulary,
        tokenizer=str(tokenizer),
        rows=planned.rows,
        row_length=study.max_length,
        sentences=settings.batch_size,
        threads=environment.cores(),
        learning_rate=study.learning_rate,
        weight_decay=study.weight_decay,
        warm_up=1,
        clip=None,
    )


def train_ours(job: OurJob) -> Train:
    """Return the packed form of all members on all devices, compiled and warm."""
    study = job.settings.of_study("packed")
    text, planned = prepare(study, Console(quiet=True))
    timed, models = TimedEnsemble(ensemble_of(study, text, planned, "packed"), study.seed_list), 2 * job.settings.seeds
    timed.train(1)
    of_step = timed.train(2).seconds / 2

    def train(seconds: float) -> Work:
        steps = max(1, round(seconds / of_step))
        return Work(round(models * steps * planned.tokens), timed.train(steps).seconds)

    return train


def measure_form(settings: TextBench, form: Form, console: Console) -> dict[str, Any]:
    """Return real tokens per second of all models together, memory, and the flops of a second."""
    study = settings.of_study(form)
    text, planned = prepare(study, console)
    ensemble = TimedEnsemble(ensemble_of(study, text, planned, form), study.seed_list)
    ensemble.train(1)
    steps = max(1, round(settings.seconds / ensemble.train(1).seconds))
    models = 2 * settings.seeds
    times = [ensemble.train(steps) for _ in range(settings.repeats)]
    places, slots = planned.rows * study.max_length, planned.slots * planned.mesh
    flops = text_flops(study, text.twins.vocabulary, places, asked=places if form == "published" else slots)
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
    """Return the ensemble of the study in one form, recording nothing: only training is measured, and only its memory."""
    ensemble = build_ensemble(settings, text, planned)
    loss = everywhere(settings, text) if form == "published" else ensemble.loss
    return recording_nothing(dataclasses.replace(ensemble, loss=loss))


def everywhere(settings: Settings, text: Text) -> Callable[..., Any]:
    """Return the published loss: logits at every place of every row, of which the masked ones are asked for."""
    model = build_model(settings, text)

    def loss(params: Any, batch: Any, key: Any) -> Any:
        logits = model.apply({"params": params}, batch.tokens, None, batch.segments).reshape(batch.tokens.size, -1)
        target = jnp.zeros(batch.tokens.size, jnp.int32).at[batch.slot].max(batch.target)
        asked = jnp.zeros(batch.tokens.size).at[batch.slot].max(batch.weight)
        nats = jnp.sum(asked * cross_entropy(logits, target))
        masked = training.total(jnp.sum(asked))
        return nats / masked, {"loss": training.total(nats) / masked}

    return loss


def longest_of_batch(lengths: np.ndarray, batch_size: int) -> float:
    """Return how long the longest sentence of a batch is on average: to which padding to the batch would pad."""
    whole = len(lengths) // batch_size * batch_size
    chosen = np.random.default_rng(0).permutation(len(lengths))[:whole]
    return float(lengths[chosen].reshape(-1, batch_size).max(1).mean())


def row_line(row: Mapping[str, Any], first: str) -> str:
    """Write what was measured of one form. first: the form that it is compared with."""
    return (
        f"{row['form']:>9}  {row['median']:8,.0f} tokens/s ({row['min']:,.0f} to {row['max']:,.0f})  "
        f"{row['over_first']:.1f} x {first}  {row['padding']:.1%} padding  {row['bytes'] / 2**30:.2f} GiB  "
        f"{row['of_rate']:.0%} of the rate of matrix products  idle {row['idle_share']:.1%}"
    )
