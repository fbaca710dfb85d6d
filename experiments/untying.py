"""Tie, then untie: the final loss of EXor as a function of the step at which tied models untie."""

from tiejax.lab.runs.entry import open_study
from tiejax.lab.studies.untying.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
