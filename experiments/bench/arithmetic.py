"""Peak rates of the machine, and the arithmetic that a training step cannot avoid."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tiejax.lab.studies.exor import contexts, task
from tiejax.lab.studies.exor import settings as exor_settings
from tiejax.lab.studies.text_mlm import settings as text_settings

FORWARD_AND_BACKWARD = 3  # the backward pass has two matrix products for each one of the forward pass


def device_rates() -> dict[str, float]:
    """Return peak rates per second of all devices together: flops of large matrix products, exponentials, bytes copied."""
    side, small, large = 512, 2**14, 2**24
    return {
        "flops": _best_rate(lambda x: jnp.matmul(x, x, precision="highest") * 1e-3, (side, side), 50, 2.0 * side**3),
        "exponentials": _best_rate(lambda x: jnp.exp(x * 1e-3), (small,), 2000, small),
        "bytes": _best_rate(lambda x: x + 1.0, (large,), 10, 8.0 * large),
    }


def _best_rate(body: Callable[[jax.Array], jax.Array], shape: tuple[int, ...], loops: int, amount: float) -> float:
    """Return the best of five measured rates of all devices together.

    body: run `loops` times on each device, on an array of this shape. amount: work of one run.
    """
    mesh = jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    split = PartitionSpec("devices")

    def on_device(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, loops, lambda _, x: body(x), x)

    run = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=split, out_specs=split, check_vma=False))
    x = jnp.full((jax.device_count() * shape[0], *shape[1:]), 1e-3, jnp.float32)
    jax.block_until_ready(run(x))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(run(x))
        times.append(time.perf_counter() - began)
    return jax.device_count() * loops * amount / min(times)


def exor_work(settings: exor_settings.Settings) -> dict[str, float]:
    """Return the arithmetic that one model-step of EXor's fast engine cannot avoid, counted from its shapes.

    flops: multiplications and additions of matrix products, forward and backward. exponentials: in attention, GELU and the
    softmax. bytes: parameters and both moments, read and written once, and the batch.
    """
    exor, model = settings.tasks[0], settings.model_settings
    width, hidden, layers, symbols = model["width"], model["feed_forward"], model["layers"], exor.vocabulary
    multisets = min(contexts.count_contexts(exor, ordered=False), len(task.split(exor.bits)["train"]))
    products = (2 * symbols + 1) * width * width  # keys and values of the table, the mask's query
    products += symbols * width * multisets  # the logits
    exponentials = symbols * multisets
    for layer in range(layers):
        queries = 1 if layer == layers - 1 else symbols
        columns = queries * multisets
        products += columns * (symbols * width + width * width + 2 * width * hidden)
        products += columns * symbols * width + multisets * (2 * symbols + queries) * width * width if layer > 0 else 0
        exponentials += columns * (symbols + hidden)
    layer_parameters = 4 * width * width + 4 * width + 2 * width * hidden + hidden + width + 4 * width
    parameters = 2 * symbols * width + layers * layer_parameters
    return {
        "flops": FORWARD_AND_BACKWARD * 2.0 * products,
        "exponentials": float(exponentials),
        "bytes": 4.0 * (2 * 3 * parameters + 2 * symbols * multisets),
    }


def exor_floor(work: dict[str, float], rates: dict[str, float]) -> dict[str, float]:
    """Return the model-steps per second that the counted work alone would allow, if limited by arithmetic and by memory."""
    arithmetic = work["flops"] / rates["flops"] + work["exponentials"] / rates["exponentials"]
    return {"arithmetic": 1 / arithmetic, "memory": rates["bytes"] / work["bytes"]}


def text_flops(settings: text_settings.Settings, vocabulary: int, positions: int, predicted: int) -> float:
    """Return the flops of the matrix products in one model-step on text, forward and backward.

    vocabulary: number of ids, twins included. positions: positions of all rows, padding included. predicted: positions with
    logits.
    """
    width = settings.width
    layer = 2 * (4 * width**2 + 2 * width * settings.feed_forward) + 4 * settings.max_length * width
    return float(FORWARD_AND_BACKWARD) * (positions * settings.layers * layer + predicted * 2 * vocabulary * width)
