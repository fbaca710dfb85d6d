"""What a run of layer tying needs of memory, in closed form: before jax is imported, and once the vocabulary is known.

One model is counted, since how many are trained at a time is as many as jax finds devices.
"""

from typing import Any

from tiejax.lab.settings.sizes import FLOAT, INDEX, MOMENTS, STATE, Need, bytes_of_token, bytes_of_value
from tiejax.models import counts
from tiejax.models.shapes import TOKEN_TYPES, Shape

HIDDEN = 128  # of the agent's network
# Settings, resolved, that decide what is needed.
OPTIONS = ("width", "layers", "vocab_size", "feed_forward", "batch_size", "context", "seeds", "steps", "k")


def parameters(settings: Any, vocabulary: int, distinct: int) -> int:
    """Return the parameters of a model with so many distinct layers, the shared table counted once."""
    width, rows = settings.width, vocabulary + (settings.objective == "masked")
    # GPT-2's has a LayerNorm behind its layers, BERT's before them.
    layers = counts.norm(width) + counts.transformer(distinct, width, settings.feed_forward)
    if settings.architecture == "bert":
        head = counts.bert_head(Shape(width, width, width, distinct, settings.heads, coupled=True), rows)
        return (rows + settings.context + TOKEN_TYPES) * width + layers + head
    return (rows + settings.context + (settings.details == "published")) * width + layers


def agent_parameters(layers: int) -> int:
    """Return the parameters of an agent's network."""
    return counts.linear(layers, HIDDEN) + counts.linear(HIDDEN, layers * (layers + 1) // 2)


def need(settings: Any, vocabulary: int | None = None) -> Need:
    """Return what a run of resolved settings needs; vocabulary: of the tokenizer, where it is known."""
    if vocabulary is None:
        vocabulary = settings.vocab_size if settings.tokenizer is None else 1
    of_value = bytes_of_value(settings.dtype)
    of_state = min(of_value, bytes_of_value(settings.compute_dtype))
    whole = parameters(settings, vocabulary, settings.layers) * of_value
    # On the host, which has a place for every layer: the state that was last saved, and the parameters of the best step.
    state = (1 + MOMENTS + 1) * whole + bool(settings.agents) * STATE * agent_parameters(settings.layers)
    places = settings.batch_size * settings.context
    return Need(
        state,
        records_bytes(settings, len(settings.agents)),
        (settings.k + 1) * places * bytes_of_token(vocabulary),
        _on_device(settings, vocabulary) * of_value + settings.layers * places * settings.width * of_state,
    )


def _on_device(settings: Any, vocabulary: int) -> int:
    """Return the numbers of a model in training, with its gradients: the largest that is sure to be trained."""
    every_layer = settings.storage == "full" or "untied" in settings.methods
    weights = parameters(settings, vocabulary, settings.layers if every_layer else 1)
    # By published ties gradients and moments are of layers, whatever weights these share.
    trained = parameters(settings, vocabulary, settings.layers) if settings.ties == "published" else weights
    return weights + (MOMENTS + 1) * trained


def records_bytes(settings: Any, agents: int) -> int:
    """Return the bytes of the records of all models: of every step, and of every action of so many agents."""
    seeds, actions = settings.number_of_seeds, -(-settings.steps // settings.k)
    of_step = FLOAT + 2 * 8  # loss, number of distinct layers, seconds
    of_action = 3 * 8 + 8 + 2 * FLOAT + settings.layers * INDEX  # episode, layer and choice, epsilon, reward and error, the map
    return seeds * int(len(settings.names) * settings.steps * of_step + agents * actions * of_action)
