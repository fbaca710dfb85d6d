"""Training: optimizer and schedules, the step, the seed ensemble, checkpoints."""

from tiejax.training import cluster as cluster
from tiejax.training.checkpoint import CheckpointMismatch as CheckpointMismatch
from tiejax.training.checkpoint import Checkpoints as Checkpoints
from tiejax.training.ensemble import Ensemble as Ensemble
from tiejax.training.ensemble import Feed as Feed
from tiejax.training.ensemble import Members as Members
from tiejax.training.ensemble import Recorder as Recorder
from tiejax.training.ensemble import Subject as Subject
from tiejax.training.ensemble import all_finite as all_finite
from tiejax.training.ensemble import by_variant as by_variant
from tiejax.training.exact_risk import Expectations as Expectations
from tiejax.training.exact_risk import exact_risk as exact_risk
from tiejax.training.keys import stream as stream
from tiejax.training.loss import asked_loss as asked_loss
from tiejax.training.loss import masked_lm_loss as masked_lm_loss
from tiejax.training.loss import predict_slots as predict_slots
from tiejax.training.optimizer import constant as constant
from tiejax.training.optimizer import cosine_cycle as cosine_cycle
from tiejax.training.optimizer import make_optimizer as make_optimizer
from tiejax.training.optimizer import make_schedule as make_schedule
from tiejax.training.run import train as train
from tiejax.training.sharding import DATA as DATA
from tiejax.training.sharding import total as total
from tiejax.training.step import TrainState as TrainState
from tiejax.training.step import make_step as make_step
