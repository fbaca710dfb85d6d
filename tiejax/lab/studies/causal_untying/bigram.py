"""The loss that the models of a run must beat: that of a bigram model of the tokens that one seed sees."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tiejax.lab.comparison.segments import step_at
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.causal_untying.settings import Settings
from tiejax.lab.studies.causal_untying.text import Text
from tiejax.text.blocks import spread
from tiejax.text.ngram import bigram_loss
from tiejax.training.sources import ExampleFeed


def loss_of_bigram(settings: Settings, text: Text, seed: int, steps: int) -> float:
    """Return the loss of the final validation, in nats a token, of the bigram model of what a seed sees in some steps."""
    feed = ExampleFeed(text.train, settings.batch_size)
    judged = text.validation[spread(len(text.validation), settings.final_blocks)]
    return bigram_loss(text.train[feed.seen(seed, steps)], judged, text.vocabulary)


def check_gate(settings: Settings, bigram: float, losses: dict[str, float]) -> None:
    """Raise BadInput unless the models that chose the learning rate of each class learn enough for a comparison.

    bigram: loss of the bigram model. losses: class of arms -> mean final loss.
    """
    if settings.gate is None:
        return
    for kind, loss in losses.items():
        if not bigram - loss >= settings.gate:
            raise BadInput(
                f"--gate: the {kind} models that chose the learning rate end with {loss:.3f} nats, {bigram - loss:.3f} below a "
                f"bigram model's {bigram:.3f}, expected at least {settings.gate:g}; train for more --steps, on more text, or "
                "with a smaller --vocab_size, or lower --gate"
            )


def facts(settings: Settings, text: Text, seed: int, steps: int) -> dict[str, Any]:
    """Return the loss of the bigram model at the end, and by length of the run, for results.json."""
    lengths: Sequence[Fraction] = [*settings.ends, Fraction(1)]
    return {
        "bigram": {
            "gate": settings.gate,
            "seed": seed,
            "losses": {str(length): loss_of_bigram(settings, text, seed, step_at(length, steps)) for length in lengths},
        }
    }
