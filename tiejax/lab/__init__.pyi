from .ensembles import Ensemble as Ensemble
from .ensembles import EnsembleState as EnsembleState
from .ensembles import Phase as Phase
from .ensembles import Recorder as Recorder
from .ensembles import train as train
from .studies.diagnosis.library import diagnose as diagnose
