"""Analysis of plain arrays: geometry of embeddings, paired statistics over seeds, the paper's claims as tests."""

from tiejax.analysis.claims import Claim as Claim
from tiejax.analysis.claims import assess as assess
from tiejax.analysis.geometry import area_under_log as area_under_log
from tiejax.analysis.geometry import group_pairs as group_pairs
from tiejax.analysis.geometry import log_roughness as log_roughness
from tiejax.analysis.geometry import mean_distance as mean_distance
from tiejax.analysis.geometry import pairwise_distances as pairwise_distances
from tiejax.analysis.geometry import symbol_pairs as symbol_pairs
from tiejax.analysis.paired import Paired as Paired
from tiejax.analysis.paired import holm as holm
from tiejax.analysis.paired import paired_test as paired_test
from tiejax.analysis.uses import use_gradients as use_gradients
