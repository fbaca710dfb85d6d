"""Memory estimates of a layer-tying run in closed form, for use before jax is imported and once the vocabulary is known.

They count one model, which trains on one device, because the number of devices is known only to jax.
"""

from typing import Any

from tiejax.lab.runs.rates import KEPT
from tiejax.lab.settings.sizes import FLOAT, INDEX, MOMENTS, STATE, Need, bytes_of_token, bytes_of_value
from tiejax.models import counts
from tiejax.models.shapes import TOKEN_TYPES, Shape

HIDDEN = 128  # hidden width of the agent's network
MODEL = ("vocab_size", "width", "layers", "feed_forward", "variants")
FLAGS = {
    "state": MODEL,
    "records": ("seeds", "steps", "k", "variants"),
    "batches": ("k", "batch_size", "context"),
    "training": ("batch_size", "context", *MODEL),
}


def parameters(settings: Any, vocabulary: int, distinct: int, method: str = "untied") -> int:
    """Return the number of parameters of a model with `distinct` distinct layers, the shared table counted once.

    method: whose width and low-rank adaptation the model has.
    """
    form, rows = settings.form(method), vocabulary + (settings.objective == "masked")
    width, adaptation = form.width, counts.lora(settings.layers, form.width, form.feed_forward, form.lora_rank)
    if settings.architecture == "gpt2":
        context = settings.context + (settings.details == "published")
        return counts.gpt2(rows, distinct, width, form.feed_forward, context, tied=True) + adaptation
    layers = counts.norm(width) + counts.transformer(distinct, width, form.feed_forward) + adaptation
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
    whole = max(parameters(settings, vocabulary, settings.layers, name) for name in settings.names) * of_value
    # On the host, with a slot for every layer: the state last saved, and the parameters of the best step.
    state = (1 + MOMENTS + 1) * whole + bool(settings.agents) * STATE * agent_parameters(settings.layers)
    places = settings.batch_size * settings.context
    return Need(
        state,
        records_bytes(settings),
        (settings.k + 1) * places * bytes_of_token(vocabulary),
        _on_device(settings, vocabulary) * of_value + settings.layers * places * settings.width * of_state,
    )


def _on_device(settings: Any, vocabulary: int) -> int:
    """Return the number of values on the device in training, with gradients, for the largest model that is certain to occur."""

    def values(method: str) -> int:
        # The number of distinct layers of an agent, and of the methods that need one, is not known before.
        owner = settings.fixed_map(method)
        distinct = 1 if owner is None else len(set(owner.tolist()))
        weights = parameters(settings, vocabulary, settings.layers if settings.storage == "full" else distinct, method)
        # With published ties every layer has gradients and moments, even if it shares its weights.
        trained = parameters(settings, vocabulary, settings.layers, method) if settings.ties == "published" else weights
        return weights + (MOMENTS + 1) * trained

    return max(values(method) for method in settings.names)


def records_bytes(settings: Any) -> int:
    """Return the bytes of the records of all models: their steps, and the actions of agents.

    Of the models that choose learning rates, those count that are certain to be trained.
    """
    pairs, seeds, steps = len(settings.rates or ()) * len(settings.factors), settings.rate_seeds, settings.steps
    tried = pairs + KEPT * (seeds - 1) if settings.halved else pairs * seeds
    of_classes = sum(_records_of(settings, name, steps) for name in settings.classes)
    return settings.number_of_seeds * sum(_records_of(settings, name, steps) for name in settings.names) + tried * of_classes


def _records_of(settings: Any, method: str, steps: int) -> int:
    """Return the bytes of the records of a model; method: its method, or its class."""
    step_bytes = FLOAT + 2 * 8  # loss, number of distinct layers, seconds
    # Episode, layer and choice, epsilon, reward, squared error and value, the owner map.
    action_bytes = 3 * 8 + 8 + 3 * FLOAT + settings.layers * INDEX
    return steps * step_bytes + (-(-steps // settings.k) * action_bytes if method in settings.agents else 0)
