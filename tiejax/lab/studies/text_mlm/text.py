"""The text of a run: its sentences, twins, recorded pairs of words, frequency buckets and step plan."""

from typing import Any, NamedTuple

import jax
import numpy as np

from tiejax.lab.runs.console import Console
from tiejax.lab.runs.text import preparing
from tiejax.lab.settings import checks
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.settings.sizes import check_memory, check_places, check_steps
from tiejax.lab.studies.text_mlm import sizes
from tiejax.lab.studies.text_mlm.settings import Settings
from tiejax.pretraining.step_plan import StepPlan, devices_of_member, plan_steps
from tiejax.text import buckets, sentences
from tiejax.text import twins as planting
from tiejax.text.packing import rows_for
from tiejax.text.sequences import Sequences
from tiejax.text.tokenizer import Vocabulary

UNRELATED_PAIRS = 100  # as published


class Text(NamedTuple):
    """The training and validation sentences, their vocabulary, and the planted twins."""

    vocabulary: Vocabulary
    twins: planting.Twins
    train: Sequences
    validation: Sequences
    facts: dict[str, Any]
    tokenizer: bytes


def prepare(settings: Settings, console: Console, resume: bool = False) -> tuple[Text, StepPlan]:
    """Prepare the text of a run and plan its steps; raises BadInput.

    resume: use the vocabulary with which the run was started.
    """
    with preparing(settings, console, resume) as asked:
        prepared = sentences.prepare(
            **asked,
            max_length=settings.max_length,
            min_length=settings.min_length,
            rows_are_sentences=settings.rows_are_sentences,
        )
        vocabulary = prepared.vocabulary
        unknown = vocabulary.unknown if settings.missing_words == "as_unknown" else None
        twins, missing = planting.plant(settings.sets, vocabulary.size, vocabulary.id_of, unknown)
        train, validation = prepared.split("train"), prepared.split("validation")
    if missing:
        outcome = "given twins of the unknown token" if unknown is not None else "left out"
        console.warn(f"not in the vocabulary, so {outcome}: {', '.join(missing)}")
    facts = prepared.facts | {"fingerprint": prepared.fingerprint}
    text = Text(vocabulary, twins, train, validation, facts, prepared.tokenizer_file.read_bytes())
    planned = plan(settings, text, jax.device_count(), jax.local_device_count(), jax.default_backend())
    checks.check_untie_steps(settings.untie_at or [], planned.steps)
    decided = sizes.Decided(
        text.twins.vocabulary, len(pairs_of(text)[0]), len(buckets_of(text)[0]), planned.steps, planned.rows, planned.mesh
    )
    check_memory(settings, sizes.need(settings, decided), sizes.FLAGS, alone=jax.process_count() == 1)
    return text, planned


def plan(settings: Settings, text: Text, devices: int, local: int, platform: str) -> StepPlan:
    """Plan the steps on `devices` devices of `platform`, `local` of them in each process; raises BadInput."""
    lengths, length, packed = np.diff(text.train.offsets), settings.max_length, settings.packing == "packed"
    rows = rows_for(lengths, settings.batch_size, length) if packed else settings.batch_size
    check_places("batch_size", rows, length)
    try:
        mesh = devices_of_member(len(settings.seed_list), devices, local, settings.mesh, platform)
    except ValueError as error:
        raise BadInput(f"--{error}") from None
    planned = plan_steps(lengths, rows, length, packed, mesh, settings.steps, settings.epochs, settings.epochs_apart)
    check_steps("epochs", settings.epochs or 0, planned.steps)
    return planned


def pairs_of(text: Text) -> tuple[list[tuple[int, int]], dict[str, np.ndarray]]:
    """Return the pairs of ids with recorded distances, and the arrays that describe them in metrics.npz.

    The pairs are every word with its twin, set by set, then `UNRELATED_PAIRS` pairs of different words.
    """
    twins, unknown = text.twins, text.vocabulary.unknown
    pairs: list[tuple[tuple[int, int], str, int]] = []  # ids, words, and the number of the set
    # The unknown token is never a target, but its twin is: among targets, its twin has probability 1.
    as_target = [1.0 if token == unknown else p for token, p in zip(twins.ids, twins.probability, strict=True)]
    probabilities = sorted(set(as_target), key=lambda p: (p != 0.5, -p))
    for number, probability in enumerate(probabilities):
        for place in (place for place, p in enumerate(as_target) if p == probability):
            pairs.append(((twins.ids[place], twins.size + place), twins.words[place], number))
    # A word that is not in the vocabulary appears in these pairs as the unknown token, as published.
    for first, second in planting.unrelated(len(twins.ids), UNRELATED_PAIRS):
        words = f"{twins.words[first]}/{twins.words[second]}"
        pairs.append(((twins.ids[first], twins.ids[second]), words, len(probabilities)))
    names = ["twin of the unknown token" if p == 1 else f"twins {f'{p:g}'.removeprefix('0')}" for p in probabilities]
    return [ids for ids, _, _ in pairs], {
        "pair_words": np.array([words for _, words, _ in pairs]),
        "pair_set": np.array([number for _, _, number in pairs], dtype=int),
        "set_names": np.array([*names, "unrelated"]),
        "set_probability": np.array([*probabilities, np.nan]),
    }


def buckets_of(text: Text) -> tuple[list[str], np.ndarray]:
    """Return the token-frequency buckets of the training split: names, and the bucket of every id."""
    return buckets.buckets(np.bincount(text.train.ids, minlength=text.vocabulary.size), text.twins)
