"""Benchmarks of the experiments: how fast this machine trains, and how far that is from what its arithmetic would allow."""

import dataclasses
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

# As a script this file finds its own folder alone, and it measures what a neighbour builds.
sys.path.insert(0, str(Path(__file__).parents[1]))

from tiejax.reporting.words import number
from tiejax.runs import environment
from tiejax.runs.console import Console
from tiejax.runs.run_directory import RunDirectory
from tiejax.settings import checks, command_line
from tiejax.settings.command_line import BadInput
from tiejax.studies.exor import study as experiment
from tiejax.studies.exor import task as exor
from tiejax.studies.layer_tying import study as layer_tying
from tiejax.studies.text_mlm import study as text_mlm

RECORD_EVERY = 500
ENDLESS = 100_000_000


def check_repeats(repeats: int) -> None:
    """Raise BadInput if so many measurements have no median worth its name."""
    if repeats < 5:
        raise BadInput(f"--repeats: a median needs at least 5, got {repeats}")


def write(out: Path, benchmark: str, config: Any, measured: dict[str, Any]) -> Path:
    """Write results.json: what was measured, with what settings, on what machine; return its path."""
    import jax

    results = {
        "benchmark": benchmark,
        "config": dataclasses.asdict(config),
        "devices": [device.device_kind for device in jax.devices()],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "jax": jax.__version__,
        **measured,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1))
    return out / "results.json"


@dataclasses.dataclass(frozen=True)
class Config:
    """Throughput of EXor's training, recording included.

    Args:
        seeds: numbers of seeds, each trained tied and untied, so twice as many models
        engines: engines to be measured
        size: published size of the transformer
        repeats: measurements of each setting, at least 5
        seconds: length of one measurement
        torch_seconds: length of one measurement of the torch loop
        out: where results.json and the figure go
    """

    seeds: list[int] = dataclasses.field(default_factory=lambda: [1, 8, 32, 128])
    engines: list[Literal["fast", "plain"]] = dataclasses.field(default_factory=lambda: ["fast", "plain"])
    size: Literal["small", "medium"] = "small"
    repeats: int = 5
    seconds: float = 1.5
    torch_seconds: float = 3.0
    out: str = "runs/bench/exor"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be measured."""
        if not self.seeds or min(self.seeds) < 1:
            raise BadInput(f"--seeds: needs numbers of at least 1, got {self.seeds}")
        if not self.engines:
            raise BadInput("--engines: fast, plain or both, got none")
        check_repeats(self.repeats)
        for name in ("seconds", "torch_seconds"):
            if not getattr(self, name) > 0:
                raise BadInput(f"--{name}: must be above 0, got {getattr(self, name)}")


COMMAND = command_line.CommandLine(
    description="Measure training throughput of `exor` (the ensemble on its engines and, where torch is installed, the same "
    "protocol as a plain torch loop); `bench.py text --help` and `bench.py layers --help` are about the others.",
    example="Example: python experiments/bench.py exor --seeds [8,32]",
    switches={"quiet": "print nothing but the path of the results"},
)


def spread(rates: Sequence[float]) -> dict[str, float]:
    """Return median, minimum and maximum of repeated measurements."""
    return {"median": float(np.median(rates)), "min": float(min(rates)), "max": float(max(rates))}


def make_timer(config: Config, engine: str, seeds: int, recording: bool = True) -> tuple[Callable[[int], float], float]:
    """Return steps -> seconds of an ensemble, with its default schedule of records or none, and the seconds to compile it."""
    import jax

    every = RECORD_EVERY if recording else ENDLESS
    chosen: dict[str, Any] = {"size": config.size, "engine": engine}
    exact_every = every if engine == "fast" else max(every, 10_000)
    settings = experiment.Config(seeds=seeds, steps=ENDLESS, record_every=every, exact_every=exact_every, **chosen).resolved()
    ensemble = experiment.build_ensemble(settings)
    members = ensemble.start(settings.seed_list)
    began = time.perf_counter()
    runner = ensemble.compile(settings.seed_list, members)
    compile_s = time.perf_counter() - began
    placed, cursor = runner.to_devices(members), 0

    def run(steps: int) -> float:
        nonlocal placed, cursor
        began, end = time.perf_counter(), cursor + steps
        while cursor < end:
            until = min(end, ensemble.longest_chunk(cursor))
            placed, *_ = runner.advance(placed, until)
            cursor = until
        jax.block_until_ready(placed)
        return time.perf_counter() - began

    run(20)
    return run, compile_s


def steps_for(run: Callable[[int], float], seconds: float) -> int:
    """Return about how many steps take so long; whole periods of records where that is more than one."""
    steps = max(20, round(seconds / (run(100) / 100)))
    return steps if steps <= RECORD_EVERY else round(steps / RECORD_EVERY) * RECORD_EVERY


def measure_ensemble(config: Config, engine: str, seeds: int) -> dict[str, Any]:
    """Return model-steps per second of an ensemble, recording included, and the time to compile it."""
    run, compile_s = make_timer(config, engine, seeds)
    steps = steps_for(run, config.seconds)
    rates = [2 * seeds * steps / run(steps) for _ in range(config.repeats)]
    return {"engine": engine, "seeds": seeds, "models": 2 * seeds, "compile_s": compile_s, **spread(rates)}


def recording_share(config: Config, engine: str, seeds: int) -> dict[str, float]:
    """Return the share of time that recording takes, from measurements with and without it in turn."""
    recorded, bare = (make_timer(config, engine, seeds, recording)[0] for recording in (True, False))
    steps = max(RECORD_EVERY, steps_for(recorded, config.seconds))
    return spread([1 - bare(steps) / recorded(steps) for _ in range(2 * config.repeats)])


def torch_loop(config: Config) -> Callable[[float], float]:
    """Return seconds -> steps per second of one untied model in torch, fed by a Dataset and a DataLoader."""
    import random

    import torch
    import torch.utils.data

    published = experiment.PUBLISHED["transformer", config.size]
    task, rows = exor.EXor(), exor.split(7)["train"].tolist()
    torch.manual_seed(0)
    rng = random.Random(0)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(task.vocabulary, published["width"])
            self.head = torch.nn.Embedding(task.vocabulary, published["width"])
            layer = torch.nn.TransformerEncoderLayer(
                published["width"],
                published["heads"],
                published["feed_forward"],
                dropout=0.0,
                activation="gelu",
                batch_first=True,
            )
            self.encoder = torch.nn.TransformerEncoder(layer, published["layers"], enable_nested_tensor=False)

        def forward(self, tokens: Any) -> Any:
            return self.encoder(self.embed(tokens)) @ self.head.weight.T

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=published["learning_rate"], eps=1e-12, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000, 1e-5)

    class Visits(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> tuple[Any, int, int]:
            bits = rows[index]
            spelled = [rng.choices((0, 1), task.zero)[0] if bit == 0 else rng.choices((2, 3), task.one)[0] for bit in bits]
            position = rng.randrange(len(bits))
            target = spelled[position]
            spelled[position] = task.mask
            return torch.tensor([*spelled, task.odd if sum(bits) % 2 else task.even]), position, target

    loader = torch.utils.data.DataLoader(Visits(), batch_size=len(rows), shuffle=True)

    def step() -> None:
        for tokens, positions, targets in loader:
            logits = model(tokens)[torch.arange(len(tokens)), positions]
            loss = torch.nn.functional.cross_entropy(logits, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()

    for _ in range(20):
        step()

    def run(seconds: float) -> float:
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            step()
            steps += 1
        return steps / (time.perf_counter() - began)

    return run


def work(size: str) -> dict[str, float]:
    """Return the arithmetic that one model-step of the fast engine cannot do without, counted from its shapes.

    flops: multiplications and additions of matrix products, forward and twice backward. exponentials: of attention, of GELU and
    of the softmax. bytes: parameters and both moments, read and written once, and the batch.
    """
    task, published = exor.EXor(), experiment.PUBLISHED["transformer", size]
    width, hidden, layers = published["width"], published["feed_forward"], published["layers"]
    multisets = min(exor.count_contexts(task, ordered=False), len(exor.split(task.bits)["train"]))
    symbols = task.vocabulary
    products = (2 * symbols + 1) * width * width  # keys and values of the table, the mask's query
    products += symbols * width * multisets  # the logits
    exponentials = symbols * multisets
    for layer in range(layers):
        asking = 1 if layer == layers - 1 else symbols
        columns = asking * multisets
        products += columns * (symbols * width + width * width + 2 * width * hidden)
        products += columns * symbols * width + multisets * (2 * symbols + asking) * width * width if layer > 0 else 0
        exponentials += columns * (symbols + hidden)
    layer_parameters = 4 * width * width + 4 * width + 2 * width * hidden + hidden + width + 4 * width
    parameters = 2 * symbols * width + layers * layer_parameters
    return {
        "flops": 3 * 2.0 * products,
        "exponentials": float(exponentials),
        "bytes": 4.0 * (2 * 3 * parameters + 2 * symbols * multisets),
    }


def device_rates() -> dict[str, float]:
    """Return what all devices together do at best: flops of large matrix products, exponentials, bytes copied, a second."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))

    def best(body: Callable[[Any], Any], shape: tuple[int, ...], loops: int, amount: float) -> float:
        def on_device(x: Any) -> Any:
            return jax.lax.fori_loop(0, loops, lambda _, x: body(x), x)

        spec = PartitionSpec("devices")
        run = jax.jit(jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
        x = jnp.full((jax.device_count() * shape[0], *shape[1:]), 1e-3, jnp.float32)
        jax.block_until_ready(run(x))
        times = []
        for _ in range(5):
            began = time.perf_counter()
            jax.block_until_ready(run(x))
            times.append(time.perf_counter() - began)
        return jax.device_count() * loops * amount / min(times)

    side, small, large = 512, 2**14, 2**24
    return {
        "flops": best(lambda x: x @ x * 1e-3, (side, side), 50, 2.0 * side**3),
        "exponentials": best(lambda x: jnp.exp(x * 1e-3), (small,), 2000, small),
        "bytes": best(lambda x: x + 1.0, (large,), 10, 8.0 * large),
    }


def floor(counted: dict[str, float], rates: dict[str, float]) -> dict[str, float]:
    """Return the model-steps per second at which nothing but the counted work is left, by what would then be the limit."""
    arithmetic = counted["flops"] / rates["flops"] + counted["exponentials"] / rates["exponentials"]
    return {"arithmetic": 1 / arithmetic, "memory": rates["bytes"] / counted["bytes"]}


def draw(rows: Sequence[dict[str, Any]], torch_rate: dict[str, float] | None, least: float) -> Any:
    """Draw throughput over the number of models, log-log, with its spread."""
    from tiejax.reporting import figures

    figure, axes = figures.new_figure(1, 1, 6.0, 4.0)
    one = axes[0, 0]
    for colour, engine in ((figures.ORANGE, "fast"), (figures.BLUE, "plain")):
        own = [row for row in rows if row["engine"] == engine]
        if own:
            middle = np.array([row["median"] for row in own])
            bars = np.abs([[row["median"] - row["min"], row["max"] - row["median"]] for row in own]).T
            one.errorbar([row["models"] for row in own], middle, yerr=bars, color=colour, marker="o", capsize=3, label=engine)
    if torch_rate:
        one.axhline(torch_rate["median"], color=figures.GREEN, label="torch, one model")
    one.axhline(least, color="black", linestyle="--", linewidth=1, label="floor of the fast engine")
    one.set_xscale("log", base=2)
    one.set_yscale("log")
    one.set_xlabel("models in one ensemble")
    one.set_ylabel("model-steps per second")
    one.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    one.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.12))
    return figure


def bench_exor(argv: Sequence[str]) -> int:
    """Measure everything, print one table, write results.json and one figure; return the exit status."""
    config, switches = command_line.parse(Config, COMMAND, argv)
    config.check()
    out = Path(config.out)
    RunDirectory.probe(out)
    console = Console(switches["quiet"])
    environment.one_device_a_core()
    import jax

    jax.config.update("jax_default_matmul_precision", "highest")
    from tiejax.reporting import figures

    torch_rate = None
    if importlib.util.find_spec("torch"):
        loop = torch_loop(config)
        torch_rate = spread([loop(config.torch_seconds) for _ in range(config.repeats)])
        console.say(f"torch, one model: {torch_rate['median']:,.0f} steps per second")
    else:
        console.say("torch is not installed: its loop is left out")
    rates, counted = device_rates(), work(config.size)
    floors = floor(counted, rates)
    least = min(floors.values())
    rows = []
    for engine in config.engines:
        for seeds in config.seeds:
            row = measure_ensemble(config, engine, seeds)
            row["over_torch"] = row["median"] / torch_rate["median"] if torch_rate else None
            row["of_floor"] = row["median"] / least
            rows.append(row)
            console.say(
                f"{engine:>5}  {seeds:4} seeds  {row['models']:4} models  {row['median']:9,.0f} model-steps/s  "
                f"({row['min']:,.0f} to {row['max']:,.0f})  compiled in {row['compile_s']:.1f} s  "
                f"{number(row['over_torch'])} x torch  {row['of_floor']:.1%} of the floor"
            )
    share = recording_share(config, config.engines[0], 32)
    console.say(
        f"recording at the default schedule takes {share['median']:.1%} of the time ({share['min']:.1%} to {share['max']:.1%}; "
        f"32 seeds, {config.engines[0]})"
    )
    console.say(
        f"floor: {counted['flops']:,.0f} flops, {counted['exponentials']:,.0f} exponentials and {counted['bytes']:,.0f} bytes "
        f"a model-step, against {rates['flops']:.3g} flops, {rates['exponentials']:.3g} exponentials and "
        f"{rates['bytes']:.3g} bytes a second: {floors['arithmetic']:,.0f} model-steps/s by arithmetic, "
        f"{floors['memory']:,.0f} by memory"
    )
    measured = {
        "torch": torch_rate,
        "rows": rows,
        "recording_share": share,
        "work_per_model_step": counted,
        "device_rates": rates,
        "floor": floors,
    }
    file = write(out, "exor", config, measured)
    figure = figures.save(draw(rows, torch_rate, least), out, "throughput")
    console.result(f"results: {file}, figure: {figure}")
    return 0


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """Throughput of the text experiment's training at the published size, in three forms.

    Args:
        corpus: text files or folders, as for text_mlm.py (default: the prose that CPython carries)
        tokenizer: vocab.txt, tokenizer.json or a name on the hub (default: WordPiece trained on the corpus)
        vocab_size: tokens of a trained vocabulary
        data_dir: where prepared text is kept (default: as for text_mlm.py)
        seeds: seeds, each trained tied and untied
        batch_size: sentences a step
        forms: published predicts everywhere and pads; masked predicts at the masked tokens; packed also fills its rows
        repeats: measurements of each form, at least 5
        seconds: length of one measurement, at least one step
        out: where results.json goes
    """

    corpus: list[str] = dataclasses.field(default_factory=list)
    tokenizer: str | None = None
    vocab_size: int = 30_522
    data_dir: str | None = None
    seeds: int = 2
    batch_size: int = 128
    forms: list[Literal["published", "masked", "packed"]] = dataclasses.field(
        default_factory=lambda: ["published", "masked", "packed"]
    )
    repeats: int = 5
    seconds: float = 4.0
    out: str = "runs/bench/text"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be measured."""
        if not self.forms:
            raise BadInput("--forms: published, masked, packed or some of them, got none")
        check_repeats(self.repeats)
        if not self.seconds > 0:
            raise BadInput(f"--seconds: must be above 0, got {self.seconds}")


TEXT_COMMAND = command_line.CommandLine(
    description="Measure how many real (unpadded) tokens a second the text experiment trains on: predicting everywhere with "
    "padded rows, as published, at the masked tokens only, and at these in packed rows.",
    example="Example: python experiments/bench.py text --corpus novels/ --tokenizer vocab.txt",
    switches={"quiet": "print nothing but the path of the results"},
)


def everywhere(config: text_mlm.Config, text: text_mlm.Text) -> Callable[..., Any]:
    """Return the published loss: logits at every place of every row, of which the masked ones are asked for."""
    import jax.numpy as jnp

    from tiejax import training
    from tiejax.pretraining.loss import predict_slots
    from tiejax.training.loss import cross_entropy

    model = text_mlm.build_model(config, text)

    def loss(params: Any, batch: Any, key: Any) -> Any:
        logits = model.apply({"params": params}, batch.tokens, None, batch.segments).reshape(batch.tokens.size, -1)
        target = jnp.zeros(batch.tokens.size, jnp.int32).at[batch.slot].max(batch.target)
        asked = jnp.zeros(batch.tokens.size).at[batch.slot].max(batch.weight)
        nats = jnp.sum(asked * cross_entropy(logits, target))
        number = training.total(jnp.sum(asked))
        return nats / number, {"loss": training.total(nats) / number}

    return loss


def text_work(config: text_mlm.Config, text: text_mlm.Text, plan: text_mlm.Plan, published: bool) -> float:
    """Return the flops of the matrix products of one model-step, forward and twice backward."""
    places = plan.rows * config.max_length
    layer = 2 * (4 * config.width**2 + 2 * config.width * config.feed_forward) + 4 * config.max_length * config.width
    asked = places if published else plan.slots * plan.mesh
    return 3.0 * (places * config.layers * layer + asked * 2 * text.twins.vocabulary * config.width)


def measure_text(config: TextConfig, form: str, console: Console) -> dict[str, Any]:
    """Return real tokens per second of all models together, memory, and the flops of a second."""
    import jax

    packing: Any = "packed" if form == "packed" else "padded"
    settings = text_mlm.Config(
        corpus=config.corpus,
        tokenizer=config.tokenizer,
        vocab_size=config.vocab_size,
        data_dir=config.data_dir,
        seeds=config.seeds,
        batch_size=config.batch_size,
        steps=ENDLESS,
        record_every=ENDLESS,
        validate_every=ENDLESS,
        validation_batches=1,
        packing=packing,
    ).resolved()
    text, plan = text_mlm.prepare(settings, console)
    jax.config.update("jax_default_matmul_precision", "highest")
    lengths = np.diff(text.train.offsets)
    batches = np.random.default_rng(0).permutation(len(lengths))[: len(lengths) // config.batch_size * config.batch_size]
    ensemble = text_mlm.build_ensemble(settings, text, plan)
    if form == "published":
        ensemble = dataclasses.replace(ensemble, loss=everywhere(settings, text))
    # Only training is measured, and only its memory.
    ensemble = dataclasses.replace(ensemble, recorders={"none": _nothing_recorded()})
    members = ensemble.start(settings.seed_list)
    began = time.perf_counter()
    runner = ensemble.compile(settings.seed_list, members)
    compile_s = time.perf_counter() - began
    memory = runner.executable.memory_analysis()
    placed = runner.to_devices(members)
    del members

    def run(steps: int) -> tuple[float, float]:
        """Return the seconds of so many steps, and those in which the devices worked."""
        nonlocal placed
        began, worked = time.perf_counter(), 0.0
        end = int(placed.cursor) + steps
        while (cursor := int(placed.cursor)) < end:
            placed, _, seconds = runner.advance(placed, min(end, ensemble.longest_chunk(cursor)))
            worked += seconds
        return time.perf_counter() - began, worked

    run(1)
    steps = max(1, round(config.seconds / run(1)[0]))
    models = 2 * config.seeds
    times = [run(steps) for _ in range(config.repeats)]
    flops = text_work(settings, text, plan, form == "published")
    rates = [models * steps * plan.tokens / seconds for seconds, _ in times]
    bytes_of_one = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    return {
        "form": form,
        "models": models,
        "rows": plan.rows,
        "tokens_per_step": plan.tokens,
        "padding": plan.padding,
        "row_length": settings.max_length,
        "longest_of_batch": float(lengths[batches].reshape(-1, config.batch_size).max(1).mean()),
        "slots": plan.slots * plan.mesh,
        "compile_s": compile_s,
        "bytes": bytes_of_one * jax.device_count(),
        "idle_share": 1 - sum(worked for _, worked in times) / sum(seconds for seconds, _ in times),
        "flops_per_model_step": flops,
        "flops_per_s": float(np.median([models * steps * flops / seconds for seconds, _ in times])),
        **spread(rates),
    }


def _nothing_recorded() -> Any:
    import jax.numpy as jnp

    from tiejax import training

    return training.Recorder(ENDLESS, lambda params, batch, seed_key, step: {"step_seen": jnp.asarray(step)})


def bench_text(argv: Sequence[str]) -> int:
    """Measure every form, print one table, write results.json; return the exit status."""
    config, switches = command_line.parse(TextConfig, TEXT_COMMAND, argv)
    config.check()
    out = Path(config.out)
    RunDirectory.probe(out)
    console = Console(switches["quiet"])
    # Before jax is imported, as the experiment does where its seeds can be dealt out evenly.
    if config.seeds % environment.cores() == 0:
        environment.one_device_a_core()
    rows: list[dict[str, Any]] = []
    rates: dict[str, float] = {}
    for form in config.forms:
        row = measure_text(config, form, console)
        rows.append(row)
        rates = rates or device_rates()
        row["of_rate"] = row["flops_per_s"] / rates["flops"]
        row["over_first"] = row["median"] / rows[0]["median"]
        console.say(
            f"{form:>9}  {row['median']:8,.0f} tokens/s ({row['min']:,.0f} to {row['max']:,.0f})  "
            f"{row['over_first']:.1f} x {rows[0]['form']}  {row['padding']:.1%} padding  "
            f"{row['bytes'] / 2**30:.2f} GiB  {row['of_rate']:.0%} of the rate of matrix products  idle {row['idle_share']:.1%}"
        )
    import jax

    console.say(
        f"memory by the compiler's count; matrix products at {rates['flops'] / 1e9:,.0f} GFLOP/s; {rows[0]['models']} models "
        f"on {jax.device_count()} devices; a batch is {rows[0]['longest_of_batch']:.0f} tokens long on average, a padded row "
        f"{rows[0]['row_length']}"
    )
    console.result(f"results: {write(out, 'text', config, {'rows': rows, 'device_rates': rates})}")
    return 0


@dataclasses.dataclass(frozen=True)
class LayersConfig:
    """Time of a training step with tied layers against untied ones, and of a change of ties.

    Args:
        layers: stack_sizes of the models
        share: of so many layers one is distinct in the tied models (sequence)
        width: width of embeddings and hidden states; one head for each 32 of it
        vocab_size: number of tokens
        context: tokens of a block
        batch_size: blocks a step
        repeats: measurements of each form, at least 5; one after the other, form after form
        seconds: length of one measurement, at least one step
        out: where results.json goes
    """

    layers: list[int] = dataclasses.field(default_factory=lambda: [12, 48])
    share: int = 6
    width: int = 128
    vocab_size: int = 4096
    context: int = 128
    batch_size: int = 8
    repeats: int = 7
    seconds: float = 2.0
    out: str = "runs/bench/layers"

    def check(self) -> None:
        """Raise BadInput, naming the option, if this cannot be measured."""
        if not self.layers or min(self.layers) < 2:
            raise BadInput(f"--layers: needs stack_sizes of at least 2, got {self.layers}")
        if self.width % 32:
            raise BadInput(f"--width: must be a multiple of 32, got {self.width}")
        checks.check_counts(self, ("share", "width", "vocab_size", "batch_size"))
        check_repeats(self.repeats)
        if self.context < 2:
            raise BadInput(f"--context: must be at least 2, got {self.context}")
        if not self.seconds > 0:
            raise BadInput(f"--seconds: must be above 0, got {self.seconds}")


LAYERS_COMMAND = command_line.CommandLine(
    description="Measure the time of a training step of the layer-tying experiment, and its bytes, for layers untied in a scan "
    "without owners, untied under owners, and tied, in compact and in full storage; and the time of a change of ties.",
    example="Example: python experiments/bench.py layers --layers [12] --width 256",
    switches={"quiet": "print nothing but the path of the results"},
)


def without_owners(config: layer_tying.Config) -> Callable[..., Any]:
    """Return the experiment's loss as it is written by hand without ties: a scan over the stack itself."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    from tiejax import training
    from tiejax.models.initializers import layer_norm
    from tiejax.models.transformer import EncoderLayer
    from tiejax.training.layered import stack_of

    assert config.feed_forward is not None
    sizes = config.width, config.heads, config.feed_forward, config.activation, 0.0
    layer = EncoderLayer(*sizes, norm_first=True, causal=True, hidden_dropout=False)

    def loss(params: Any, batch: layer_tying.Batch, key: Any, reads: Any, sends: Any) -> Any:
        tokens = batch.tokens.astype(jnp.int32)
        x = params["embed"]["embedding"][tokens] + params["positions"]["embedding"]
        body = jax.checkpoint(lambda x, weights: (layer.apply({"params": weights}, x), None))
        x, _ = jax.lax.scan(body, x, stack_of(params))
        norm: nn.Module = layer_norm("final_norm")
        states = jnp.asarray(norm.apply({"params": params["encoder"]["final_norm"]}, x))[:, :-1].reshape(-1, config.width)
        target = tokens[:, 1:].reshape(-1)
        total, _ = predict_slots(states, params["head"]["embedding"], target, jnp.ones(len(target)))
        return total / len(target)

    return loss


def measure_layers(config: LayersConfig, layers: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return time and bytes of a step for each form, and the times of changes of ties in seconds."""
    import jax

    from tiejax import tying

    def settings(storage: Any) -> layer_tying.Config:
        return layer_tying.Config(
            layers=layers,
            storage=storage,
            vocab_size=config.vocab_size,
            width=config.width,
            heads=config.width // 32,
            context=config.context,
            batch_size=config.batch_size,
        ).resolved()

    device, rng = jax.devices()[0], np.random.default_rng(0)
    tokens = rng.integers(0, config.vocab_size, (config.batch_size, config.context)).astype(np.uint16)
    batch = layer_tying.Batch(tokens, np.ones(config.batch_size, np.float32), jax.random.key(0))
    few = max(1, layers // config.share)
    own, tied = tying.independent(layers), tying.static_map("sequence", layers, few)
    compact, full = (layer_tying.build(settings(storage), config.vocab_size, 0, device) for storage in ("compact", "full"))
    plain = layer_tying.build(settings("compact"), config.vocab_size, 0, device, without_owners(settings("compact")))
    forms = {
        "untied, no owners": (plain, own, "compact"),
        "untied": (compact, own, "compact"),
        f"{few} distinct, compact": (compact, tied, "compact"),
        f"{few} distinct, full": (full, tied, "full"),
    }

    def uses_of(owner: Any, storage: Any) -> Any:
        return tying.wiring(tying.LayerTies(owner, np.ones(layers, bool), owner), storage, "all", "resolved")

    states = {name: layered.start(jax.random.key(0), owner) for name, (layered, owner, _) in forms.items()}

    def seconds_of(name: str, steps: int) -> float:
        layered, owner, storage = forms[name]
        wiring = uses_of(owner, storage)
        began = time.perf_counter()
        for step in range(steps):
            states[name], _ = layered.step(states[name], batch, jax.random.key(step), wiring)
        jax.block_until_ready(states[name])
        return (time.perf_counter() - began) / steps

    for name in forms:
        seconds_of(name, 1)
    steps = {name: max(1, round(config.seconds / seconds_of(name, 1))) for name in forms}
    measured: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(config.repeats):
        for name in forms:
            measured[name].append(seconds_of(name, steps[name]))
    rows = []
    for name, (layered, owner, storage) in forms.items():
        size = layered.sizes[layers if storage == "full" else len(np.unique(owner))]
        over = float(np.median([one / base for one, base in zip(measured[name], measured["untied"], strict=True)]))
        rows.append({"layers": layers, "form": name, **spread(measured[name]), "over_untied": over, **size._asdict()})

    # Ties change to another pattern of the same stack_size and to a neighbour's, both visited before.
    one_more = tied.copy()
    one_more[-1 if tied[-1] != layers - 1 else -2] = layers - 1 if tied[-1] != layers - 1 else layers - 2
    name = f"{few} distinct, compact"

    def change(before: Any, after: Any) -> float:
        began = time.perf_counter()
        states[name] = compact.move(states[name], tying.move(before, after, "compact"))
        jax.block_until_ready(states[name])
        seconds = time.perf_counter() - began
        states[name], _ = compact.step(states[name], batch, jax.random.key(0), uses_of(after, "compact"))
        jax.block_until_ready(states[name])
        return seconds

    before = compact.compile_s
    change(tied, one_more)
    first_visit = compact.compile_s - before
    change(one_more, tied)
    visited = compact.compilations
    times = [change(*pair) for _ in range(config.repeats) for pair in ((tied, one_more), (one_more, tied))]
    return rows, {
        "layers": layers,
        "first_visit_compile_s": first_visit,
        "compilations_later": compact.compilations - visited,
        **spread(times),
    }


def bench_layers(argv: Sequence[str]) -> int:
    """Measure every stack_size, print one table, write results.json; return the exit status."""
    config, switches = command_line.parse(LayersConfig, LAYERS_COMMAND, argv)
    config.check()
    out = Path(config.out)
    RunDirectory.probe(out)
    console = Console(switches["quiet"])
    rows: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    for layers in config.layers:
        more, change = measure_layers(config, layers)
        for row in more:
            console.say(
                f"{layers:>3} layers, {row['form']:<22} {1000 * row['median']:8.1f} ms a step ({1000 * row['min']:.1f} to "
                f"{1000 * row['max']:.1f})  {row['over_untied']:.3f} x untied  {row['parameter_bytes'] / 2**20:.1f} + "
                f"{row['gradient_bytes'] / 2**20:.1f} + {row['optimizer_bytes'] / 2**20:.1f} MiB, peak "
                f"{row['peak_bytes'] / 2**20:.0f} MiB"
            )
        console.say(
            f"{layers:>3} layers, a change of ties     {1000 * change['median']:8.1f} ms ({1000 * change['min']:.1f} to "
            f"{1000 * change['max']:.1f}), {change['compilations_later']} compilations; the first visit of a stack_size compiles "
            f"for {change['first_visit_compile_s']:.1f} s"
        )
        rows += more
        changes.append(change)
    console.say(
        "bytes: parameters + gradients + optimizer state; peak: a step's arguments, results and temporaries as compiled"
    )
    console.result(f"results: {write(out, 'layers', config, {'rows': rows, 'changes': changes})}")
    return 0


BENCHMARKS = {"exor": bench_exor, "text": bench_text, "layers": bench_layers}


def main(argv: Sequence[str]) -> int:
    """Run the benchmark that the first word names."""
    if argv and argv[0] in BENCHMARKS:
        return BENCHMARKS[argv[0]](argv[1:])
    if any(word in ("-h", "--help") for word in argv):
        command_line.parse(Config, COMMAND, ["--help"])
    raise BadInput(f"name a benchmark first: {', '.join(BENCHMARKS)}, as in `bench.py exor`; got {argv[0] if argv else 'none'}")


if __name__ == "__main__":
    command_line.run_main(main)
