"""The losses that the models of a run must beat: those of a bigram model of the blocks that one seed reads."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Integer

from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import BlockBatch, Text, build_data, drawn
from tiejax.text.ngram import Bigram, bigram


def losses_of_bigram(settings: Settings, text: Text, seed: int) -> dict[str, float]:
    """Return the losses of the bigram model of the blocks on which a seed trains, in nats a token, judged as those of models.

    `test` and `validation`: of the blocks on which the best step is evaluated. `selection`: of the blocks of a validation.
    """
    model = bigram(*_pairs(settings, text, text.blocks["train"][seen(settings, text, seed)]), text.streams.vocabulary)
    data = build_data(settings, text)
    batches = {**data.held_out, "selection": data.selection}
    return {name: _loss(settings, text, model, batches[name]) for name in ("test", "validation", "selection")}


def seen(settings: Settings, text: Text, seed: int) -> Int[np.ndarray, " blocks"]:
    """Return the numbers of the blocks that the training steps of a seed read, each once, ascending, without the rewards'."""
    assert settings.steps is not None
    groups = range(-(-settings.steps // settings.k))
    return np.unique(np.concatenate([drawn(settings, text, seed, group)[:-1] for group in groups])[: settings.steps])


def _pairs(
    settings: Settings, text: Text, blocks: Integer[np.ndarray, "number context"]
) -> tuple[Integer[np.ndarray, "number places"], Integer[np.ndarray, "number places"]]:
    """Return the tokens of blocks before predicted ones, and those; with published details, the end token is one."""
    if settings.details == "published":
        blocks = np.pad(blocks, ((0, 0), (0, 1)), constant_values=text.streams.begin)
    return blocks[:, :-1], blocks[:, 1:]


def _loss(settings: Settings, text: Text, model: Bigram, batches: Sequence[tuple[BlockBatch, float]]) -> float:
    """Return the mean loss of weighted batches, as `job.mean_loss` does."""
    rows = [np.asarray(batch.tokens)[np.asarray(batch.weight) > 0] for batch, _ in batches]
    losses = [-np.log(model.probabilities(*_pairs(settings, text, blocks))).mean() for blocks in rows]
    return float(np.average(losses, weights=[weight for _, weight in batches]))
