"""Should these embeddings be tied? Where the input and output tables of a checkpoint, or of a run of ours, stand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiejax.geometry.equivalence import THRESHOLD
from tiejax.hub.tables import CheckpointError
from tiejax.reporting import figures
from tiejax.reporting.plot import Drawn
from tiejax.runs import launch
from tiejax.runs.console import Console
from tiejax.runs.run_directory import CONFIG, RunDirectory, plain
from tiejax.settings import command_line
from tiejax.settings.command_line import BadInput
from tiejax.studies.diagnosis import checkpoint_page as pages
from tiejax.studies.diagnosis import run as diagnose_run
from tiejax.studies.diagnosis import run_page as pages
from tiejax.studies.diagnosis.checkpoint import curves_of, diagnose
from tiejax.studies.diagnosis.settings import COMMAND, Config
from tiejax.text.corpus import CorpusError


def directory_of(config: Config, overwrite: bool) -> Path:
    """Return the directory of a diagnosis, fit to be written to; raises BadInput, having written nothing."""
    out = Path(config.out or "")
    if RunDirectory.state(out) == "unfinished" and not overwrite:
        raise BadInput(f"--out {out}: holds an unfinished run; name another directory, or --overwrite it")
    RunDirectory.check(out, False, overwrite)
    if (out / CONFIG).exists():
        try:
            command_line.parse(Config, COMMAND, [], base=out / CONFIG)
        except BadInput as error:
            raise BadInput(f"--overwrite: {out} holds no diagnosis ({error}); name another directory") from None
    RunDirectory.probe(out)
    return out


class Diagnosis(NamedTuple):
    """All that is known of a model. pages: the module that writes its page and verdict."""

    results: dict[str, Any]
    arrays: dict[str, np.ndarray]
    drawn: "list[Drawn]"
    pages: Any


def of_run(config: Config, console: Console) -> Diagnosis:
    """Diagnose a run of ours; raises BadInput."""
    for name in ("corpus", "input_table", "output_table", "tokenizer"):
        if getattr(config, name) is not None:
            raise BadInput(f"--{name}: is for checkpoints of the hub; a run of ours has its own")
    assert config.checkpoint is not None
    opened = diagnose_run.open_run(Path(config.checkpoint).expanduser(), console)
    with console.preparing() as tell:
        found = diagnose_run.diagnose(opened, tell)
    results = plain({"experiment": "diagnose", "checkpoint": config.checkpoint, **found})

    return Diagnosis(results, {}, pages.drawn(results, THRESHOLD), pages)


def of_checkpoint(config: Config, console: Console) -> Diagnosis:
    """Diagnose a checkpoint in the hub's format; raises BadInput."""

    try:
        results, arrays = diagnose(config, console)
    except (CheckpointError, CorpusError) as error:
        raise BadInput(str(error)) from None

    return Diagnosis(results, arrays, pages.drawn(results, curves_of(results, arrays), arrays), pages)


def main(argv: Sequence[str]) -> int:
    """Diagnose a model; return the exit status."""
    given, switches = command_line.parse(Config, COMMAND, argv)
    config = given.resolved()
    out = directory_of(config, switches["overwrite"])
    console = Console(switches["quiet"])
    is_run = diagnose_run.is_run(Path(config.checkpoint or "").expanduser())
    found = of_run(config, console) if is_run else of_checkpoint(config, console)

    # All is known now, so that a diagnosis that fails leaves nothing behind.
    run = RunDirectory.claim(out, False, switches["overwrite"], config)
    facts = run.write_environment({"devices": []}, launch.command_of(argv))
    if found.arrays:
        run.write_metrics(found.arrays)
    pictures = [(item.caption, figures.save(item.figure, run.figures, item.name)) for item in found.drawn]
    report = run.write_report(found.pages.page(found.results, facts, (run.path / CONFIG).read_text(), pictures))
    run.write_results(found.results)
    run.release()
    for line in found.pages.verdict(found.results):
        console.say(line)
    console.result(f"report: {report}")
    return 0
