"""Layers tied and untied by an agent while a model trains (Hay and Wolf, ICLR 2024), against fixed maps."""

from tiejax.lab.runs.launch import open_study
from tiejax.lab.studies.layer_tying.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
