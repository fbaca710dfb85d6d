__version__: str

from .lab.studies.diagnosis.library import diagnose as diagnose
from .training.ensemble import Ensemble as Ensemble
from .training.ensemble import EnsembleState as EnsembleState
from .training.ensemble import Recorder as Recorder
from .training.loop import train as train
from .training.phases import Phase as Phase
from .tying.assertion import assert_tied as assert_tied
from .tying.errors import TieError as TieError
from .tying.find import find_ties as find_ties
from .tying.find import tie_between as tie_between
from .tying.find import ties_of_keys as ties_of_keys
from .tying.store import equal_leaves as equal_leaves
from .tying.store import store as store
from .tying.store import tied_loss as tied_loss
from .tying.store import view as view
from .tying.switched import clip_by_global_norm as clip_by_global_norm
from .tying.tie import Tie as Tie
from .tying.tie_json import ties_from_json as ties_from_json
from .tying.tie_json import ties_to_json as ties_to_json
from .tying.tied_gradient import symmetrise as symmetrise
from .tying.untie import retie as retie
from .tying.untie import untie as untie
