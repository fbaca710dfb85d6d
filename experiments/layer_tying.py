"""Layers tied and untied by an agent while a model trains (Hay and Wolf, ICLR 2024), against fixed maps."""

from tiejax.runs.launch import open_study
from tiejax.studies.layer_tying.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
