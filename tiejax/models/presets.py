"""Settings of the published models, by architecture and size, and their numbers of training steps.

Source: F. Bertolotti and W. Cazzola, By Tying Embeddings You Are Assuming the Distributional Hypothesis, ICML 2024
(PMLR 235:3584-3610), and its published package. This module loads neither jax nor a model.
"""

from typing import Any

# (architecture, size) -> fields of the encoder, and the largest learning rate used for the size.
PUBLISHED_MODELS: dict[tuple[str, str], dict[str, Any]] = {
    ("transformer", "small"): {"layers": 1, "width": 4, "heads": 1, "feed_forward": 4, "learning_rate": 5e-4},
    ("transformer", "medium"): {"layers": 2, "width": 32, "heads": 1, "feed_forward": 32, "learning_rate": 1e-4},
    ("lstm", "small"): {"layers": 2, "width": 4, "hidden": 8, "learning_rate": 5e-4},
    ("lstm", "medium"): {"layers": 4, "width": 32, "hidden": 32, "learning_rate": 5e-4},
    ("mixer", "small"): {"layers": 1, "width": 4, "token_hidden": 4, "channel_hidden": 8, "learning_rate": 5e-4},
    ("mixer", "medium"): {"layers": 2, "width": 32, "token_hidden": 32, "channel_hidden": 32, "learning_rate": 5e-4},
}

# size -> training steps.
STEPS = {"small": 150_000, "medium": 500_000}

# architecture -> the settings specific to it, with their published values; None if the value depends on the size.
ARCHITECTURE_SETTINGS: dict[str, dict[str, Any]] = {
    "transformer": {"heads": None, "feed_forward": None, "activation": "gelu", "identical_layers": True},
    "lstm": {"hidden": None, "bidirectional": True},
    "mixer": {"token_hidden": None, "channel_hidden": None, "activation": "relu"},
}
