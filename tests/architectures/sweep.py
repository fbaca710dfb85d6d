"""What `check` says of every architecture's checkpoints, as saved and damaged, against the installed transformers library.

A checkpoint is sound if the class, built from its config.json, finds every table that it writes itself, and if no further
table that it makes one differs. An answer is right, "cannot say", wrong (a sound checkpoint is said to disagree) or silent (one
that is not sound is said to agree).
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from architectures.rows import STATES, TEXT
from architectures.small_models import FLAG, Model, build, groups, save
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tiejax.checkpoints.check import check_folder

Tensors = dict[str, torch.Tensor]
Sharing = frozenset[tuple[str, ...]]  # the groups of names of a model that are one parameter
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
OUTCOMES = ("right", "cannot say", "wrong", "silent")


def outcomes(kind: type[PreTrainedModel], folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each damage and the outcome of `check`; nothing for a class without an output table."""
    models = {tied: build(kind, tied) for tied in (True, False)}
    if models[True].output is None:
        return
    saved: dict[bool, Tensors] = {}
    inputs: list[str] = []
    for tied, model in models.items():
        names = save(model, folder / str(tied))
        saved[tied] = load_file(folder / str(tied) / FILE)
        inputs, outputs = (names["output"], []) if tied else (inputs, names["output"])  # the tied model comes first
    writes = {_sharing(model): set(saved[tied]) for tied, model in models.items()}
    for tied in models:
        config = json.loads((folder / str(tied) / "config.json").read_text())
        for name, states in _states(config):
            changed = _with_states(config, states)
            now = _sharing(build(kind, tied, states=states))
            if now not in writes:
                continue
            sound = _sound(saved[tied], writes, now)
            yield f"flag {name}", _outcome(folder, changed, saved[tied], sound)
        own = _own_states(config)
        sharing = _sharing(build(kind, tied, states=own))
        for name, damage in _damages(inputs, outputs, tied):
            tensors = damage(saved[tied])
            yield name, _outcome(folder, config, tensors, _sound(tensors, writes, sharing))
        yield "sharded", _outcome(folder, config, saved[tied], _sound(saved[tied], writes, sharing), shards=2)


def _damages(inputs: list[str], output: list[str], tied: bool) -> Iterator[tuple[str, Callable[[Tensors], Tensors]]]:
    """Yield changes of tensors by name.

    inputs: names of the table that the head of a tied model reads. output: names of the head of an untied model.
    """
    yield "bfloat16", lambda tensors: {name: value.bfloat16() for name, value in tensors.items()}
    if tied:
        yield "head added, equal", lambda tensors: _with_head(tensors, inputs, output, 0.0)
        yield "head added, perturbed", lambda tensors: _with_head(tensors, inputs, output, 1e-3)
        return
    yield "head removed", lambda tensors: {name: value for name, value in tensors.items() if name not in output}
    yield "further tables removed", _without_further


def _with_head(tensors: Tensors, inputs: list[str], output: list[str], added: float) -> Tensors:
    """Return the tensors with a second table, the first with a number added, where the file of a tied model has none."""
    table = next((tensors[name] for name in inputs if name in tensors), None)
    return tensors if table is None else {name: torch.add(table, added) for name in output} | tensors


def _without_further(tensors: Tensors) -> Tensors:
    """Return the tensors without those that have the shape and the role of a further copy of the input table."""
    return {
        name: value
        for name, value in tensors.items()
        if not name.endswith(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"))
    }


def _sharing(model: Model) -> Sharing:
    return frozenset(map(tuple, groups(model)))


def _sound(tensors: Tensors, writes: dict[Sharing, set[str]], sharing: Sharing) -> bool:
    """Return whether a file has all tables that the class writes, and no other one that differs from them."""
    wanted = writes[sharing]
    further = [tensors[name] for name in tensors.keys() - wanted]
    own = [tensors[name] for name in tensors.keys() & wanted]
    return wanted <= tensors.keys() and all(any(torch.equal(value, other) for other in own) for value in further)


def _outcome(folder: Path, config: dict[str, Any], tensors: Tensors, sound: bool, shards: int = 1) -> str:
    out = folder / "damaged"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config))
    _write(out, {name: value.contiguous() for name, value in tensors.items()}, shards)
    answer = check_folder(out).answer
    if answer == "cannot say":
        return answer
    if (answer == "agrees") == sound:
        return "right"
    return "wrong" if sound else "silent"


def _write(folder: Path, tensors: Tensors, shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / FILE, {"format": "pt"})
        return
    listed = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        names = list(tensors)[shard::shards]
        save_file({name: tensors[name] for name in names}, folder / file, {"format": "pt"})
        listed |= dict.fromkeys(names, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": listed}))


def _own_states(config: dict[str, Any]) -> dict[str, bool | None]:
    inner = [TEXT] if isinstance(config.get(TEXT), dict) else []
    return {where: (config[where] if where else config).get(FLAG) for where in ["", *inner]}


def _states(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, bool | None]]]:
    """Yield states of the flag at the levels of a configuration, one of which differs from that of the file; and the file's."""
    own = _own_states(config)
    yield "as saved", own
    for where in own:
        for state in STATES:
            if state != own[where]:
                yield f"{where or 'top'} {'absent' if state is None else state}".lower(), own | {where: state}
    for state in (True, False):
        yield f"everywhere {state}".lower(), dict.fromkeys(own, state)


def _with_states(config: dict[str, Any], states: dict[str, bool | None]) -> dict[str, Any]:
    parts = {where: dict(config[where] if where else config) for where in states}
    for where, part in parts.items():
        part.pop(FLAG, None)
        part |= {} if states[where] is None else {FLAG: states[where]}
    return parts[""] | {where: part for where, part in parts.items() if where}
