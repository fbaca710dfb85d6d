"""Two leaves of a tie on different devices or partitioned over both, in a process with two."""

from processes import Ended, end, start_python

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, optax
from tiejax.tying import Tie, TieError, assert_tied, equal_leaves, load_full, retie, retie_switched, store, untie
first, second = jax.devices()
table, tie = np.arange(6.0, dtype=np.float32).reshape(2, 3), Tie("embed", "head", transform="transpose")

def on(head):
    return {"embed": jax.device_put(jnp.asarray(table), first), "head": jax.device_put(jnp.asarray(head), second)}

equal, other, optimizer = on(table.T), on(table.T + 2), optax.adamw(0.1)
assert_tied(equal, tie)
assert_tied(other, tie, atol=2.5)
assert equal_leaves(equal, tie) == {"head": True}
try:
    assert_tied(other, tie, atol=1.5)
except TieError as error:
    print(error)
for keep, expected in (("mean", table + 1), ("source", table), ("target", table + 2)):
    stored, state = retie(optimizer, other, optimizer.init(other), tie, keep=keep)
    np.testing.assert_array_equal(stored["embed"], expected)
    assert stored["embed"].devices() == state[0].mu["embed"].devices() == {first}
    full, state = retie_switched(optimizer, other, optimizer.init(other), tie, keep=keep)
    np.testing.assert_array_equal(full["head"], expected.T)
    assert full["head"].devices() == {second}
assert load_full(store(other, tie), equal, tie)["embed"].devices() == {first}

# On a mesh of explicit axes, where operands must be partitioned alike; the transpose is along another axis than the table.
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tiejax.tying import copy_to_targets, symmetrise
rows = NamedSharding(jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,)), PartitionSpec("x", None))
table = np.arange(8.0, dtype=np.float32).reshape(2, 4)
both = {"embed": jax.device_put(table, rows), "head": jax.device_put(table.T + 2, rows)}
for keep, expected in (("mean", table + 1), ("source", table), ("target", table + 2)):
    np.testing.assert_array_equal(retie(optimizer, both, optimizer.init(both), tie, keep=keep)[0]["embed"], expected)
    full = retie_switched(optimizer, both, optimizer.init(both), tie, keep=keep)[0]
    np.testing.assert_array_equal(full["head"], expected.T)
    assert full["head"].sharding == rows
total = jax.jit(lambda grads: symmetrise(grads, tie, True))(both)
np.testing.assert_array_equal(total["embed"], 2 * table + 2)
np.testing.assert_array_equal(total["head"], 2 * table.T + 2)
np.testing.assert_array_equal(copy_to_targets(both, both, tie, True)["head"], table.T)
# On other meshes arrays keep their own partition, whatever the transform makes of the other leaf's.
auto = NamedSharding(jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,)), PartitionSpec("x", None))
placed = {"embed": jax.device_put(table, auto), "head": jax.device_put(table.T + 2, auto)}
for tree in (copy_to_targets(placed, placed, tie, True), symmetrise(placed, tie, True),
             *retie_switched(optimizer, placed, optimizer.init(placed), tie, keep="target")[:1]):
    assert tree["embed"].sharding == tree["head"].sharding == auto
for keep in ("mean", "target"):
    stored, state = retie(optimizer, placed, optimizer.init(placed), tie, keep=keep)
    assert stored["embed"].sharding == auto
    assert state[0].mu["embed"].sharding == optimizer.init(placed)[0].mu["embed"].sharding
alone = both | {"head": jnp.asarray(table.T + 2)}  # on one device
np.testing.assert_array_equal(retie(optimizer, alone, optimizer.init(alone), tie)[0]["embed"], table + 1)
np.testing.assert_array_equal(symmetrise(alone, tie, True)["embed"], 2 * table + 2)
print("done")
"""


def test_leaves_on_different_devices():
    ended = end(start_python("-c", PROGRAM, env={"JAX_NUM_CPU_DEVICES": "2"}))
    assert ended == Ended(0, "tie embed -> head: the values of the two leaves differ\ndone\n", "")
