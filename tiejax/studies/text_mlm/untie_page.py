"""The page of a run on text whose members untie, from the body of results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiejax.reporting import untie_curve
from tiejax.studies.text_mlm.page import data_words

TITLE = "Masked language modelling on text: tied, then untied"


def page(
    results: Mapping[str, Any],
    settings: Mapping[str, Any],
    settings_text: str,
    facts: Mapping[str, Any],
    pictures: Sequence[tuple[str, Path]],
) -> str:
    """Return the HTML page of a run. settings: resolved; facts: environment.json; pictures: captions and PNG files."""
    setting = {
        "corpus": ", ".join(map(str, settings["corpus"])) or "the prose that CPython carries",
        "data": data_words(results["data"]),
        "model": f"{settings['layers']} layers of width {settings['width']}, {settings['heads']} heads",
        "final": "validation loss and distances: means over the last tenth of the records",
    }
    return untie_curve.render(TITLE, setting, results, settings, settings_text, facts, pictures)
