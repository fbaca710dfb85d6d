"""The ensemble of seeds, for the public names of `tiejax.lab`."""

from tiejax.training import Ensemble as Ensemble
from tiejax.training import EnsembleState as EnsembleState
from tiejax.training import ExampleFeed as ExampleFeed
from tiejax.training import FunctionFeed as FunctionFeed
from tiejax.training import Phase as Phase
from tiejax.training import Recorder as Recorder
from tiejax.training import train as train
