"""The records of a text run as arrays of metrics.npz and as TensorBoard event files."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lazy_loader
import numpy as np

from tiejax import training
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.studies.text_mlm.settings import Settings
from tiejax.lab.studies.text_mlm.text import Text, buckets_of, pairs_of
from tiejax.statistics.untie_arms import Arms
from tiejax.system.naming import naming

# Lazy, because the TensorBoard writer imports torch if it is installed.
event_files = lazy_loader.load("tiejax.lab.reporting.event_files", suppress_warning=True)

Records = Mapping[str, Mapping[str, np.ndarray]]


def named_arrays(records: Records, settings: Settings, text: Text, arms: Arms | None = None) -> dict[str, np.ndarray]:
    """Return the records as the arrays of metrics.npz: `[arm, seed, record, ...]`, validations as `validation_*`."""
    arrays = {
        "arms": np.array(settings.compared),
        "seeds": np.array(settings.seed_list),
        "bucket_names": np.array(buckets_of(text)[0]),
        **pairs_of(text)[1],
    }
    if arms is not None:
        arrays |= arms.arrays
    return arrays | training.by_arm(records, {"record": "", "validation": "validation_"})


def scalars(records: Records, pairs: Mapping[str, np.ndarray]) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Return the scalars for TensorBoard, as (values `[record, seed, arm]` by name, steps).

    pairs: the description of the recorded pairs, from `pairs_of`.
    """
    record = records["record"]
    shown = {name: record[name] for name in ("train_loss", "train_accuracy", "norm_input", "norm_output")}
    for number, name in enumerate(pairs["set_names"]):
        for table in ("input", "output"):
            distances = record[f"distance_{table}"][..., pairs["pair_set"] == number]
            if distances.shape[-1]:
                shown[f"distance_{table}/{name}"] = distances.mean(-1)
    validation = records["validation"]
    held_out = {f"validation_{name}": validation[name] for name in ("loss", "accuracy")}
    return [(shown, record["step"]), (held_out, validation["step"])]


@contextlib.contextmanager
def open_event_files(
    settings: Settings, directory: RunDirectory | None, text: Text, arms: Arms | None
) -> Iterator[Callable[[Any], None]]:
    """Yield a function that writes records to TensorBoard event files; a no-op without --tensorboard or a run directory."""
    if not settings.tensorboard or directory is None:
        yield lambda records: None
        return
    # A resumed run replays the records of its checkpoint, so every process writes from the first step on.
    folder = directory.path / "events"
    events = event_files.EventFiles(folder, settings.seed_list, settings.compared if arms is None else arms.names)
    pairs = pairs_of(text)[1]

    def write(records: Any) -> None:
        with naming(folder):
            for points, steps in scalars(records, pairs):
                events.write(points, steps)

    try:
        yield write
    finally:
        with naming(folder):
            events.close()
