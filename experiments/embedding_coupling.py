"""Input and output embeddings of different shapes, pre-trained and fine-tuned (Chung et al., ICLR 2021)."""

from tiejax.lab.runs.entry import open_study
from tiejax.lab.studies.embedding_coupling.settings import STUDY

if __name__ == "__main__":
    open_study(STUDY)
