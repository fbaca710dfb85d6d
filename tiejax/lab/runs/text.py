"""The text of a run: its preparation, and its facts and tokenizer in the run directory."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tiejax.lab.runs.console import Console
from tiejax.lab.runs.manifest import is_as_written
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.text.errors import CorpusError

DATA, TOKENIZER = "data.json", "tokenizer.json"  # in the directory of a run on text


@contextlib.contextmanager
def preparing(settings: Any, console: Console, resume: bool) -> Iterator[dict[str, Any]]:
    """Yield the arguments that every preparation of text takes, from settings of `TextSettings`; show its progress.

    resume: use the vocabulary with which the run was started. A CorpusError raised inside becomes BadInput.
    """
    try:
        with console.preparing() as progress:
            yield {
                "corpus": settings.corpus,
                "tokenizer": settings.tokenizer,
                "vocab_size": settings.vocab_size,
                "folder": Path(settings.data_dir).expanduser(),
                "text_feature": settings.text_feature,
                "tfds_dir": settings.tfds_dir,
                "trained": _trained_tokenizer(settings) if resume else None,
                "say": console.say,
                "progress": progress,
            }
    except CorpusError as error:
        raise BadInput(f"--{error}") from None


def _trained_tokenizer(settings: Any) -> str | None:
    """Return the file of the vocabulary that was trained for a run on text, or None; raises BadInput if it is damaged."""
    trained = Path(settings.out, TOKENIZER)
    if settings.tokenizer is not None or not trained.exists():
        return None
    listed = RunDirectory.opened(trained.parent)
    if TOKENIZER in listed.files and not is_as_written(trained.parent, TOKENIZER, listed):
        raise BadInput(f"--resume: {trained} is damaged; restore the original file, or --overwrite the run")
    return str(trained)


def keep_text(run: RunDirectory, facts: Mapping[str, Any], tokenizer: bytes) -> dict[str, Any]:
    """Write the facts about the training text and its tokenizer into the run directory, unless they have been written before.

    facts: with the `fingerprint` of the text. Returns the facts with which the run was started. Raises BadInput if the run was
    started on another text.
    """
    run.bind(facts["fingerprint"])
    # A newly trained vocabulary could differ: a resumed run uses its own.
    run.keep(TOKENIZER, tokenizer)
    before: dict[str, Any] = json.loads(run.keep(DATA, json.dumps(facts, indent=2).encode()))
    return before
