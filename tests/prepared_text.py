"""Preparation of sentences in this and other processes, and the expected sentences."""

import subprocess
from pathlib import Path

from corpora import ROOT, documents
from processes import start_python

from tiejax.text import corpus, tokenizer
from tiejax.text.sentences import Prepared
from tiejax.text.sequences import Sequences

SETTINGS = {"tokenizer": None, "vocab_size": 120, "max_length": 12, "min_length": 6}
# Prepares the text argv[1] in the folder argv[2] with these settings, and executes argv[3] at every report of progress.
CHILD = """
import json, os, resource, signal, sys
from pathlib import Path
from tiejax.text import sentences
from tiejax.text.errors import CorpusError

def progress(phase, done, total):
    exec(sys.argv[3])

def say(line):
    print(line, flush=True)

settings = dict(tokenizer=None, vocab_size=120, max_length=12, min_length=6)
try:
    found = sentences.prepare([sys.argv[1]], folder=Path(sys.argv[2]), say=say, progress=progress, **settings)
    print(found.folder, sum(found.split("test").ids.tolist()))
except CorpusError as error:
    print("refused:", error)
except OSError as error:
    print(f"refused: {error.filename}: {error.strerror}")
assert not {"tensorflow", "jax"} & {name.partition(".")[0] for name in sys.modules}
"""


def child(text: Path, folder: Path, on_progress: str = "pass", env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    environment = {"PYTHONPATH": str(ROOT)} | (env or {})
    return start_python("-W", "error", "-c", CHILD, text, folder, on_progress, env=environment)


def by_loop(text: Path, found: Prepared, max_length: int, min_length: int) -> tuple[list[list[int]], int, int]:
    """Tokens of every sentence, framed by the template of the tokenizer; numbers of dropped and cut sentences."""
    model = tokenizer.load(str(found.tokenizer_file))
    kept, dropped, cut = [], 0, 0
    for document in documents([str(text)]):
        for sentence in corpus.sentences(document):
            tokens = model.encode(sentence).ids
            cut += len(tokens) > max_length
            if len(tokens) > max_length:
                tokens = [*tokens[: max_length - 1], found.vocabulary.sep]
            if len(tokens) < min_length:
                dropped += 1
            else:
                kept.append(tokens)
    return kept, dropped, cut


def listed(sentences: Sequences) -> list[list[int]]:
    pairs = zip(sentences.offsets[:-1], sentences.offsets[1:], strict=True)
    return [sentences.ids[start:end].tolist() for start, end in pairs]
