"""The parts of `bench.py device`: rates, losses of the first steps, and the number of EXor's seeds that solve the task.

A part yields each measurement when it is made, so that an interrupted benchmark keeps it.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from experiments.bench.encoder import ensemble_of as encoder_ensemble
from experiments.bench.encoder import plan as encoder_plan
from experiments.bench.layers import TimedForm, random_blocks
from experiments.bench.settings import DeviceBench, EncoderBench, ExorBench, LayersBench, TextBench, TransferBench
from experiments.bench.text import ensemble_of as text_ensemble
from experiments.bench.timing import TimedEnsemble, spread
from experiments.bench.transfer import Job
from experiments.bench.transfer import ensemble_of as transfer_ensemble
from tiejax import training, tying
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.embedding_coupling.text import prepare_text
from tiejax.lab.studies.exor.ensemble import build_ensemble
from tiejax.lab.studies.exor.task import bayes_risk, split
from tiejax.lab.studies.exor.trajectories import SOLVED_WITHIN
from tiejax.lab.studies.layer_tying.jobs import groups_of
from tiejax.lab.studies.layer_tying.model import build
from tiejax.lab.studies.text_mlm import text as study_text
from tiejax.statistics.arms import ARMS
from tiejax.training import Ensemble, Recorder, TrainState

Measured = dict[str, Any]


def exor(settings: DeviceBench, rates: bool) -> Iterator[Measured]:
    """Yield rates and losses of EXor's fast engine, and the number of seeds that solve the published task, by arm."""
    study = ExorBench().study_settings("fast", settings.seeds)
    if rates:
        for seeds in (settings.seeds, 1024):
            ensemble = build_ensemble(ExorBench().study_settings("fast", seeds))
            yield {"model_steps_per_s": {f"fast, {2 * seeds} models": timed(settings, ensemble, range(seeds), 2 * seeds)}}
    yield {"losses": first_losses(build_ensemble(study), study.seed_list[:4], settings.first_steps)}
    whole = dataclasses.replace(study, steps=None, exact_every=1000).resolved()
    records = training.train(build_ensemble(whole), whole.seed_list).records["exact"]["cross_entropy"]
    _, bayes = bayes_risk(whole.tasks[0], split(whole.bits)["train"])
    solved = records[-1, :, :, 0] < bayes + SOLVED_WITHIN  # records are [record, seed, arm, split]
    yield {"seeds": settings.seeds, "solved": dict(zip(ARMS, solved.sum(0).tolist(), strict=True))}


def text(settings: DeviceBench, rates: bool) -> Iterator[Measured]:
    """Yield rates and losses of the text study at its published size, packed."""
    study = TextBench(seeds=2, vocab_size=8192).study_settings("packed")
    prepared, planned = study_text.prepare(study, Console(quiet=True))
    ensemble = text_ensemble(study, prepared, planned, "packed")
    if rates:
        half = dataclasses.replace(study, compute_dtype="bfloat16").resolved()
        forms = {"float32": ensemble, "bfloat16": text_ensemble(half, prepared, planned, "packed")}
        for name, form in forms.items():
            yield {"tokens_per_s": {name: timed(settings, form, study.seed_list, 4 * planned.tokens)}}
    yield {"losses": first_losses(ensemble, [0], settings.first_steps)}


def layers(settings: DeviceBench, rates: bool) -> Iterator[Measured]:
    """Yield losses and step times of a GPT-2 with 12 layers."""
    bench = LayersBench()
    batch = random_blocks(bench)
    devices, owner = groups_of(jax.devices(), 1, bench.batch_size, jax.default_backend())[0], tying.independent(12)

    def form(dtype: Any) -> TimedForm:
        study = dataclasses.replace(bench.study_settings(12, "compact"), compute_dtype=dtype)
        return TimedForm(build(study, bench.vocab_size, 0, devices), owner, "compact", batch)

    yield {"losses": form("float32").losses(settings.first_steps)}
    if rates:
        for dtype in ("float32", "bfloat16"):
            model = form(dtype)
            steps = max(1, round(settings.seconds / model.seconds_per_step(3)))
            times = [1000 * model.seconds_per_step(steps) for _ in range(settings.repeats)]
            yield {"ms_a_step": {dtype: spread(times)}}


def encoder(settings: DeviceBench, rates: bool) -> Iterator[Measured]:
    """Yield rates and losses of pre-training the coupled base encoder."""
    bench = EncoderBench()
    study = bench.study_settings(1)
    prepared = prepare_text(study, Console(quiet=True), False)
    ensemble = encoder_ensemble(study, bench, prepared, encoder_plan(study, prepared, jax.device_count()))
    if rates:
        tokens = encoder_plan(study, prepared, 1).tokens
        yield {"tokens_per_s": timed(settings, ensemble, [0], tokens)}
    yield {"losses": first_losses(ensemble, [0], settings.first_steps)}


def fine_tuning(settings: DeviceBench, rates: bool) -> Iterator[Measured]:
    """Yield rates and losses of fine-tuning the study's default encoder as an ensemble."""
    bench = TransferBench()
    arms = 2 * len(bench.study_settings().fine_tuning_rates)
    ensemble, seeds, start = transfer_ensemble(bench.study_settings(), Job(bench, bench.seeds, arms))
    if rates:
        yield {"member_steps_per_s": timed(settings, ensemble, seeds, len(seeds) * arms, start)}
    yield {"losses": first_losses(ensemble, seeds, settings.first_steps, start)}


PARTS: dict[str, Callable[[DeviceBench, bool], Iterator[Measured]]] = {
    "exor": exor,
    "text": text,
    "layers": layers,
    "encoder": encoder,
    "fine_tuning": fine_tuning,
}


def first_losses(ensemble: Ensemble, seeds: Any, steps: int, start: TrainState | None = None) -> list[float]:
    """Return the training losses of the first member at every fifth step."""

    def measure(params: Any, batch: Any, seed_key: Any, step: Any) -> dict[str, jax.Array]:
        return {"loss": ensemble.loss(params, batch, seed_key.key)[0]}

    short = dataclasses.replace(ensemble, recorders={"first": Recorder(5, measure)}, steps=steps)
    losses = training.train(short, list(seeds), start=start).records["first"]["loss"]
    return [float(loss) for loss in losses[:, 0, 0]]


def timed(
    settings: DeviceBench, ensemble: Ensemble, seeds: Any, work_per_step: float, start: TrainState | None = None
) -> dict[str, float]:
    """Return median and range of the work per second, and the seconds of compilation."""
    timer = TimedEnsemble(ensemble, list(seeds), start)
    timer.train(1)
    steps = max(1, round(timer.steps_in(settings.seconds, 5)))
    rates = [steps * work_per_step / timer.train(steps).seconds for _ in range(settings.repeats)]
    return {**spread(rates), "compile_s": timer.compile_s}
