"""Continuations of fixed prompts by the models of a run, which show whether every model writes text; they test no claim."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer

from tiejax import models, training
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.layer_tying.jobs import ModelName, weights_of
from tiejax.lab.studies.layer_tying.model import STACK, build_model, read_weights, with_slots
from tiejax.lab.studies.layer_tying.settings import Form, Settings
from tiejax.text.errors import first_line
from tiejax.training.stack import stack_size_of
from tiejax.training.step import products_in

PROMPT, CONTINUATION = 12, 24  # tokens, or fewer in a short context
TEMPERATURE = 0.8


def generated(
    settings: Settings,
    directory: RunDirectory,
    blocks: Integer[np.ndarray, "number context"],
    vocabulary: int,
    decode: Callable[[Sequence[int]], str],
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Return the `generated` of results.json: prompts, and how the text and the first seed's model of every method continue.

    A model that cannot be read or applied gets a `problem` and a warning, since a description must not cost the results.

    blocks: those of the validation split; the first, the middle and the last one begin with the prompts. decode: returns the
    text of token ids. warn: called with one-line warnings.
    """
    prompt, continuation = lengths(settings.context)
    rows = blocks[np.unique([0, len(blocks) // 2, len(blocks) - 1]), : 1 + prompt + continuation].astype(np.int32)
    seed, key = settings.seed_list[0], training.stream(jax.random.key(0), "generation")

    def described(rows: np.ndarray) -> dict[str, Any]:
        tokens = rows[:, 1 + prompt :]
        return {"continuations": [decode(row) for row in tokens.tolist()], "distinct": len(np.unique(tokens)) / tokens.size}

    @functools.cache
    def continued(form: Form) -> Callable[..., jax.Array]:
        return sampler(build_model(settings, vocabulary, form), prompt)

    def by_model(method: str) -> dict[str, Any]:
        name = weights_of(ModelName(method, seed))
        if not directory.intact(name):
            raise BadInput(f"{directory.path / name} is damaged or missing")
        params, reads = read_weights(directory.path / name)
        # With a slot for every layer, all methods of a form share a compiled function.
        params = with_slots(params, np.minimum(np.arange(settings.layers), stack_size_of(params, STACK) - 1))
        return described(np.asarray(continued(settings.form(method))(params, reads, rows, key)))

    by_method: dict[str, Any] = {}
    for method in settings.names:
        try:
            by_method[method] = by_model(method)
        except Exception as error:  # of any type: the results, which take far longer, must not be lost
            by_method[method] = {"problem": first_line(error)}
            warn(f"{method}, seed {seed}: no continuations of the prompts: {first_line(error)}")
    return {
        "seed": seed,
        "temperature": TEMPERATURE,
        "prompts": [decode(row) for row in rows[:, 1 : 1 + prompt].tolist()],
        "text": described(rows),
        "methods": by_method,
    }


def lengths(context: int) -> tuple[int, int]:
    """Return the number of tokens of a prompt and of its continuation, which fit into a block after the begin token."""
    available = context - 1
    prompt = min(PROMPT, available // 3)
    return prompt, min(CONTINUATION, available - prompt)


def sampler(model: models.LanguageModel, prompt: int, temperature: float = TEMPERATURE) -> Callable[..., jax.Array]:
    """Return the compiled function (parameters, reads, blocks, key) -> blocks with every token after the prompt sampled.

    reads: int32 `[layers]`, the slot whose weights each layer uses. blocks: int32 `[number, length]`; each is the begin token,
    `prompt` tokens, and others, which are not seen. Place i gets `categorical(fold_in(key, i), logits / temperature)`.
    """

    def sample(params: Any, reads: jax.Array, blocks: jax.Array, key: jax.Array) -> jax.Array:
        def fill(place: jax.Array, blocks: jax.Array) -> jax.Array:
            # Given a position, `encode` would compile the last layer separately, which takes longer than it saves.
            with products_in("highest"):
                states = jnp.asarray(model.apply({"params": params}, blocks, owner=reads, method="encode"))
                logits = model.apply({"params": params}, states[:, place - 1], method=lambda model, state: model.head(state))
            scaled = jnp.asarray(logits, jnp.float32) / temperature
            return blocks.at[:, place].set(jax.random.categorical(jax.random.fold_in(key, place), scaled))

        empty = blocks.at[:, 1 + prompt :].set(0)
        return jnp.asarray(jax.lax.fori_loop(1 + prompt, blocks.shape[1], fill, empty))

    return jax.jit(sample)
