"""The agent of one model: which layer it is asked of, what it chooses, and what it learns from the reward."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from tiejax import tying
from tiejax.lab.studies.layer_tying import q_learning
from tiejax.training.keys import stream

# One compilation serves all models of a run.
_choose, _learn = jax.jit(q_learning.choose), jax.jit(q_learning.learn)


class Action(NamedTuple):
    """What an agent has done: made `layer` a copy of the earlier layer `choice`, or independent, if that is itself.

    observation: what it was told of the ties before.
    """

    episode: int
    layer: int
    choice: int
    epsilon: float
    observation: tying.Owner


@dataclasses.dataclass
class Agent:
    """An agent that is asked of the layers above the first, one after the other; a round over all of them is an episode.

    kind: it learns, or chooses at random throughout. actions: how many it has taken. root: key of the model's seed.
    to_device: puts arrays where the model is trained.
    """

    kind: Literal["learner", "random"]
    layers: int
    epsilon_floor: float
    root: jax.Array
    to_device: Callable[[Any], Any]
    learner: q_learning.Learner
    actions: int = 0

    def compile(self, observation: tying.Owner) -> None:
        """Let what an agent does be compiled, which is not part of anybody's time."""
        one, key = np.int32(1), jax.random.key(0)
        jax.block_until_ready(_choose(self.learner.network, *self.to_device((observation, one, np.float32(1), key))))
        transition = q_learning.Transition(*self.to_device((observation, one, one, np.float32(0), observation)))
        jax.block_until_ready(_learn(self.learner, transition))

    def act(self, observation: tying.Owner) -> Action:
        """Choose for the next layer in turn."""
        episode, place = divmod(self.actions, self.layers - 1)
        layer = place + 1
        epsilon = 1.0 if self.kind == "random" else q_learning.epsilon_at(episode, self.epsilon_floor)
        key = jax.random.fold_in(stream(self.root, "choices"), self.actions)
        choice = int(_choose(self.learner.network, *self.to_device((observation, np.int32(layer), np.float32(epsilon), key))))
        self.actions += 1
        return Action(episode, layer, choice, epsilon, observation)

    def learn(self, action: Action, reward: jax.Array, observation: tying.Owner) -> Any:
        """Learn from an action's reward and what is observed after it; return the squared error, NaN of a random agent."""
        if self.kind == "random":
            return np.float32(np.nan)
        transition = action.observation, np.int32(action.layer), np.int32(action.choice), reward, observation
        self.learner, q_loss = _learn(self.learner, q_learning.Transition(*self.to_device(transition)))
        return q_loss
