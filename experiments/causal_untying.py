"""Causal language models that are tied, never tied, or tied first and untied later, compared over seeds."""

from tiejax.lab.runs.entry import open_study
from tiejax.lab.studies.causal_untying.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
