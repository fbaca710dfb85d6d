"""All studies by the names that they have in run directories. Each is imported when it is loaded, and none loads jax."""

import importlib

from tiejax.lab.settings.study import Study

# Name -> the module of its `STUDY`, in `tiejax.lab.studies`.
STUDIES = {
    name: f"{name}.settings"
    for name in (
        "exor",
        "untying",
        "text_mlm",
        "layer_tying",
        "embedding_coupling",
        "causal_untying",
        "diagnosis",
        "theory",
        "compare",
    )
}


def load(name: str) -> Study:
    """Return a study by its name."""
    study: Study = importlib.import_module(f"tiejax.lab.studies.{STUDIES[name]}").STUDY
    return study
