"""Layers that an agent ties and unties while the model trains (Hay and Wolf, ICLR 2024), compared with fixed maps."""

from tiejax.lab.runs.entry import open_study
from tiejax.lab.studies.layer_tying.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
