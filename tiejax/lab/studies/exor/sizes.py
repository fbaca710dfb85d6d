"""Closed-form estimates of the memory and disk space of an EXor run, without importing JAX."""

from typing import Any

from tiejax.lab.settings.sizes import FLOAT, MOMENTS, STATE, Need, outgrow_memory, records_of
from tiejax.lab.studies.exor.contexts import MAX_CONTEXTS, count_contexts
from tiejax.lab.studies.exor.task import SPLITS, train_size
from tiejax.models import counts

MOST_PER_CHUNK, BUFFER = 64, 2**28  # limits of a chunk: records, and bytes of the records of all members
MODELS = ("seeds", "hidden", "token_hidden", "channel_hidden", "feed_forward", "width", "layers")
RECORDS = ("seeds", "steps", "record_every", "exact_every")
FLAGS = {"state": MODELS, "records": RECORDS, "training": ("batch_size", *MODELS), "disk": (*RECORDS, "records_on")}


def parameters(settings: Any) -> int:
    """Return the number of parameters of one model, both tables included."""
    vocabulary = settings.tasks[0].vocabulary
    return int(vocabulary * (2 * settings.width + settings.output_bias)) + _encoder(settings)


def _encoder(settings: Any) -> int:
    layers, width = settings.layers, settings.width
    if settings.model == "transformer":
        return counts.transformer(layers, width, settings.feed_forward)
    if settings.model == "lstm":
        return counts.lstm(layers, width, settings.hidden, settings.bidirectional)
    return counts.mixer(layers, width, settings.tasks[0].length, settings.token_hidden, settings.channel_hidden)


def need(settings: Any) -> Need:
    """Return the memory and disk needs of a run with resolved settings.

    Variants train one after the other, so that the largest one determines the memory; their records stay on disk.
    """
    if settings.variants:
        needs = [need(variant) for variant in settings.by_variant.values()]
        return max(needs, key=lambda need: need.total)._replace(disk=sum(need.disk for need in needs))
    arms, by_use = len(settings.arm_policies), "split" in settings.arm_policies  # by use: moments of each use of a table
    task, seeds, of_model = settings.tasks[0], settings.number_of_seeds * len(settings.tasks), parameters(settings)
    members = arms * seeds
    state = members * (STATE * of_model + (MOMENTS * FLOAT * 2 * task.vocabulary * settings.width if by_use else 0))
    gradients = members * FLOAT * of_model
    # Assume that a device computes all its members at once, as accelerators do. The fast engine's multisets are negligible.
    places = seeds * (settings.batch_size or train_size(task.bits)) * task.length if settings.engine == "plain" else 0
    activations = arms * places * settings.layers * settings.width * FLOAT
    records, disk = members * record_bytes(settings), 0
    if settings.records_on == "disk" or (settings.records_on == "auto" and outgrow_memory(records)):
        numbers = members * records_of(settings.steps, settings.record_every)
        # The records, their copy in metrics.npz, the joint records of several looks, and temporarily a copy of the largest
        # array; later the trajectories, of all seeds and of the seeds that solved the task.
        largest = numbers * FLOAT * _pairs(task)
        disk = (2 + (len(settings.looks) > 1)) * records + max(largest, 2 * members * bytes_at_the_end(settings))
        # A distance and its logarithm, in float64.
        records = numbers * 2 * 2 * FLOAT
    return Need(state, records, 0, gradients + activations, disk)


def bytes_of_layers(settings: Any) -> int:
    """Return the bytes of a member's activations that should fit in the cache: a state per token and layer; gates for LSTMs."""
    task = settings.tasks[0]
    sequences, places = settings.batch_size or train_size(task.bits), task.length
    if settings.engine != "plain":
        sequences, places = min(sequences, count_contexts(task, ordered=False)), task.vocabulary
    width = settings.width
    if settings.model == "lstm":
        width = (2 if settings.bidirectional else 1) * 4 * settings.hidden
    return int(sequences * places * settings.layers * width * FLOAT)


def bytes_at_the_end(settings: Any) -> int:
    """Return the bytes of one member's trajectories, computed at the end of a run in float64.

    For each record: distances and relative distances of up to three groups of pairs in both tables, and exact risks.
    """
    groups = 1 + sum(len(symbols) > 1 for symbols in settings.tasks[0].used.values())
    often = records_of(settings.steps, settings.record_every) * 2 * 2 * groups * 2 * FLOAT
    return often + 2 * _exact_bytes(settings)


def record_bytes(settings: Any) -> int:
    """Return the bytes of all records of one member."""
    return records_of(settings.steps, settings.record_every) * bytes_of_record(settings) + _exact_bytes(settings)


def _exact_bytes(settings: Any) -> int:
    if count_contexts(settings.tasks[0], settings.ordered) > MAX_CONTEXTS:
        return 0
    return records_of(settings.steps, settings.exact_every) * bytes_of_exact_record(settings)


def records_per_chunk(settings: Any) -> int:
    """Return the number of records per chunk: as many as fit in `BUFFER` bytes for all members, but at least two."""
    bytes_per_member = bytes_of_record(settings) + bytes_of_exact_record(settings)
    members = len(settings.arm_policies) * settings.number_of_seeds * len(settings.tasks)
    return int(max(2, min(MOST_PER_CHUNK, BUFFER // (members * bytes_per_member))))


def bytes_of_record(settings: Any) -> int:
    """Return the bytes of one record: distances of all pairs in both tables, losses and accuracies, gradients of each use."""
    task = settings.tasks[0]
    pairs = _pairs(task)
    visits = 2 + bool((2**task.bits - 1) // 10)  # the batch, resampled strings, and held-out strings if there are any
    uses = 4 * (1 + task.vocabulary)
    return FLOAT * (2 * pairs + 2 * visits + uses) + 1  # and the flag `finite`


def _pairs(task: Any) -> int:
    return int(task.vocabulary * (task.vocabulary - 1) // 2)


def bytes_of_exact_record(settings: Any) -> int:
    """Return the bytes of one record of exact risk: two numbers per split and one per pair of spellings."""
    pairs = sum(len(symbols) > 1 for symbols in settings.tasks[0].used.values())
    return FLOAT * (2 * len(SPLITS) + pairs)
