"""Opening a run for its diagnosis: its settings, the members of its last checkpoint, and the probes for them.

Probes are contexts with one token to predict, and pairs of symbols whose roles are compared.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tiejax.lab.runs.checkpoints import restored, restored_parts
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.manifest import Manifest, damaged
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.diagnosis.settings import Settings, settings_of_run
from tiejax.lab.studies.exor import ensemble as exor_ensemble
from tiejax.lab.studies.exor.contexts import all_contexts, asking_pairs, over_all_strings
from tiejax.lab.studies.exor.task import EXor
from tiejax.lab.studies.text_mlm import ensemble as text_ensemble
from tiejax.lab.studies.text_mlm import text as text_mlm
from tiejax.lab.studies.text_mlm.text import Text, pairs_of
from tiejax.lab.studies.untying import study as untying
from tiejax.statistics.arms import ARMS

Pair = tuple[int, int]

MOST_CONTEXTS = 2_000  # sampled from those of an EXor model that sees the order of tokens

# Fewer probes and seeds on text, where a member takes seconds.
TEXT_SEEDS = 3
SENTENCES, LONGEST = 600, 48  # sentences of the validation split, and the most tokens in one
PAIRS = 8  # pairs per set


class Probes(NamedTuple):
    """Contexts and pairs of symbols.

    tokens: `[contexts, length]`. position: of the token to predict in each context. weight: of each context. pairs: by the
    name of their set. log_ratios: for some pairs, the true ln[p(s1 | rho) / p(s2 | rho)] in each context, NaN where neither
    symbol can occur.
    """

    tokens: np.ndarray
    position: np.ndarray
    weight: np.ndarray
    pairs: dict[str, list[Pair]]
    log_ratios: dict[Pair, np.ndarray]


class OpenRun(NamedTuple):
    """A run and the members of its last checkpoint.

    study: its name. params: of all members, `[seed, arm, ...]`. records: by recorder. encode: (params of a member, tokens,
    position) -> hidden states h `[contexts, width]`.
    """

    study: str
    settings: Any
    seeds: list[int]
    arms: list[str]
    step: int
    params: Any
    records: Mapping[str, Mapping[str, np.ndarray]]
    encode: Callable[[Any, Any, Any], Any]
    probes: Probes


def open_run(settings: Settings, console: Console) -> OpenRun:
    """Open the run to diagnose, with the members of its last checkpoint; raises BadInput."""
    for name in ("corpus", "input_table", "output_table", "tokenizer"):
        if getattr(settings, name) is not None:
            raise BadInput(f"--{name}: only applies to checkpoints in the hub's format, not to a run of tiejax")
    # Read once, since another process may start a new run in this directory meanwhile.
    manifest, run_settings = settings_of_run(settings.folder)
    if damage := damaged(settings.folder, manifest):
        console.warn(f"{settings.folder}: changed since the run wrote them: {', '.join(damage)}; using its checkpoint")
    if manifest.study == "text_mlm":
        return _on_text(manifest, run_settings, settings.folder, console)
    return _on_exor(manifest, run_settings, settings.folder, console)


def _on_exor(manifest: Manifest, settings: Any, folder: Path, console: Console) -> OpenRun:
    if settings.doses is not None:
        raise BadInput(f"{folder}: a run with several doses has several tasks; diagnose a run with a single distribution")
    if manifest.study == "untying":
        ensemble, arms = untying.build_ensemble(settings), settings.untie_arms.names
    else:
        ensemble, arms = exor_ensemble.build_ensemble(settings), list(ARMS)
    model = exor_ensemble.build_model(settings)
    seeds, step, params, records = restored_parts(manifest, ensemble, folder, console.warn)

    def encode(params: Any, tokens: Any, position: Any) -> Any:
        return model.apply({"params": params}, tokens, position, method="encode")

    probes = exor_probes(settings.tasks[0], settings.ordered)
    return OpenRun(manifest.study, settings, seeds, arms, step, params, records, encode, probes)


def _on_text(manifest: Manifest, settings: Any, folder: Path, console: Console) -> OpenRun:
    text, planned = text_mlm.prepare(dataclasses.replace(settings, out=str(folder)), console, resume=True)
    if text.facts["fingerprint"] != manifest.text:
        raise BadInput(f"{folder}: its corpus has changed since the run was trained")
    ensemble = text_ensemble.build_ensemble(settings, text, planned)
    step, params, records = restored(manifest, ensemble, settings.seed_list, folder, console.warn)
    model = text_ensemble.build_model(settings, text)

    def encode(params: Any, tokens: Any, position: Any) -> Any:
        segments = (tokens != text.vocabulary.pad).astype(jnp.int32)
        states = model.apply({"params": params}, tokens, None, segments, method="encode")
        return states[jnp.arange(len(tokens)), position].astype(jnp.float32)

    names = text_ensemble.names_of_arms(settings, planned)
    probes = text_probes(text, min(settings.max_length, LONGEST))
    return OpenRun("text_mlm", settings, settings.seed_list[:TEXT_SEEDS], names, step, params, records, encode, probes)


def exor_probes(task: EXor, ordered: bool) -> Probes:
    """Return the contexts of a task with their probabilities over all strings, or a sample of them if there are many."""
    contexts = all_contexts(task, ordered)
    weight = over_all_strings(task, contexts)
    pairs = {f"{bit} pair": [symbols] for bit, (symbols, _) in asking_pairs(task, contexts).items()}
    pairs["even and odd"] = [(task.even, task.odd)]
    pairs["a 0 and a 1"] = [(task.used["zero"][0], task.used["one"][0])]
    ratios = {}
    with np.errstate(divide="ignore", invalid="ignore"):
        for first, second in (pair for members in pairs.values() for pair in members):
            ratios[first, second] = np.log(contexts.target[:, first]) - np.log(contexts.target[:, second])
    chosen = np.arange(len(weight))
    if len(weight) > MOST_CONTEXTS:
        chosen = np.sort(np.random.default_rng(0).choice(len(weight), MOST_CONTEXTS, replace=False))
    ratios = {pair: values[chosen] for pair, values in ratios.items()}
    return Probes(contexts.tokens[chosen], contexts.position[chosen], weight[chosen], pairs, ratios)


def text_probes(text: Text, length: int) -> Probes:
    """Return one context per validation sentence, with planted twins and one ordinary token masked.

    In every second sentence the masked token is a word with a twin, if there is one, so that the pairs are tested.
    """
    rng, twins, offsets = np.random.default_rng(0), text.twins, text.validation.offsets
    # word -> its twin, and the twin's probability
    twin_of = {word: (twins.size + place, twins.probability[place]) for place, word in enumerate(twins.ids)}
    tokens, position = [], []
    for number in np.flatnonzero(np.diff(offsets) <= length)[:SENTENCES].tolist():
        sentence = np.asarray(text.validation.ids[offsets[number] : offsets[number + 1]], np.int32).tolist()
        # A random number is drawn for every token: one without a twin counts as its own, with probability 0.
        choices = [(word, twin_of.get(word, (word, 0.0))) for word in sentence]
        planted = [twin if rng.random() < share else word for word, (twin, share) in choices]
        ordinary = [place for place, token in enumerate(sentence) if token not in text.vocabulary.special]
        if not ordinary:
            continue
        with_twin = [place for place in ordinary if sentence[place] in twin_of]
        masked = int(rng.choice(with_twin if with_twin and number % 2 else ordinary))
        row = np.full(length, text.vocabulary.pad, np.int32)
        row[: len(planted)] = planted
        row[masked] = text.vocabulary.mask
        tokens.append(row)
        position.append(masked)
    ratios = {
        (word, twin): np.full(len(tokens), np.log((1 - probability) / probability))
        for word, (twin, probability) in twin_of.items()
    }
    return Probes(np.array(tokens), np.array(position), np.ones(len(tokens)), _text_pairs(text), ratios)


def _text_pairs(text: Text) -> dict[str, list[Pair]]:
    """Return the first pairs of each non-empty set, by the name of the set."""
    pairs, facts = pairs_of(text)
    by_set = {
        str(name): [pairs[place] for place in np.flatnonzero(facts["pair_set"] == number)[:PAIRS]]
        for number, name in enumerate(facts["set_names"])
    }
    return {name: members for name, members in by_set.items() if members}
