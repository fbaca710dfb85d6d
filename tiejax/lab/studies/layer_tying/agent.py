"""The agent of one model: chooses ties layer by layer and learns from rewards."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from tiejax import tying
from tiejax.lab.studies.layer_tying import q_learning
from tiejax.training.keys import stream

# Compiled once for all models of a run.
_choose, _learn = jax.jit(q_learning.choose), jax.jit(q_learning.learn)


class Action(NamedTuple):
    """An agent's action: make `layer` a copy of the earlier layer `choice`, or independent if `choice == layer`.

    observation: the ties as the agent observed them before the action.
    """

    episode: int
    layer: int
    choice: int
    epsilon: float
    observation: tying.Owner


@dataclasses.dataclass
class Agent:
    """An agent that acts on the layers above the first in turn; a pass over all of them is an episode.

    kind: whether the agent learns or always acts at random. root: the random key of the model's seed. to_device: puts arrays on
    the devices of the model. actions: the number of actions so far.
    """

    kind: Literal["learner", "random"]
    layers: int
    epsilon_floor: float
    root: jax.Array
    to_device: Callable[[Any], Any]
    learner: q_learning.Learner
    actions: int = 0

    def compile(self, observation: tying.Owner) -> None:
        """Compile acting and learning ahead of time, so that their compilation is not part of a measured time."""
        one, key = np.int32(1), jax.random.key(0)
        jax.block_until_ready(_choose(self.learner.network, *self.to_device((observation, one, np.float32(1), key))))
        transition = q_learning.Transition(*self.to_device((observation, one, one, np.float32(0), observation)))
        jax.block_until_ready(_learn(self.learner, transition))

    def act(self, observation: tying.Owner) -> Action:
        """Choose an action for the next layer in turn."""
        episode, index = divmod(self.actions, self.layers - 1)
        layer = index + 1
        epsilon = 1.0 if self.kind == "random" else q_learning.epsilon_at(episode, self.epsilon_floor)
        key = jax.random.fold_in(stream(self.root, "choices"), self.actions)
        choice = int(_choose(self.learner.network, *self.to_device((observation, np.int32(layer), np.float32(epsilon), key))))
        self.actions += 1
        return Action(episode, layer, choice, epsilon, observation)

    def learn(self, action: Action, reward: jax.Array, observation: tying.Owner) -> Any:
        """Learn from the reward of an action and the observation after it; return the squared error, NaN for a random agent."""
        if self.kind == "random":
            return np.float32(np.nan)
        transition = action.observation, np.int32(action.layer), np.int32(action.choice), reward, observation
        self.learner, q_loss = _learn(self.learner, q_learning.Transition(*self.to_device(transition)))
        return q_loss
