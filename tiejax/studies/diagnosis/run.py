"""The diagnosis of a run of ours: every instrument on its members."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tiejax import training
from tiejax.geometry.alignment import alignment, canonical_correlations, neighbour_overlap
from tiejax.geometry.equivalence import equivalence
from tiejax.geometry.uses import over_training
from tiejax.runs.console import Console
from tiejax.runs.run_directory import CONFIG, KIND, RunDirectory
from tiejax.settings import command_line
from tiejax.settings.command_line import BadInput
from tiejax.statistics.arms import ARMS
from tiejax.studies.exor import ensemble as exor_ensemble
from tiejax.studies.exor import settings as exor
from tiejax.studies.exor import task as task_data
from tiejax.studies.text_mlm import ensemble as text_ensemble
from tiejax.studies.text_mlm import settings as text_mlm
from tiejax.studies.text_mlm.text import pairs_of, prepare
from tiejax.studies.untying import ensemble as untying_ensemble
from tiejax.studies.untying import settings as untying
from tiejax.training import Ensemble

NEIGHBOURS = 10


# On text a member costs seconds: fewer of all.
SENTENCES, LONGEST = 600, 48  # of the validation split, and tokens of one


PAIRS, SEEDS = 8, 3  # of each set of pairs


CONTEXTS = 2_000  # of the many that a model which sees the order tells apart


TABLES = ("embed", "head")


INDEPENDENT = ("untied", "never-tied-independent")


class Contexts(NamedTuple):
    """What models are asked. tokens `[contexts, length]`, position of the asked one; pairs by the names of their sets.

    log_ratios: of some pairs, the true ln[p(s1 | rho) / p(s2 | rho)], NaN where a context does not ask for them.
    """

    tokens: np.ndarray
    position: np.ndarray
    weight: np.ndarray | None
    pairs: dict[str, list[tuple[int, int]]]
    log_ratios: dict[tuple[int, int], np.ndarray]


class Run(NamedTuple):
    """A run of ours, opened again. params: every member's, `[seed, arm, ...]`. encode: (params, tokens, position) -> h."""

    kind: str
    settings: Any
    seeds: list[int]
    arms: list[str]
    step: int
    params: Any
    records: Mapping[str, Mapping[str, np.ndarray]]
    encode: Callable[[Any, Any, Any], Any]
    contexts: Contexts


# The studies whose runs can be diagnosed: where their settings are, and how a run is opened again.
STUDIES = {"exor": exor.STUDY, "untying": untying.STUDY, "text_mlm": text_mlm.STUDY}


def is_run(folder: Path) -> bool:
    """Say whether a folder is a run directory of ours."""
    return (folder / KIND).is_file() or ((folder / CONFIG).is_file() and (folder / "checkpoints").is_dir())


def open_run(folder: Path, console: Console) -> Run:
    """Return a run with the members of its last checkpoint; raises BadInput."""
    name = RunDirectory.study(folder)
    if name not in STUDIES:
        raise BadInput(f"{folder}: is a run of {name}; {', '.join(STUDIES)} can be diagnosed")
    study = STUDIES[name]
    try:
        given, _ = command_line.parse(study.settings, study.command, [], base=folder / CONFIG)
        settings = given.resolved()
    except BadInput as error:
        raise BadInput(f"{folder / CONFIG}: is not the configuration of a run ({error})") from None
    return _on_text(settings, folder, console) if name == "text_mlm" else _on_exor(name, settings, folder, console)


def _restored(ensemble: "Ensemble", seeds: Sequence[int], folder: Path, console: "Console") -> tuple[int, Any, Any]:
    """Return step, parameters and records of a run's last checkpoint; raises BadInput."""

    like = jax.eval_shape(lambda: ensemble.start(seeds))
    checkpoints = training.Checkpoints(folder / "checkpoints", ensemble.ties, console.warn)
    try:
        found = checkpoints.restore(like)
    except training.CheckpointMismatch as error:
        raise BadInput(f"{folder}: {error}") from None
    finally:
        checkpoints.close()
    if found is None:
        raise BadInput(f"{folder}: has no checkpoint; let the run train first")
    step, members, records = found
    return min(step, ensemble.steps), members.state.params, records


def _on_exor(name: str, settings: Any, folder: Path, console: Console) -> Run:
    if settings.doses is not None:
        raise BadInput(f"{folder}: a run of many doses has many tasks; diagnose one of a single distribution")
    build: Callable[[Any], Ensemble] = exor_ensemble.build_ensemble
    arms = list(ARMS)
    if name == "untying":
        build, arms = untying_ensemble.build_ensemble, settings.arms.names
    model, seeds = exor_ensemble.build_model(settings), settings.seed_list
    step, params, records = _restored(build(settings), seeds, folder, console)

    def encode(params: Any, tokens: Any, position: Any) -> Any:
        return model.apply({"params": params}, tokens, position, method="encode")

    contexts = exor_contexts(settings.tasks[0], settings.ordered)
    return Run(name, settings, seeds, arms, step, params, records, encode, contexts)


def exor_contexts(task: task_data.EXor, ordered: bool) -> Contexts:
    """Return the exact contexts of a task with their probabilities over all strings; a sample of them if there are many."""
    known = task_data.contexts(task, ordered)
    sizes = np.array([len(rows) for rows in task_data.split(task.bits).values()])
    weight = sizes @ np.nan_to_num(known.weight)
    pairs = {f"{bit} pair": [symbols] for bit, (symbols, _) in task_data.asking_pairs(task, known).items()}
    pairs["even and odd"] = [(task.even, task.odd)]
    pairs["a 0 and a 1"] = [(task.used["zero"][0], task.used["one"][0])]
    ratios = {}
    with np.errstate(divide="ignore", invalid="ignore"):
        for first, second in (pair for of_set in pairs.values() for pair in of_set):
            ratios[first, second] = np.log(known.target[:, first]) - np.log(known.target[:, second])
    chosen = np.arange(len(weight))
    if len(weight) > CONTEXTS:
        chosen = np.sort(np.random.default_rng(0).choice(len(weight), CONTEXTS, replace=False))
    ratios = {pair: values[chosen] for pair, values in ratios.items()}
    return Contexts(known.tokens[chosen], known.position[chosen], weight[chosen], pairs, ratios)


def _on_text(settings: Any, folder: Path, console: Console) -> Run:
    text, planned = prepare(dataclasses.replace(settings, out=str(folder)), console, resume=True)
    arms = text_ensemble.arms_of(settings, planned)
    ensemble = text_ensemble.build_ensemble(settings, text, planned)
    step, params, records = _restored(ensemble, settings.seed_list, folder, console)
    model = text_ensemble.build_model(settings, text)

    def encode(params: Any, tokens: Any, position: Any) -> Any:
        segments = (tokens != text.vocabulary.pad).astype(jnp.int32)
        states = model.apply({"params": params}, tokens, None, segments, method="encode")
        return states[jnp.arange(len(tokens)), position].astype(jnp.float32)

    names = list(ARMS) if arms is None else arms.names
    contexts = text_contexts(text, min(settings.max_length, LONGEST))
    return Run("text_mlm", settings, settings.seed_list[:SEEDS], names, step, params, records, encode, contexts)


def text_contexts(text: Any, length: int) -> Contexts:
    """Return contexts of validation sentences, one a sentence: twins planted, one ordinary token masked.

    Every second one asks for a word with a twin, where the sentence has one, so that pairs are asked for.
    """
    rng, twins = np.random.default_rng(0), text.twins
    offsets = text.validation.offsets
    of_word = {own: (twins.size + place, twins.probability[place]) for place, own in enumerate(twins.ids)}
    tokens, position = [], []
    lengths = np.diff(offsets)
    for number in np.flatnonzero(lengths <= length)[:SENTENCES].tolist():
        sentence = np.asarray(text.validation.ids[offsets[number] : offsets[number + 1]], np.int32)
        twin = [of_word.get(token, (token, 0.0)) for token in sentence.tolist()]
        planted = [other if rng.random() < share else own for own, (other, share) in zip(sentence.tolist(), twin, strict=True)]
        ordinary = [place for place, token in enumerate(sentence.tolist()) if token not in text.vocabulary.special]
        with_twin = [place for place in ordinary if int(sentence[place]) in of_word]
        if not ordinary:
            continue
        asked = int(rng.choice(with_twin if with_twin and number % 2 else ordinary))
        row = np.full(length, text.vocabulary.pad, np.int32)
        row[: len(planted)] = planted
        row[asked] = text.vocabulary.mask
        tokens.append(row)
        position.append(asked)
    found, facts = pairs_of(text)
    pairs = {
        str(name): [found[place] for place in np.flatnonzero(facts["pair_set"] == number)[:PAIRS]]
        for number, name in enumerate(facts["set_names"])
    }
    ratios = {}
    for own, (twin, probability) in of_word.items():
        ratios[own, twin] = np.full(len(tokens), np.log((1 - probability) / probability))
    return Contexts(np.array(tokens), np.array(position), None, {name: of for name, of in pairs.items() if of}, ratios)


def diagnose(run: Run, tell: Callable[[str, int, int | None], None]) -> dict[str, Any]:
    """Return what results.json says: alignments, equivalences and uses, by arm over seeds."""

    def logs(params: Any, tokens: Any, position: Any) -> Any:
        return jax.nn.log_softmax(run.encode(params, tokens, position) @ params["head"]["embedding"].T)

    predict, encode = jax.jit(logs), jax.jit(run.encode)
    asked, done = run.contexts, 0
    pairs = [pair for of_set in asked.pairs.values() for pair in of_set]
    alignments: dict[str, list[dict[str, Any]]] = {}
    equivalences: dict[str, list[list[dict[str, Any]]]] = {}
    for arm, name in enumerate(run.arms):
        for seed in range(len(run.seeds)):
            params = jax.tree.map(lambda leaf, seed=seed, arm=arm: leaf[seed, arm], run.params)
            alignments.setdefault(name, []).append(_aligned(run, seed, arm))
            states = _in_blocks(lambda *block, params=params: encode(params, *block), asked.tokens, asked.position)
            rows = equivalence(
                lambda *block, params=params: predict(params, *map(jnp.asarray, block)),
                asked.tokens,
                asked.position,
                pairs,
                weight=asked.weight,
                states=states,
                table=np.asarray(params["head"]["embedding"], float),
                log_ratios=asked.log_ratios,
            )
            equivalences.setdefault(name, []).append(rows)
            done += 1
            tell("members", done, len(run.arms) * len(run.seeds))
    record = run.records["record"]
    uses = []
    if "use_ratio" in record:
        ratio, cosine = (np.moveaxis(record[f"use_{name}"], (2, 1, 0), (0, 1, 2)) for name in ("ratio", "cosine"))
        uses = over_training(record["step"], ratio, cosine, run.arms)
    return {
        "kind": run.kind,
        "seeds": run.seeds,
        "step": run.step,
        "arms": run.arms,
        "contexts": len(asked.tokens),
        "alignment": alignments,
        "equivalence": {name: _by_set(asked.pairs, rows) for name, rows in equivalences.items()},
        "uses": uses,
    }


def _in_blocks(function: Callable[..., Any], *columns: np.ndarray, block: int = 256) -> np.ndarray:
    """Apply a function to rows, always as many at a time so that it compiles once."""
    parts = []
    for start in range(0, len(columns[0]), block):
        rows = np.minimum(np.arange(start, start + block), len(columns[0]) - 1)
        parts.append(np.asarray(function(*(column[rows] for column in columns)))[: len(columns[0]) - start])
    return np.concatenate(parts)


def _aligned(run: Run, seed: int, arm: int) -> dict[str, Any]:
    """Return how a member's two tables relate; if they are one, how it relates to those of the untied member of its seed."""

    def table(part: str, of_variant: int) -> np.ndarray:
        return np.asarray(run.params[part]["embedding"][seed, of_variant], np.float32)

    def related(first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
        found = alignment(first, second)
        k = min(NEIGHBOURS, max(1, (len(first) - 1) // 3))
        return {
            **{name: getattr(found, name) for name in ("identity", "procrustes", "least_squares")},
            "neighbours": neighbour_overlap(first, second, k=k).estimate,
            "canonical": float(canonical_correlations(first, second).mean()),
        }

    own = table("embed", arm), table("head", arm)
    tied = own[0].tobytes() == own[1].tobytes()
    other = next((number for number, name in enumerate(run.arms) if name in INDEPENDENT), None)
    if not tied:
        return {"tied": False, "input -> output": related(*own)}
    if other is None:
        return {"tied": True}
    return {
        "tied": True,
        "untied input -> tied": related(table("embed", other), own[0]),
        "untied output -> tied": related(table("head", other), own[0]),
    }


def _by_set(pairs: Mapping[str, Sequence[Any]], members: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return, for each set of pairs, medians over its pairs and all seeds, and how often each case of DH was found."""
    measures = ("semantic_distance", "conditional_distance", "log_ratio_mean", "score", "residual_rms", "condition_number")
    found, start = [], 0
    for name, of_set in pairs.items():
        rows = [row for member in members for row in member[start : start + len(of_set)]]
        start += len(of_set)
        entry: dict[str, Any] = {"set": name, "pairs": len(of_set)}
        for measure in measures:
            values = [row[measure] for row in rows if row.get(measure) is not None and np.isfinite(row[measure])]
            entry[measure] = float(np.median(values)) if values else None
        cases = [row["case"] for row in rows]
        entry["cases"] = {case: cases.count(case) for case in sorted(set(cases))}
        found.append(entry)
    return found
