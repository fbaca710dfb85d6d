"""Does the loss alone bring symbols of one meaning together? The members of an EXor run, minimised without weight decay."""

from tiejax.lab.runs.entry import open_study
from tiejax.lab.studies.theory.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
