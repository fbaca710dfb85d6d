"""The figures and the page of an untying run, from plain arrays and the body of results.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiejax.reporting import figures
from tiejax.reporting import page as report
from tiejax.reporting.finding import finding
from tiejax.reporting.plot import Plot
from tiejax.reporting.sections import excluded, model_of, performance, reproduction, training_of
from tiejax.studies.text_mlm.page import data_words

Curves = Mapping[str, np.ndarray]  # curve -> numbers of its arms, in the order of their steps


def curve(
    found: Mapping[str, Any],
    title: str,
    curves: Curves,
    steps: np.ndarray,
    best: float | None,
    solved: np.ndarray | None,
) -> Plot:
    """Draw the final loss, called `title`, over the untie step, a line a policy. solved: `[arm, seed]`. best: Bayes's."""
    points = {one["curve"]: one["points"] for one in found["curves"]}
    lines = {
        name: (steps[numbers], [p["median"] for p in points[name]], [p["interval"] for p in points[name]])
        for name, numbers in curves.items()
    }
    shares = None
    if solved is not None:
        number = solved.shape[1]
        shares = {
            name: (steps[numbers], [p["solved"] / number for p in points[name]], [p["solved_interval"] for p in points[name]])
            for name, numbers in curves.items()
        }
    independent = found["ends"]["independent"]
    return Plot(
        "untie_curve",
        "What untying gives, over the step at which tied models untied: 0 is never tied (from equal tables), the last step is "
        "always tied. Median over seeds with its 95 % bootstrap interval"
        + ("; share of seeds within .1 nat of Bayes with its 95 % Wilson interval" if shares else "")
        + ". Grey: never tied, from independent tables.",
        figures.untie_curve(
            title,
            lines,
            (independent["median"], independent["interval"]),
            best,
            shares,
            None if solved is None else independent["solved"] / solved.shape[1],
        ),
    )


def distances(values: Mapping[str, np.ndarray], curves: Curves, steps: np.ndarray, title: str) -> Plot:
    """Draw final distances `[arm, seed]` by pairs and table over the untie step. title: what they are."""
    panels = {
        title: {name: (steps[numbers], np.median(shown[numbers], axis=1)) for name, numbers in curves.items()}
        for title, shown in values.items()
    }
    return Plot(
        "untie_distances",
        f"Distances of pairs at the end ({title}; dotted: 1) over the untie step. Median over seeds.",
        figures.lines(panels, title),
    )


def trajectories(
    record_steps: np.ndarray, loss: np.ndarray, curves: Curves, steps: np.ndarray, title: str, best: float | None
) -> Plot:
    """Draw the loss `[arm, seed, record]` over training, a panel a policy, a line an untie step."""
    panels = {
        name: {f"{steps[number]:,}": np.median(loss[number], axis=0) for number in numbers} for name, numbers in curves.items()
    }
    return Plot(
        "untie_trajectories",
        "The loss over training, a line for each untie step (darker: later). Median over seeds. The first record, of untrained "
        "models, is left out.",
        figures.by_untie_step(record_steps, panels, title, best),
    )


def numbers(results: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return the tables of the report: the ends, then each curve with its differences from them."""

    def shown(row: Mapping[str, Any]) -> str:
        if row["estimate"] is None:
            return "-"
        p = "" if row["p_adjusted"] is None else f", p {row['p_adjusted']:.2g}"
        return f"{row['estimate']:+.4f}{p}"

    def solved_of(point: Mapping[str, Any]) -> list[str]:
        return [str(point["solved"])] if "solved" in point else []

    if not results["curves"]:
        return {}
    ends = results["ends"]
    with_solved = ["solved"] if "solved" in ends["tied"] else []
    names = list(ends["tied"]["medians"])
    found = {
        "Never and always tied: medians over seeds": (
            ["", "loss", *with_solved, *names],
            [
                [end["words"], f"{end['median']:.4f}", *solved_of(end), *(f"{end['medians'][name]:.4f}" for name in names)]
                for end in ends.values()
            ],
        )
    }
    for one in results["curves"]:
        low, high = one["best_step_interval"]
        heading = f"{one['curve']}: best untie step {one['best_step']:,} (95 % {low:,} to {high:,})"
        rows = []
        for place, (step, point) in enumerate(zip(one["steps"], one["points"], strict=True)):
            inside = 0 < place < len(one["steps"]) - 1
            against = [shown(one["against"][base][place - 1]) if inside else "" for base in ends]
            interval = " to ".join("-" if bound is None else f"{bound:.4f}" for bound in point["interval"])
            rows.append([f"{step:,}", f"{point['median']:.4f}", interval, *solved_of(point), *against])
        found[heading] = (["untie step", "loss", "95 %", *with_solved, *(f"- {end['words']}" for end in ends.values())], rows)
    return found


def page(
    results: Mapping[str, Any],
    settings: Mapping[str, Any],
    settings_text: str,
    facts: Mapping[str, Any],
    drawn: Sequence[tuple[str, Path]],
) -> str:
    """Return the HTML page of a run of EXor. settings: resolved; facts: environment.json; drawn: captions and PNG files."""
    setting = {
        "variant": f"{results['variant']}: 0 is spelled with probabilities {results['zero']}, 1 with {results['one']}",
        "model": model_of(results),
        "Bayes": f"cross-entropy {results['bayes']['cross_entropy']:.4f} nats on the training split",
        "final": "exact cross-entropy and distances after the last step; relative distances: over the mean distance between "
        "spellings of 0 and spellings of 1 in the same table",
    }
    model = results["model"]
    title = f"EXor, {results['variant']}: tied, then untied, {model['architecture']} {model['size']}"
    return _page(title, setting, results, settings, settings_text, facts, drawn)


def page_on_text(
    results: Mapping[str, Any],
    settings: Mapping[str, Any],
    settings_text: str,
    facts: Mapping[str, Any],
    drawn: Sequence[tuple[str, Path]],
) -> str:
    """Return the HTML page of a run on text. settings: resolved; facts: environment.json; drawn: captions and PNG files."""
    setting = {
        "corpus": ", ".join(map(str, settings["corpus"])) or "the prose that CPython carries",
        "data": data_words(results["data"]),
        "model": f"{settings['layers']} layers of width {settings['width']}, {settings['heads']} heads",
        "final": "validation loss and distances: means over the last tenth of the records",
    }
    return _page(
        "Masked language modelling on text: tied, then untied", setting, results, settings, settings_text, facts, drawn
    )


def _page(
    title: str,
    setting: Mapping[str, str],
    results: Mapping[str, Any],
    settings: Mapping[str, Any],
    settings_text: str,
    facts: Mapping[str, Any],
    drawn: Sequence[tuple[str, Path]],
) -> str:
    more = {
        "seeds": f"{len(results['seeds'])}; all arms of a seed see the same batches and share what initial values they can",
        "untied at": ", ".join(f"{step:,}" for step in results["curves"][0]["steps"][1:-1]) if results["curves"] else "-",
        "training": training_of(results, settings),
        "source": "F. Bertolotti and W. Cazzola, ICML 2024, PMLR 235:3584-3610, for the task; untying is ours",
    }
    notes = [
        *excluded(results),
        "Untying changes more than the tie: weight decay then acts on two tables, and the initial scale of a tied table suits "
        "one of its roles. The claims take the mean over the untie steps: no step is chosen.",
    ]
    lead = [f"untying-helps/{base}/{curve}" for curve in ("copy",) for base in ("tied", "equal")]
    return report.render(
        title=title,
        question="A tie may help early and cost late. Do models that are tied up to some step, and untied from then on, end "
        "better than models that are always or never tied; and what should the optimizer remember of the table that leaves?",
        finding=finding(results["claims"], lead),
        setting={**setting, **more, **performance(results["timing"], facts)},
        notes=notes,
        claims={"Claims": results["claims"]},
        figures=drawn,
        numbers=numbers(results),
        reproduce=reproduction(facts, settings_text),
    )
