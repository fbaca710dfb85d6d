"""Which loops of EXor's training the host drives on a GPU, and which it runs by itself, as CUDA graphs (XLA's command buffers).

The compiler for an H100 writes down what its program starts; nothing is run.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from experiments.bench.h100 import WITH_DRIVER
from tiejax.lab.studies.exor.ensemble import build_ensemble
from tiejax.lab.studies.exor.settings import Settings
from tiejax.training.chunk import advance


def host_loops() -> dict[str, int]:
    """Return how many loops of a chunk of EXor with 32 seeds the host drives, as XLA has it and with --graph_loops."""
    topology = topologies.get_topology_desc("h100", platform="cuda", topology="1x1x1", target_config=WITH_DRIVER)
    return {
        name: len(list(driven_by_host(started(topology.devices[0], graph_loops))))
        for name, graph_loops in (("default", False), ("graph_loops", True))
    }


def started(device: Any, graph_loops: bool) -> str:
    """Return what the program of a chunk starts, as XLA writes it down."""
    settings = Settings(seeds=32, engine="fast", graph_loops=graph_loops).resolved()
    ensemble = build_ensemble(settings, "gpu")
    numbers = (jax.ShapeDtypeStruct((32,), jnp.uint32), jax.ShapeDtypeStruct((32,), jnp.int32))
    members = jax.eval_shape(lambda: ensemble.start(range(32)))
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=SingleDeviceSharding(device)),
        (numbers, members, jax.ShapeDtypeStruct((), jnp.int32)),
    )

    def chunk(numbers: Any, members: Any, until: jax.Array) -> Any:
        return advance(ensemble, numbers, members, until, None)

    lowered = jax.jit(chunk, donate_argnums=1).trace(*shapes).lower(lowering_platforms=("cuda",))
    with tempfile.TemporaryDirectory() as folder:
        lowered.compile({**ensemble.xla_options["gpu"], "xla_dump_to": folder})
        # The last one: where nothing became a graph, there is only what was before.
        return sorted(Path(folder).glob("*.thunk_sequence*.txt"), key=lambda path: len(path.name))[-1].read_text()


def driven_by_host(text: str) -> Iterator[str]:
    """Yield the loops of what a program starts that are in no command buffer; what is in one is further to the right."""
    buffer: int | None = None
    for line in text.splitlines():
        if found := re.match(r"( *)\d+: (k\w+)", line):
            indent, kind = len(found[1]), found[2]
            if buffer is not None and indent <= buffer:
                buffer = None
            if buffer is None and kind == "kCommandBuffer":
                buffer = indent
            if buffer is None and kind == "kWhile":
                yield line
