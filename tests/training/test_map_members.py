"""A function of each member, against a loop; seeds that do not fill the devices are padded and left out again."""

import numpy as np

from tiejax.training.map_members import map_members


def test_every_member_is_mapped_with_what_all_share():
    rng = np.random.default_rng(0)
    members = {"a": rng.standard_normal((3, 2, 4)).astype(np.float32), "b": rng.standard_normal((3, 2)).astype(np.float32)}
    shared = {"x": np.arange(4, dtype=np.float32)}
    found = map_members(lambda member, shared: {"y": member["a"] @ shared["x"] + member["b"]}, members, shared)
    np.testing.assert_allclose(found["y"], members["a"] @ shared["x"] + members["b"], rtol=1e-6)
    assert isinstance(found["y"], np.ndarray)
