"""All that is read before a run begins: its text, its tasks, what its probes read, and the plan of its steps."""

from typing import NamedTuple

import jax

from tiejax.pretraining.step_plan import StepPlan
from tiejax.runs.console import Console
from tiejax.studies.embedding_coupling.settings import Settings
from tiejax.studies.embedding_coupling.task_data import ProbeData, TaskData, load_probes, load_tasks
from tiejax.studies.embedding_coupling.text import Text, plan, prepare_text


class Prepared(NamedTuple):
    """What a run reads."""

    text: Text
    plan: StepPlan
    tasks: list[TaskData]
    probes: ProbeData


def prepare(settings: Settings, console: Console, resume: bool = False) -> Prepared:
    """Return what a configuration reads; raises BadInput. resume: with the vocabulary that the run was started with."""
    text = prepare_text(settings, console, resume)
    planned = plan(settings, text, jax.device_count(), jax.local_device_count())
    return Prepared(text, planned, load_tasks(settings, text, planned.mesh), load_probes(settings, text))
