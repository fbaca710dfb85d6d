"""The HTML report of a text run with members that untie."""

from tiejax.lab.reporting import untie_curve
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.studies.text_mlm.page import data_words

TITLE = "Masked language modelling on text: tied, then untied"


def page(run: RunOnPage) -> str:
    """Return the HTML report of a run."""
    results, settings = run.results, run.settings
    setting = {
        "corpus": ", ".join(map(str, settings["corpus"])) or "the prose that comes with CPython",
        "data": data_words(results["data"]),
        "model": f"{settings['layers']} layers of width {settings['width']}, {settings['heads']} heads",
        "final": "validation loss and distances: means over the last tenth of the records",
    }
    return untie_curve.render(TITLE, setting, run)
