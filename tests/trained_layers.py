"""Small runs of layer tying, trained in the process of the tests."""

import shlex

import pytest
from stream_runs import text_of

from tiejax.lab.runs import entry
from tiejax.lab.studies.layer_tying.settings import STUDY

SMALL = shlex.split("""
  --vocab_size 300 --layers 3 --width 8 --heads 2 --context 12 --batch_size 4 --k 2 --validate_every 12 --validation_blocks 8
  --test_blocks 10 --learning_rate .05
""")


def train(data, out, *flags):
    """Train a small run on the corpus of `stream_runs.corpus_folder`; return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiejax.lab.runs.train.stop_flag", lambda: lambda: False)
        return entry.main(STUDY, [*text_of(data), *SMALL, *flags, "--out", str(out), "--quiet"])
