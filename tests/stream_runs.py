"""Helpers for runs of the studies of causal language models: a small corpus, and the arrays that a run leaves."""

import pydoc_data.topics

import numpy as np


def corpus_folder(tmp_path_factory):
    """Return a folder with a corpus of English text, in which runs may also store the prepared text."""
    folder = tmp_path_factory.mktemp("text")
    topics = [pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)]
    (folder / "corpus.txt").write_text("\n\n".join(topics[:12]))
    return folder


def text_of(data):
    """Return the arguments of a run on the corpus of `corpus_folder`."""
    return ["--corpus", str(data / "corpus.txt"), "--data_dir", str(data / "prepared")]


def metrics(out):
    """Return the arrays of metrics.npz."""
    with np.load(out / "metrics.npz") as arrays:
        return dict(arrays)
