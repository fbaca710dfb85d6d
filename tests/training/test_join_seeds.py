"""Records and members of several ensembles are joined along their seeds."""

import numpy as np
import pytest

from tiejax.training.records import join_records, join_seeds


@pytest.mark.parametrize("conditions", [1, 3])
@pytest.mark.parametrize("on_disk", [False, True])
def test_joined_arrays_are_those_of_one_ensemble(tmp_path, conditions, on_disk):
    """All seeds under the first condition, then under the next: 2, 4 and 1 seeds of the whole."""
    whole = np.random.default_rng(0).normal(size=(5, conditions, 7, 2, 3)).astype(np.float32)
    parts = [whole[:, :, low:high].reshape(5, -1, 2, 3) for low, high in ((0, 2), (2, 6), (6, 7))]
    joined = join_seeds(parts, 1, conditions, tmp_path if on_disk else None)
    assert joined.dtype == np.float32
    assert joined.tobytes() == whole.reshape(5, -1, 2, 3).tobytes()
    assert list(tmp_path.iterdir()) == []  # temporary files have no name
    by_seed = np.moveaxis(whole, 0, -1)
    parts = [by_seed[:, low:high].reshape(-1, 2, 3, 5) for low, high in ((0, 2), (2, 7))]
    assert (join_seeds(parts, 0, conditions) == by_seed.reshape(-1, 2, 3, 5)).all()


def test_steps_of_records_are_kept():
    parts = [{"record": {"step": np.array([0, 5]), "loss": np.full((2, seeds, 1), seeds)}} for seeds in (2, 3)]
    joined = join_records(parts)
    assert joined["record"]["step"].tolist() == [0, 5]
    assert joined["record"]["loss"][1, :, 0].tolist() == [2, 2, 3, 3, 3]
    assert join_records(parts[:1]) is parts[0]
