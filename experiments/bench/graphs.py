"""Loops of EXor's training that the host drives on a GPU, as opposed to those inside CUDA graphs (XLA's command buffers).

They are read from the thunk sequence that the compiler for an H100 dumps; nothing is executed.
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
    """Return the number of loops that the host drives in a chunk of EXor with 32 seeds, by default and with --graph_loops."""
    topology = topologies.get_topology_desc("h100", platform="cuda", topology="1x1x1", target_config=WITH_DRIVER)
    return {
        name: len(list(driven_by_host(thunk_sequence(topology.devices[0], graph_loops))))
        for name, graph_loops in (("default", False), ("graph_loops", True))
    }


def thunk_sequence(device: Any, graph_loops: bool) -> str:
    """Return XLA's dump of the thunk sequence of a chunk."""
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
        # The longest name is that of the last pass. If no loop became a graph, only the sequence before that pass is dumped.
        return sorted(Path(folder).glob("*.thunk_sequence*.txt"), key=lambda path: len(path.name))[-1].read_text()


def driven_by_host(text: str) -> Iterator[str]:
    """Yield the lines of loops in a thunk sequence that are outside of command buffers; their contents are indented."""
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
