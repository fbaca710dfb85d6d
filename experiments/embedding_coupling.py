"""Shapes of input and output embeddings, and what fine-tuning keeps of them (Chung et al., ICLR 2021)."""

from tiejax.lab.runs.launch import open_study
from tiejax.lab.studies.embedding_coupling.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
