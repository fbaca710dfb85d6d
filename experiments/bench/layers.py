"""Time and memory of a training step with tied and with untied layers, and the time that a change of ties takes."""

import multiprocessing
import time
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import resident
from experiments.bench.settings import LORA_RANK, LayersBench, Storage
from experiments.bench.timing import ratio, spread, write_results
from tiejax import tying
from tiejax.lab.runs.console import Console
from tiejax.lab.studies.layer_tying.model import build
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import BlockBatch
from tiejax.models.layers import layer_norm
from tiejax.models.transformer import EncoderLayer
from tiejax.pretraining.loss import predict_slots
from tiejax.training.layered import Layered
from tiejax.tying.layer_ties import fixed_wiring


def run(settings: LayersBench, console: Console) -> None:
    """Measure every depth, print one table, write results.json."""
    rows: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    for layers in settings.layers:
        forms = {name: make() for name, make in form_makers(settings, layers).items()}
        measured = measure_forms(settings, layers, forms)
        for row in measured:
            console.say(row_line(row))
        change = measure_changes(settings, layers, forms[tied_name(settings, layers)])
        console.say(change_line(change))
        rows += measured
        changes.append(change)
    console.say(
        "MiB of parameters + gradients + optimizer state; peak: a step's arguments, results and temporaries, by the compiler; "
        "resident: the largest growth of a process in which a model is created and trained for some steps"
    )
    console.result(f"results: {write_results('layers', settings, {'rows': rows, 'changes': changes})}")


class TimedForm:
    """A model in training, with ties that may change, and timing of its steps.

    layered: the compiled model; forms may share it. owner: the layer whose weights each layer uses at the start.
    """

    def __init__(self, layered: Layered, owner: tying.Owner, storage: Storage, batch: BlockBatch) -> None:
        self.layered, self.owner, self.storage, self._batch = layered, owner, storage, batch
        self._state = layered.start(jax.random.key(0), owner)

    def seconds_per_step(self, steps: int) -> float:
        """Train `steps` more steps; return the seconds per step."""
        wiring = self._wiring()
        began = time.perf_counter()
        for step in range(steps):
            self._state, _ = self.layered.step(self._state, self._batch, jax.random.key(step), wiring)
        jax.block_until_ready(self._state)
        return (time.perf_counter() - began) / steps

    def losses(self, steps: int) -> list[float]:
        """Train `steps` more steps; return the loss before each of them."""
        wiring, losses = self._wiring(), []
        for step in range(steps):
            self._state, loss = self.layered.step(self._state, self._batch, jax.random.key(step), wiring)
            losses.append(loss)
        return [float(loss) for loss in losses]

    def restart(self, steps: int) -> None:
        """Create the model again, and train `steps` steps."""
        self._state = self.layered.start(jax.random.key(0), self.owner)
        self.seconds_per_step(steps)

    def discard(self) -> None:
        """Discard the parameters and the optimizer's state."""
        self._state = None  # type: ignore[assignment]

    def change(self, owner: tying.Owner) -> float:
        """Change the ties, then train one step; return the seconds of the change."""
        began = time.perf_counter()
        self._state = self.layered.move(self._state, tying.move(self.owner, owner, self.storage))
        jax.block_until_ready(self._state)
        seconds = time.perf_counter() - began
        self.owner = owner
        self.seconds_per_step(1)
        return seconds

    def _wiring(self) -> tying.Wiring:
        return fixed_wiring(self.owner, self.storage)


def random_blocks(settings: Any) -> BlockBatch:
    """Return a fixed batch of random tokens; settings: of a benchmark or of the study."""
    tokens = (
        np.random.default_rng(0).integers(0, settings.vocab_size, (settings.batch_size, settings.context)).astype(np.uint16)
    )
    return BlockBatch(tokens, np.ones(settings.batch_size, np.float32), jax.random.key(0))


def distinct_layers(share: int, layers: int) -> int:
    """Return the number of distinct layers in a tied model of `layers` layers."""
    return max(1, layers // share)


def tied_name(settings: LayersBench, layers: int, storage: Storage = "compact") -> str:
    """Return the name of the tied form in this storage."""
    return f"{distinct_layers(settings.share, layers)} distinct, {storage}"


def form_makers(settings: LayersBench, layers: int) -> dict[str, Callable[[], TimedForm]]:
    """Return functions that create the forms to compare at this depth, by name, before their first step."""
    devices, batch = jax.devices()[:1], random_blocks(settings)
    untied, tied = tying.independent(layers), tying.static_map("sequence", layers, distinct_layers(settings.share, layers))

    def layered(storage: Storage, loss: Callable[..., Any] | None = None, rank: int = 0) -> Layered:
        study = settings.study_settings(layers, storage)
        return build(study, settings.vocab_size, 0, devices, loss, study.form("untied")._replace(lora_rank=rank))

    compact, full = layered("compact"), layered("full")
    by_hand = layered("compact", without_owners(settings.study_settings(layers, "compact")))
    adapted = layered("compact", rank=LORA_RANK)
    return {
        "untied, no owners": lambda: TimedForm(by_hand, untied, "compact", batch),
        "untied": lambda: TimedForm(compact, untied, "compact", batch),
        tied_name(settings, layers): lambda: TimedForm(compact, tied, "compact", batch),
        f"{tied_name(settings, layers)}, rank {LORA_RANK}": lambda: TimedForm(adapted, tied, "compact", batch),
        tied_name(settings, layers, "full"): lambda: TimedForm(full, tied, "full", batch),
    }


def resident_bytes(settings: LayersBench, layers: int, name: str) -> int | None:
    """Return by how many bytes a process grows at most while it creates a form and trains it, once it is compiled."""
    form = form_makers(settings, layers)[name]()
    form.restart(1)  # compiles
    form.discard()
    return resident.growth(lambda: form.restart(3))


def in_new_process(settings: LayersBench, layers: int, name: str) -> int | None:
    """Return `resident_bytes` as measured in a new process, which holds no other models; None on accelerators.

    Two processes cannot share most accelerators, and a process does not hold their memory.
    """
    if jax.default_backend() != "cpu":
        return None
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(resident_bytes, (settings, layers, name))


def without_owners(settings: Settings) -> Callable[..., Any]:
    """Return the study's loss as written by hand for untied layers: a scan over the stack itself, without owners."""
    assert settings.feed_forward is not None
    layer = EncoderLayer(
        settings.width,
        settings.heads,
        settings.feed_forward,
        settings.activation,
        0.0,
        norm_first=True,
        causal=True,
        hidden_dropout=False,
    )

    def loss(params: Any, batch: BlockBatch, key: Any, reads: Any, sends: Any) -> Any:
        tokens = batch.tokens.astype(jnp.int32)
        x = params["embed"]["embedding"][tokens] + params["positions"]["embedding"]
        body = jax.checkpoint(lambda x, weights: (layer.apply({"params": weights}, x), None))
        x, _ = jax.lax.scan(body, x, params["encoder"]["layers"])
        norm: nn.Module = layer_norm("final_norm")
        states = jnp.asarray(norm.apply({"params": params["encoder"]["final_norm"]}, x))[:, :-1].reshape(-1, settings.width)
        target = tokens[:, 1:].reshape(-1)
        total, _ = predict_slots(states, params["head"]["embedding"], target, jnp.ones(len(target)))
        return total / len(target)

    return loss


def measure_forms(settings: LayersBench, layers: int, forms: Mapping[str, TimedForm]) -> list[dict[str, Any]]:
    """Return time and bytes of a step for each form; the forms take turns."""
    for form in forms.values():
        form.seconds_per_step(1)
    steps = {name: max(1, round(settings.seconds / form.seconds_per_step(1))) for name, form in forms.items()}
    measured: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(settings.repeats):
        for name, form in forms.items():
            measured[name].append(form.seconds_per_step(steps[name]))
    rows, tied = [], tied_name(settings, layers)
    for name, form in forms.items():
        size = form.layered.sizes[layers if form.storage == "full" else len(np.unique(form.owner))]
        over = {
            f"over_{base}": ratio(measured[name], measured[of])["median"] for base, of in (("untied", "untied"), ("tied", tied))
        }
        memory = size._asdict() | {"resident_bytes": in_new_process(settings, layers, name)}
        rows.append({"layers": layers, "form": name, **spread(measured[name]), **over, **memory})
    return rows


def measure_changes(settings: LayersBench, layers: int, form: TimedForm) -> dict[str, Any]:
    """Return the seconds that changes of ties take, between two patterns that are already compiled.

    The second pattern has one more distinct layer, so that the stack changes its size. The form ends with its original ties.
    """
    layered, tied, one_more = form.layered, form.owner, form.owner.copy()
    separated = layers - 1 if tied[-1] != layers - 1 else layers - 2
    one_more[separated] = separated
    before = layered.compile_s
    form.change(one_more)
    first_visit = layered.compile_s - before
    form.change(tied)
    visited = layered.compilations
    times = [form.change(owner) for _ in range(settings.repeats) for owner in (one_more, tied)]
    return {
        "layers": layers,
        "first_visit_compile_s": first_visit,
        "compilations_later": layered.compilations - visited,
        **spread(times),
    }


def row_line(row: Mapping[str, Any]) -> str:
    """Return the line of a form for the terminal."""
    return (
        f"{row['layers']:>3} layers, {row['form']:<27} {1000 * row['median']:8.1f} ms per step ({1000 * row['min']:.1f} to "
        f"{1000 * row['max']:.1f})  {row['over_untied']:.3f} x untied, {row['over_tied']:.3f} x tied  "
        f"{row['parameter_bytes'] / 2**20:.1f} + "
        f"{row['gradient_bytes'] / 2**20:.1f} + {row['optimizer_bytes'] / 2**20:.1f} MiB, peak "
        f"{row['peak_bytes'] / 2**20:.0f} MiB, resident {resident_words(row['resident_bytes'])}"
    )


def resident_words(size: int | None) -> str:
    """Return measured bytes in words."""
    return "not measured" if size is None else f"{size / 2**20:.0f} MiB"


def change_line(change: Mapping[str, Any]) -> str:
    """Return the line about changes of ties for the terminal."""
    return (
        f"{change['layers']:>3} layers, a change of ties     {1000 * change['median']:8.1f} ms ({1000 * change['min']:.1f} to "
        f"{1000 * change['max']:.1f}), {change['compilations_later']} compilations; the first step with another number of "
        f"distinct layers compiles for {change['first_visit_compile_s']:.1f} s"
    )
