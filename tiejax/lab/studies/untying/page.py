"""The page of an untying run of EXor, from the body of results.json."""

from tiejax.lab.reporting import untie_curve
from tiejax.lab.reporting.page import RunOnPage
from tiejax.lab.reporting.sections import model_words


def page(run: RunOnPage) -> str:
    """Return the HTML page of a run."""
    results = run.results
    model = results["model"]
    setting = {
        "variant": f"{results['variant']}: 0 is spelled with probabilities {results['zero']}, 1 with {results['one']}",
        "model": model_words(results),
        "Bayes": f"cross-entropy {results['bayes']['cross_entropy']:.4f} nats on the training split",
        "final": "exact cross-entropy and distances after the last step; relative distances: divided by the mean distance "
        "between spellings of 0 and spellings of 1 in the same table",
    }
    title = f"EXor, {results['variant']}: tied, then untied, {model['architecture']} {model['size']}"
    return untie_curve.render(title, setting, run)
