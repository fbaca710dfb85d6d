from .language_model import TABLE_PATHS as TABLE_PATHS
from .language_model import LanguageModel as LanguageModel
from .lstm import BidirectionalLSTM as BidirectionalLSTM
from .mixer import Mixer as Mixer
from .transformer import Transformer as Transformer
