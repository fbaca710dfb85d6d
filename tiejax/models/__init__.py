"""Flax Linen masked-LM models, written untied, every submodule named."""

from tiejax.models.lstm import BidirectionalLSTM as BidirectionalLSTM
from tiejax.models.masked_lm import MaskedLM as MaskedLM
from tiejax.models.mixer import Mixer as Mixer
from tiejax.models.transformer import Transformer as Transformer
