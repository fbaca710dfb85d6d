"""Masked language models on text with planted twins, tied against untied (Bertolotti and Cazzola, ICML 2024)."""

from tiejax.lab.runs.entry import open_study
from tiejax.lab.studies.text_mlm.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
