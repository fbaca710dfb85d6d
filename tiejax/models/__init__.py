"""Flax Linen language models, written untied, every submodule named."""

from tiejax.models.language_model import LanguageModel as LanguageModel
from tiejax.models.lstm import BidirectionalLSTM as BidirectionalLSTM
from tiejax.models.mixer import Mixer as Mixer
from tiejax.models.transformer import Transformer as Transformer
