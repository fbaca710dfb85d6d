"""Exported functions whose vocabulary is symbolic: `view` inside, called with two sizes, against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from tiejax.tying import Cast, Reshape, Scale, Slice, Tie, TieError, resolve, store, view

TRANSFORMS = {
    "identity": ("identity", lambda x: x),
    "transpose": ("transpose", lambda x: x.T),
    "several": (["transpose", Scale(2.0)], lambda x: 2 * x.T),
    "cast": (Cast("bfloat16"), lambda x: x),
    "columns": (Slice((0, 2), axis=1), lambda x: x[:, :2]),
    "a column": (Slice(1, axis=1), lambda x: x[:, 1]),
    "rows": (Slice((0, 3)), lambda x: x[:3]),
    "reshape": (Reshape((4, -1)), lambda x: x.reshape(4, -1)),
}


@pytest.mark.parametrize("resolved", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_view_in_an_exported_function(name, resolved):
    transform, by_numpy = TRANSFORMS[name]
    (rows,) = export.symbolic_shape("v", constraints=["v >= 3"])
    table = jnp.arange(20.0).reshape(5, 4)
    tie = Tie("embed", "head", transform, gradient=(1.0, 0.5))
    ties = resolve(tie, view({"embed": table, "head": None}, tie)) if resolved else tie
    shapes = {"embed": jax.ShapeDtypeStruct((rows, 4), jnp.float32), "head": None}
    exported = export.export(jax.jit(lambda stored: view(stored, ties)["head"].astype(jnp.float32)))(shapes)
    for size in (3, 5):
        found = exported.call({"embed": table[:size], "head": None})
        np.testing.assert_array_equal(found, by_numpy(np.asarray(table[:size])))


def test_symbolic_shapes_that_fit_or_not():
    rows, more = export.symbolic_shape("v, w")
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)  # noqa: E731
    tie = Tie("embed", "head", transform="transpose")
    assert store({"embed": shape(rows, 4), "head": shape(4, rows)}, tie)["head"] is None
    with pytest.raises(TieError, match=r"shapes or dtypes differ: embed \(v, 4\) float32, after transpose \(4, v\), and head"):
        store({"embed": shape(rows, 4), "head": shape(4, more)}, tie)
    with pytest.raises(TieError, match=r"Slice.* does not fit \(Symbolic dimension comparison .* is inconclusive"):
        view({"embed": shape(rows, 4), "head": None}, Tie("embed", "head", Slice((0, 3))))
