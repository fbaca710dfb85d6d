"""Should these embeddings be tied? How the input and output tables of a checkpoint or run are related."""

from tiejax.lab.runs.entry import open_study
from tiejax.lab.studies.diagnosis.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
