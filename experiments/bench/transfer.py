"""Member-steps per second in fine-tuning: an ensemble, compared with the same members one after the other on all cores.

Each form compiles once, whereas a user's own loop would compile every member again. The forms take turns in separate processes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.contender import Train, compare, devices_on_cpu
from experiments.bench.settings import ENDLESS, TransferBench
from experiments.bench.timing import TimedEnsemble, over_words, range_words, ratio, recording_nothing, spread, write_results
from tiejax import training
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.embedding_coupling.encoders import build_model
from tiejax.lab.studies.embedding_coupling.settings import Settings
from tiejax.lab.studies.embedding_coupling.task_data import read_files, task_data
from tiejax.lab.studies.embedding_coupling.text import prepare_text
from tiejax.models import bert
from tiejax.transfer import fine_tuning

LABELS = {"ensemble": "an ensemble, one device per core", "one": "one after the other, one device over all cores"}


class Job(NamedTuple):
    """The job of a process: train `seeds` pre-training seeds with `arms` arms each, all at once."""

    settings: TransferBench
    seeds: int
    arms: int


def run(settings: TransferBench, console: Console) -> None:
    """Measure both forms in turn, print rates and their ratio, write results.json."""
    prepare_text(settings.study_settings(), console, False)  # before the processes read it at the same time
    arms = 2 * len(settings.study_settings().fine_tuning_rates)
    jobs = {"ensemble": Job(settings, settings.seeds, arms), "one": Job(settings, 1, 1)}
    variables = {form: devices_on_cpu(device_a_core=form == "ensemble") for form in jobs}
    rates = compare(settings, {form: (train_members, [job], variables[form]) for form, job in jobs.items()})
    spreads = {form: spread(measured) for form, measured in rates.items()}
    for form, rate in spreads.items():
        console.say(f"{LABELS[form]:>47}: {rate['median']:7,.1f} member-steps/s {range_words(rate, ',.1f')}")
    over = ratio(rates["ensemble"], rates["one"])
    members = settings.seeds * arms
    console.say(f"{members} members as an ensemble: {over_words(over, 'one after the other')}")
    results = {"members": members, "rates": spreads, "ratio": over}
    console.result(f"results: {write_results('transfer', settings, results)}")


def train_members(job: Job) -> Train:
    """Return fine-tuning of the job's members, compiled and warmed up. Its work is counted in member-steps."""
    study = job.settings.study_settings()
    return TimedEnsemble(*ensemble_of(study, job)).paced(job.seeds * job.arms, 4)


def ensemble_of(study: Settings, job: Job) -> tuple[training.Ensemble, Sequence[int], training.TrainState]:
    """Return the study's fine-tuning ensemble without records, its seeds, and its members, of untrained encoders."""
    text = prepare_text(study, Console(quiet=True), False)
    task = task_data(study, text, read_files(study).tasks[0], 1, False)
    shape = study.every_shape[study.baseline or ""]
    model = build_model(study, shape, text)
    objective = fine_tuning.Objective(model, task.kind, len(task.labels), study.fine_tuning_dropout, study.pooling)
    recipe = fine_tuning.Recipe(ENDLESS / task.feed.steps_of_epoch, study.weight_decay, 0.1, study.eps, study.clip)
    seeds = list(range(job.seeds))
    encoder = bert.discard_head(model.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"])
    repeated = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (job.seeds, job.arms, *leaf.shape)), encoder)
    rates = np.full((job.seeds, job.arms), 1e-3)
    ensemble = fine_tuning.build_ensemble(objective, recipe, task.feed, repeated)
    start = fine_tuning.start_members(objective, seeds, seeds, repeated, rates, ensemble.optimizer)
    return recording_nothing(ensemble), seeds, start
