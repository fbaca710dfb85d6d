"""Dynamic layer tying: layers tied by an agent during training (Hay and Wolf, ICLR 2024), compared with fixed maps."""

import jax

from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import finish
from tiejax.lab.runs.launched import Launched
from tiejax.lab.runs.resume import keep_text
from tiejax.lab.runs.train import begin, timing_of
from tiejax.lab.studies.layer_tying import figures, page
from tiejax.lab.studies.layer_tying.analysis import analyse
from tiejax.lab.studies.layer_tying.jobs import Jobs
from tiejax.lab.studies.layer_tying.model import facts_of_model
from tiejax.lab.studies.layer_tying.records import metrics_of, sizes_of
from tiejax.lab.studies.layer_tying.settings import Settings
from tiejax.lab.studies.layer_tying.text import Text
from tiejax.system.json_values import plain


def run(launched: Launched, console: Console) -> int:
    """Run the study; return its exit status."""
    settings, directory = launched.settings, launched.run
    assert directory is not None
    text: Text = launched.prepared
    text_facts = text.streams.facts | {"fingerprint": text.streams.fingerprint}
    data = keep_text(directory, text_facts, text.streams.tokenizer_file.read_bytes())
    stop, facts = begin(launched, console)
    model = facts_of_model(settings, text.streams.vocabulary)
    announce(settings, text, model["parameters_untied"], console)

    jobs = Jobs(settings, text, directory, launched.switches["resume"], console, launched.tracker)
    with console:
        jobs.run(jax.devices(), stop)
    if jobs.stopped:
        console.result(f"stopped after {jobs.done:,} of {jobs.total:,} steps; continue with the same command and --resume")
        return 130

    metrics, sizes = metrics_of(settings, jobs.records), sizes_of(settings, jobs.records)
    directory.write_metrics(metrics)
    findings, runs = analyse(metrics, sizes, text.tokens_per_word)
    results = plain(
        {
            "experiment": "layer_tying",
            "model": model,
            "data": data,
            "steps": settings.steps,
            "sizes": sizes,
            **findings,
            "timing": timing_of(jobs.compile_s, jobs.train_s if jobs.here else 0.0, jobs.here),
        }
    )
    finish(directory, settings, results, facts, figures.plot_all(runs, findings), page.page, console, launched.tracker)
    return 0


def announce(settings: Settings, text: Text, parameters: int, console: Console) -> None:
    """Print the text, the methods and the model of the run."""
    tokens = {name: len(part) * (settings.context - 1) for name, part in text.blocks.items()}
    console.say(
        f"text: {tokens['train']:,} tokens for training, {tokens['validation']:,} for validation, {tokens['test']:,} for test, "
        f"in blocks of {settings.context}; vocabulary {text.streams.vocabulary:,}; "
        f"fingerprint {text.streams.fingerprint[:16]}"
    )
    console.say(
        f"{len(settings.names)} methods x {len(settings.seed_list)} seeds, {settings.steps:,} steps, {parameters:,} "
        f"parameters untied, on {jax.device_count()} x {jax.devices()[0].device_kind}, in {settings.out}"
    )
