"""The HTML report of a run on embedding shapes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiejax.lab.reporting.finding import gate_sentences, openings, tally
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.sections import corpus_words, excluded_notes, few_seeds_notes
from tiejax.lab.reporting.words import Table
from tiejax.lab.studies.embedding_coupling.encoders import STARTS
from tiejax.lab.studies.embedding_coupling.summary import TABLES, rate_at_edge
from tiejax.statistics.power import fewest_seeds

QUESTION = (
    "Input and output embeddings need not have the same shape, and the output embedding is discarded after pre-training. How "
    "much is its width worth to fine-tuning, and how are the parameters that a small input embedding saves best spent?"
)
SOURCE = (
    "H. W. Chung, T. Fevry, H. Tsai, M. Johnson, S. Ruder, Rethinking Embedding Coupling in Pre-trained Language Models, ICLR "
    "2021, arXiv:2010.12821"
)
CLAIMS = (
    "on the findings of the paper, with one precondition, stated before the run. A claim with a margin states that the "
    "difference lies within the margin (two one-sided tests). The score of a seed is its test accuracy, averaged over tasks"
)
LEADING = ("output-width/score", "reinvest/deeper-coupled", "decoupling/score", "pretraining/score")


def _spread(values: list[float] | None) -> str:
    """Format the mean over seeds, with the standard deviation if there are several; a dash for a missing measurement."""
    if values is None:
        return "-"
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the report by title: shapes, scores of every task, probes, learning rates."""
    if not results["seeds"]:
        return {}
    shown = {"Numbers: the shapes": _shapes(results)}
    for task, by_shape in results["scores"].items():
        splits = [name for name in next(iter(by_shape.values()))["pretrained"] if not name.startswith("development")]
        columns = [(name, start) for name in splits for start in STARTS]
        rows = [[shape, *(_spread(scores[start][name]) for name, start in columns)] for shape, scores in by_shape.items()]
        heads = ["shape", *(f"{name.replace('_', ' ')}, {start}" for name, start in columns)]
        shown[f"Numbers: {task}, mean ± standard deviation over seeds"] = heads, rows
    shown |= _probes(results)
    shown["Numbers: learning rates of fine-tuning, chosen on development"] = _rates(results)
    return shown


def _shapes(results: Mapping[str, Any]) -> Table:
    shapes = results["shapes"]
    if any("embed_in" not in fields for fields in shapes.values()):
        rows = [[name, str(fields["layers"]), f"{fields['fine_tuning_parameters']:,}"] for name, fields in shapes.items()]
        return ["checkpoint", "layers", "parameters in fine-tuning"], rows
    columns = [
        *("shape", "E_in", "E_out", "H", "layers", "dropped", "coupled"),
        *("parameters: pre-training", "fine-tuning", "loss", "masked accuracy"),
    ]
    rows = [
        [
            name,
            *(str(fields[key]) for key in ("embed_in", "embed_out", "width", "layers", "drop")),
            "yes" if fields["coupled"] else "no",
            *(f"{fields[key]:,}" for key in ("pretraining_parameters", "fine_tuning_parameters")),
            *(_spread(results["pretraining"].get(name, {}).get(key)) for key in ("loss", "accuracy")),
        ]
        for name, fields in shapes.items()
    ]
    of_bigram = results.get("bigram", {}).items()  # a checkpoint has none
    rows += [[f"bigram, {name}", *["-"] * (len(columns) - 3), f"{loss:.4f}", "-"] for name, loss in of_bigram]
    return columns, rows


def _probes(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the probes that the run has."""
    shown = {}
    dropped, task = results["dropped"], results["drop_task"]
    if any(dropped.values()):
        numbers = sorted({number for scores in dropped.values() for number in scores}, key=int)
        rows = []
        for name, scores in dropped.items():
            by_number = {"none": results["scores"][task][name], **scores}
            accuracies = {number: found["pretrained"]["test_accuracy"] for number, found in by_number.items()}
            rows.append([name, *(_spread(accuracies.get(number)) for number in ("none", *numbers))])
        shown[f"Numbers: accuracy of {task} on test with top layers dropped"] = ["shape", "none", *numbers], rows
    if mixes := results["layer_mix"]:
        rows = [[name, *(_spread(mix[start]["test_accuracy"]) for start in STARTS)] for name, mix in mixes.items()]
        shown["Numbers: accuracy on test of a linear probe on a mix of frozen layers"] = ["shape", *STARTS], rows
    if any(results["retrieval"].values()):
        curves = {
            f"{name}, {start}": np.transpose(fits["held_out"][start]).tolist()
            for name, fits in results["retrieval"].items()
            for start in STARTS
            if fits
        }
        layers = max(map(len, curves.values()))
        rows = [[name, *map(_spread, curve), *["-"] * (layers - len(curve))] for name, curve in curves.items()]
        columns = ["shape", "before the first", *(f"layer {number}" for number in range(1, layers))]
        shown["Numbers: share of sentences that are found by layer, their difference fitted on other pairs"] = columns, rows
    if similarity := results["similarity"]:
        rows = [[name, *(_spread(found.get(table)) for table in TABLES)] for name, found in similarity.items()]
        columns = ["shape", *(f"{table} table" for table in TABLES)]
        shown["Numbers: word similarity, correlation with human judgement"] = columns, rows
    return shown


def _rates(results: Mapping[str, Any]) -> Table:
    rows = []
    of_mix = {"mix of layers": {name: mix["rates"] for name, mix in results["layer_mix"].items()}}
    for task, by_shape in (results["rates"] | of_mix).items():
        for name, by_start in by_shape.items():
            for start, found in by_start.items():
                tried = ", ".join(f"{float(rate):g}: {value:.3f}" for rate, value in found["development"].items())
                edge = ", the last that was tried" if rate_at_edge(found) else ""
                rows.append([task, name, start, f"{found['chosen']:g}{edge}", tried])
    return ["task", "shape", "start", "chosen", "accuracy on development by rate"], rows


def _setting(results: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of the run in words, by name."""
    tasks = [
        f"{name}: {task['kind']}, {len(task['labels'])} labels, {task['sentences']['train']:,} / "
        f"{task['sentences']['development']:,} / {task['sentences']['test']:,} sentences, most frequent label "
        f"{task['most_frequent_label']:.3f}, {task['cut_off']['test']:,} labels cut off in test"
        for name, task in results["tasks"].items()
    ]
    if settings["start"] is not None:
        words = {"checkpoint": settings["start"]}
    else:
        words = {
            "corpus": corpus_words(settings),
            "tokens": f"vocabulary {results['data'].get('vocabulary', 0):,}, rows of {settings['max_length']} tokens",
            "pre-training": f"{results['steps']:,} steps of {settings['batch_rows']} rows, the same for all shapes and seeds; "
            f"AdamW, peak rate {settings['learning_rate']:g} after {settings['warm_up']} steps, then linear decay to 0; weight "
            f"decay {settings['weight_decay']:g}, gradient norm clipped at {settings['clip']:g}; no dropout; initial "
            f"kernels from N(0, {settings['kernel_std']:g}^2)",
            "unigram entropy": f"{results['unigram_entropy']:.3f} nats",
        }
        if (gate := results.get("gate", {})).get("margin") is not None:
            words["gate"] = (
                f"{'not passed' if gate['failed'] else 'passed'}: the models of every shape must end, on average, with at most "
                f"{gate['bigram'] - gate['margin']:.3f} nats; the best bigram model has {gate['bigram']:.3f}"
            )
    if transfer := results.get("transfer"):
        words["transfer"] = (
            f"the accuracy of {transfer['baseline']} on development, less that of its control, is "
            f"{transfer['development_gain']:.4f} (median over seeds); it must be above 0"
        )
    words |= {
        "tasks": "; ".join(tasks),
        "fine-tuning": f"{settings['fine_tuning_epochs']:g} epochs in batches of {settings['fine_tuning_batch']}, dropout "
        f"{settings['fine_tuning_dropout']:g} before the classifier only; sentences are classified from their "
        f"{settings['pooling']} hidden state; rates selected on development with seeds that are not reported "
        f"({', '.join(map(str, results['tuning_seeds']))}); the test split was read once",
        "seeds": f"{len(results['seeds'])}, with {settings['fine_tuning_seeds']} fine-tuning run(s) each",
        "claims": CLAIMS,
        "source": SOURCE,
    }
    return {name: value for name, value in words.items() if value}


def page(run: RunOnPage) -> str:
    """Return the HTML report of a run."""
    results, settings, claims = run.results, run.settings, run.results["claims"]
    notes = [*excluded_notes(results), *few_seeds_notes(results, fewest_seeds)]
    if "transfer" in results and not results["transfer"]["passed"]:
        notes.append(
            f"On development, {results['transfer']['baseline']} is not better with pre-training than without: nothing about "
            "the paper's findings follows from the scores."
        )
    failed, compared = gate_sentences(results)
    reproduce = {}
    if settings["tokenizer"] is None and settings["start"] is None:
        reproduce["With its vocabulary (training it again gives different tokens):"] = "--tokenizer tokenizer.json"
    return render(
        run,
        title="Shapes of input and output embeddings",
        question=QUESTION,
        finding=[*filter(None, [failed, openings(claims, LEADING), compared]), tally(claims)],
        setting=_setting(results, settings),
        notes=notes,
        claims={"Claims": claims},
        numbers=tables(results),
        reproduce=reproduce,
    )
