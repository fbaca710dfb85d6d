"""All studies. Each is imported when it is loaded, and none loads jax."""

import importlib

from tiejax.lab.settings.study import Study

# The studies by their names in commands: their names in run directories and in `tiejax.lab.studies`, and what they do.
STUDIES = {
    "exor": ("exor", "compare tied with untied models on a synthetic task where tying must help or hurt"),
    "untying": ("untying", "train models that are tied first and untied later on the task of exor"),
    "text-mlm": ("text_mlm", "compare tied with untied models on text with planted synonyms of common words"),
    "layer-tying": ("layer_tying", "let an agent tie and untie the layers of a model while it trains"),
    "embedding-coupling": ("embedding_coupling", "compare encoders with input and output embeddings of different widths"),
    "causal-untying": ("causal_untying", "train causal language models that are tied first and untied later"),
    "diagnose": ("diagnosis", "measure how similar the input and output embeddings of a checkpoint are"),
    "theory": ("theory", "minimise the loss of trained models of exor without weight decay, to check a theorem"),
    "compare": ("compare", "compare finished runs of one study (exor, untying, ...)"),
}
NAMES = {name for name, _ in STUDIES.values()}  # in run directories


def load(name: str) -> Study:
    """Return a study by its name in run directories."""
    study: Study = importlib.import_module(f"tiejax.lab.studies.{name}.settings").STUDY
    return study
