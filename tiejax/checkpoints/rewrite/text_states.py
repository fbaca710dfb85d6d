"""Hidden states of a model on a text, before and after its tables are replaced by one, for families that tiejax can run."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from tiejax.checkpoints.hub.checkpoint import Checkpoint
from tiejax.checkpoints.hub.configurations import FAMILIES
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.tokens import Tokens, find_tokens
from tiejax.checkpoints.hub.weights import Loaded, load
from tiejax.checkpoints.rewrite.one_table import OneTable, blocks
from tiejax.checkpoints.rewrite.states import States
from tiejax.text import corpus
from tiejax.text.tokenizer import encoded, in_batches, in_parts, vocabulary

LENGTH = 128  # tokens per row, or the number of the model's positions if smaller
MASKED = 0.15  # share of masked tokens in a row; BERT, Devlin et al. 2019
LEAST_CAUSAL, LEAST_MASKED = 2, 3  # tokens per row: one and the next, or [CLS], one and [SEP]
TOGETHER = 8  # rows encoded at a time
NAME = Field("text")


class Task(NamedTuple):
    """A prediction task. places: positions in each row whose states are read. targets: the tokens to predict from them."""

    inputs: Int[np.ndarray, "rows length"]
    places: Int[np.ndarray, "rows predicted"]
    targets: Int[np.ndarray, "rows predicted"]


def states_on_text(checkpoint: Checkpoint, table: OneTable, text: str, number: int, seed: int) -> States:
    """Return the hidden states at the predicted positions of a text, with the model's input table and with `table` instead.

    number: minimum number of predicted positions, rounded up to whole rows. A causal model predicts every token of a row but
    the first; a masked one predicts 15 % of the tokens of a row, sampled with `seed` and replaced by the mask. Raises
    CheckpointError or CorpusError.
    """
    kind, runnable = checkpoint.config.get("model_type"), [family for family in FAMILIES if family.names.ties]
    if kind not in [family.type for family in runnable]:
        names = ", ".join(family.title for family in runnable)
        raise CheckpointError(
            NAME, f": {checkpoint.folder} is of type {kind}; only {names} can be run; for others give ", Field("hidden")
        )
    loaded = load(checkpoint.folder)
    tokens = find_tokens(checkpoint.folder)
    if tokens is None or not tokens.whole:
        raise CheckpointError(NAME, f": {checkpoint.folder} has no tokenizer that can encode a text; add its tokenizer.json")
    causal, length = loaded.model.encoder.causal, min(LENGTH, loaded.origin.sizes.positions)
    if length < (least := LEAST_CAUSAL if causal else LEAST_MASKED):
        raise CheckpointError(
            NAME, f": {checkpoint.folder} has {length} positions; predicting one token takes at least {least}"
        )
    if not causal:
        _check_special(tokens, loaded.vocabulary)
    ids = _ids(tokens, text, loaded.vocabulary)
    task = causal_task(ids, length, number) if causal else masked_task(ids, tokens, length, number, seed)
    before = _states(loaded, loaded.params["embed"]["embedding"], task)
    after = _states(loaded, np.concatenate([table.rows(block) for block in blocks(table.input, "the new table")]), task)
    for states in (before, after):
        if not np.isfinite(states).all():
            raise CheckpointError(NAME, f" {text}: {checkpoint.folder} computes hidden states that are not finite")
    by = f"of {len(task.inputs):,} rows of {length} tokens of {Path(text).name}"
    return States(before, after, task.targets.reshape(-1), by, whole=True)


def causal_task(ids: Iterator[int], length: int, number: int) -> Task:
    """Return enough rows to predict `number` tokens, all but the first of each row; raises CheckpointError."""
    rows = _rows(ids, length, -(-number // (length - 1)))
    places = np.broadcast_to(np.arange(length - 1), (len(rows), length - 1))
    return Task(rows, places, rows[:, 1:])


def masked_task(ids: Iterator[int], tokens: Tokens, length: int, number: int, seed: int) -> Task:
    """Return enough rows `[CLS] ... [SEP]` to predict `number` tokens, masking and predicting 15 % of the tokens of a row.

    Raises CheckpointError.
    """
    special = vocabulary(tokens.tokenizer)
    inner = length - 2  # between [CLS] and [SEP]
    masked = max(round(MASKED * inner), 1)
    rows = _rows(ids, inner, -(-number // masked))
    rows = np.pad(rows, ((0, 0), (1, 1)), constant_values=((0, 0), (special.cls, special.sep)))
    generator = np.random.default_rng(seed)
    places = np.stack([np.sort(generator.choice(inner, masked, replace=False)) + 1 for _ in rows])
    targets = np.take_along_axis(rows, places, axis=1)
    inputs = rows.copy()
    np.put_along_axis(inputs, places, special.mask, axis=1)
    return Task(inputs, places, targets)


def _rows(ids: Iterator[int], length: int, number: int) -> Int[np.ndarray, "rows length"]:
    """Return the first `number` rows of a stream of tokens, or fewer if it ends; incomplete rows are dropped."""
    taken = np.fromiter(itertools.islice(ids, number * length), np.int64)
    rows = len(taken) // length
    if rows == 0:
        raise CheckpointError(NAME, f": has {len(taken)} tokens; one row takes at least {length}; use more text")
    return taken[: rows * length].reshape(rows, length).astype(np.int32)


def _check_special(tokens: Tokens, rows: int) -> None:
    """Raise CheckpointError for a special token outside the table, CorpusError for one that the tokenizer lacks."""
    special = vocabulary(tokens.tokenizer)
    if (highest := max(special.cls, special.sep, special.mask)) >= rows:
        raise CheckpointError(
            f"{tokens.file}: the id of {special.tokens[highest]} is {highest}, but the input table has {rows} rows; "
            "replace the tokenizer by that of the model"
        )


def _ids(tokens: Tokens, text: str, rows: int) -> Iterator[int]:
    """Yield the tokens of a text; raises CheckpointError for a token outside the table."""
    parts = (part for document in corpus.read(corpus.sources([text])) for part in in_parts(tokens.tokenizer, document))
    for batch in in_batches(parts):
        for encoding in encoded(tokens.tokenizer, batch):
            if encoding.ids and max(encoding.ids) >= rows:
                raise CheckpointError(
                    f"{tokens.file}: a token has the id {max(encoding.ids)}, but the input table has {rows} rows; "
                    "replace the tokenizer by that of the model"
                )
            yield from encoding.ids


def _states(loaded: Loaded, embedding: np.ndarray, task: Task) -> Float[np.ndarray, "places width"]:
    """Return the hidden states before the output table at the places of a task, with the input table `embedding`."""
    params: dict[str, Any] = {**loaded.params, "embed": {**loaded.params["embed"], "embedding": embedding}}

    @jax.jit
    def encoded(params: dict[str, Any], rows: Int[Array, "rows length"]) -> Float[Array, "rows length width"]:
        def transformed(model: Any, tokens: Any) -> Any:
            return model.transform(model.encode(tokens))

        return jnp.asarray(loaded.model.apply({"params": params}, rows, method=transformed))

    found = []
    for start in range(0, len(task.inputs), TOGETHER):
        part = slice(start, start + TOGETHER)
        states = np.asarray(encoded(params, task.inputs[part]), np.float32)
        found.append(np.take_along_axis(states, task.places[part, :, None], axis=1).reshape(-1, states.shape[-1]))
    return np.concatenate(found)
