"""The records of a text run as arrays of metrics.npz and for trackers."""

from collections.abc import Mapping

import numpy as np

from tiejax import training
from tiejax.lab.studies.text_mlm.settings import Settings
from tiejax.lab.studies.text_mlm.text import Text, buckets_of, pairs_of
from tiejax.statistics.untie_arms import Arms
from tiejax.training.records import Records


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


def with_distances(records: Records, pairs: Mapping[str, np.ndarray]) -> Records:
    """Return records with the mean distances of each set of pairs, such as `distance_input/twins .5`.

    pairs: the description of the recorded pairs, from `pairs_of`.
    """
    if "record" not in records:
        return records
    record = dict(records["record"])
    for number, name in enumerate(pairs["set_names"]):
        for table in ("input", "output"):
            distances = record[f"distance_{table}"][..., pairs["pair_set"] == number]
            if distances.shape[-1]:
                record[f"distance_{table}/{name}"] = distances.mean(-1)
    return {**records, "record": record}
