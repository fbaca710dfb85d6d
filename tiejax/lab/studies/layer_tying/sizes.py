"""Memory estimates of a layer-tying run in closed form, for use before jax is imported and once the vocabulary is known.

They count one model, because the number of models that train at once depends on the devices that jax finds.
"""

from typing import Any

from tiejax.lab.settings.sizes import FLOAT, INDEX, MOMENTS, STATE, Need, bytes_of_token, bytes_of_value
from tiejax.models import counts
from tiejax.models.shapes import TOKEN_TYPES, Shape

HIDDEN = 128  # hidden width of the agent's network
# The resolved settings that the estimate depends on.
OPTIONS = ("width", "layers", "vocab_size", "feed_forward", "batch_size", "context", "seeds", "steps", "k")


def parameters(settings: Any, vocabulary: int, distinct: int) -> int:
    """Return the number of parameters of a model with `distinct` distinct layers, the shared table counted once."""
    width, rows = settings.width, vocabulary + (settings.objective == "masked")
    if settings.architecture == "gpt2":
        context = settings.context + (settings.details == "published")
        return counts.gpt2(rows, distinct, width, settings.feed_forward, context, tied=True)
    layers = counts.norm(width) + counts.transformer(distinct, width, settings.feed_forward)
    head = counts.bert_head(Shape(width, width, width, distinct, settings.heads, coupled=True), rows)
    return (rows + settings.context + TOKEN_TYPES) * width + layers + head


def agent_parameters(layers: int) -> int:
    """Return the number of parameters of the agent's network."""
    return counts.linear(layers, HIDDEN) + counts.linear(HIDDEN, layers * (layers + 1) // 2)


def need(settings: Any, vocabulary: int | None = None) -> Need:
    """Estimate the memory of a run of resolved settings; vocabulary: size of the vocabulary, None if unknown."""
    if vocabulary is None:
        vocabulary = settings.vocab_size if settings.tokenizer is None else 1
    of_value = bytes_of_value(settings.dtype)
    of_state = min(of_value, bytes_of_value(settings.compute_dtype))
    whole = parameters(settings, vocabulary, settings.layers) * of_value
    # On the host, with a slot for every layer: the state last saved, and the parameters of the best step.
    whole += _adaptations(settings) * of_value
    state = (1 + MOMENTS + 1) * whole + bool(settings.agents) * STATE * agent_parameters(settings.layers)
    places = settings.batch_size * settings.context
    return Need(
        state,
        records_bytes(settings, len(settings.agents)),
        (settings.k + 1) * places * bytes_of_token(vocabulary),
        _on_device(settings, vocabulary) * of_value + settings.layers * places * settings.width * of_state,
    )


def _on_device(settings: Any, vocabulary: int) -> int:
    """Return the number of values on the device in training, with gradients, for the largest model that is certain to occur."""
    every_layer = settings.storage == "full" or "untied" in settings.methods
    weights = parameters(settings, vocabulary, settings.layers if every_layer else 1)
    # With published ties every layer has gradients and moments, even if it shares its weights.
    trained = parameters(settings, vocabulary, settings.layers) if settings.ties == "published" else weights
    adaptations = _adaptations(settings)
    return weights + adaptations + (MOMENTS + 1) * (trained + adaptations)


def _adaptations(settings: Any) -> int:
    """Return the number of parameters of the largest low-rank adaptation."""
    forms = [settings.form(name) for name in settings.variants or {}]
    sizes = [counts.lora(settings.layers, form.width, form.feed_forward, form.lora_rank) for form in forms]
    return max(sizes, default=0)


def records_bytes(settings: Any, agents: int) -> int:
    """Return the bytes of the records of all models: their steps, and the actions of `agents` agents."""
    seeds, actions = settings.number_of_seeds, -(-settings.steps // settings.k)
    step_bytes = FLOAT + 2 * 8  # loss, number of distinct layers, seconds
    # Episode, layer and choice, epsilon, reward and squared error, the owner map.
    action_bytes = 3 * 8 + 8 + 2 * FLOAT + settings.layers * INDEX
    return seeds * int(len(settings.names) * settings.steps * step_bytes + agents * actions * action_bytes)
