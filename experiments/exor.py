"""EXor: tied against untied masked language models, many seeds at once (Bertolotti and Cazzola, ICML 2024)."""

from tiejax.lab.runs.entry import open_study
from tiejax.lab.studies.exor.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
