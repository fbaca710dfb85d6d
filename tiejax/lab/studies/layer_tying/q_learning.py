"""Q-learning of layer ties, as pure functions on one transition (s, layer, action, reward, s'), and the agent of one model.

The state s gives for each of L layers the layer that it copies, with s_i = i if layer i is independent. Layer i has i + 1
actions: copy layer 0, ..., i - 1, or be independent. One network returns the values of the actions of all layers, concatenated.
Source: Hay and Wolf, Dynamic Layer Tying for Parameter-Efficient Transformers, ICLR 2024.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int32, Key

from tiejax import tying
from tiejax.lab.studies.layer_tying.sizes import HIDDEN
from tiejax.training.keys import stream

DISCOUNT = 0.99
LOWEST, HIGHEST = -10.0, 10.0
OPTIMIZER = optax.adamw(1e-3, weight_decay=0.01)

Reward = Literal["negative-loss", "negative-ppl", "clipped-ppl"]
Network = dict[str, Float[Array, "..."]]


class Learner(NamedTuple):
    """The parameters of the Q-network and the state of its optimizer."""

    network: Network
    opt_state: optax.OptState


class Transition(NamedTuple):
    """An action with its reward. state, next_state: s before and after the action."""

    state: Int32[Array, " layers"]
    layer: Int32[Array, ""]
    action: Int32[Array, ""]
    reward: Float[Array, ""]
    next_state: Int32[Array, " layers"]


def number_of_values(layers: int) -> int:
    """Return L (L + 1) / 2, the number of actions of all layers."""
    return layers * (layers + 1) // 2


def mask_of(layer: Int32[Array, ""], layers: int) -> Float[Array, "values"]:
    """Return the mask of the actions of layer i: 0 in their slice, from i (i + 1) / 2 with length i + 1, and -inf elsewhere."""
    offset = jnp.arange(number_of_values(layers)) - layer * (layer + 1) // 2
    return jnp.where((offset >= 0) & (offset <= layer), 0.0, -jnp.inf)


def init(key: Key[Array, ""], layers: int) -> Network:
    """Initialise Linear(L, 128) - ReLU - Linear(128, L (L + 1) / 2) as torch does."""
    shapes = {"hidden": (layers, HIDDEN), "out": (HIDDEN, number_of_values(layers))}
    network = {}
    for number, (name, (inputs, outputs)) in enumerate(shapes.items()):
        kernel_key, bias_key = jax.random.split(jax.random.fold_in(key, number))
        bound = inputs**-0.5
        network[f"{name}_kernel"] = jax.random.uniform(kernel_key, (inputs, outputs), minval=-bound, maxval=bound)
        network[f"{name}_bias"] = jax.random.uniform(bias_key, (outputs,), minval=-bound, maxval=bound)
    return network


def values(network: Network, state: Int32[Array, " layers"]) -> Float[Array, "values"]:
    """Return Q(s, .) of the actions of all layers; the input is s as floats, unscaled."""
    before = jnp.dot(state.astype(jnp.float32), network["hidden_kernel"], precision="highest") + network["hidden_bias"]
    return jnp.dot(jax.nn.relu(before), network["out_kernel"], precision="highest") + network["out_bias"]


def epsilon_at(episode: int, floor: float, decay: float = 0.95) -> float:
    """Return the epsilon of an episode: max(decay^episode, floor)."""
    return max(decay**episode, floor)


def choose(
    network: Network, state: Int32[Array, " layers"], layer: Int32[Array, ""], epsilon: Float[Array, ""], key: Key[Array, ""]
) -> Int32[Array, ""]:
    """Return an epsilon-greedy action: uniform over the actions of layer i with probability epsilon, otherwise argmax Q.

    An agent whose values are not finite, after the reward of a diverged model, no longer acts: the layer stays as it is.
    """
    explore_key, action_key = jax.random.split(key)
    first, found = layer * (layer + 1) // 2, values(network, state)
    greedy = jnp.argmax(found + mask_of(layer, len(state))) - first
    uniform = jax.random.randint(action_key, (), 0, layer + 1)
    chosen = jnp.where(jax.random.uniform(explore_key) < epsilon, uniform, greedy)
    return jnp.where(jnp.all(jnp.isfinite(found)), chosen, state[layer]).astype(jnp.int32)


def reward_of(kind: Reward, loss: Float[Array, ""]) -> Float[Array, ""]:
    """Return the reward of a loss in nats: -loss (ours), -e^loss (the paper's), or that clipped to [-10, 10] (its code's)."""
    if kind == "negative-loss":
        return -loss
    return -jnp.exp(loss) if kind == "negative-ppl" else jnp.clip(-jnp.exp(loss), LOWEST, HIGHEST)


def target_of(network: Network, transition: Transition) -> Float[Array, ""]:
    """Return reward + .99 max_a Q(s', a), with the maximum over the actions of the same layer."""
    following = values(network, transition.next_state) + mask_of(transition.layer, len(transition.state))
    return transition.reward + DISCOUNT * jnp.max(following)


def squared_error(network: Network, transition: Transition) -> Float[Array, ""]:
    """Return (Q(s, a) - target)^2, without gradient through the target."""
    chosen = value_of(network, transition.state, transition.layer, transition.action)
    return jnp.square(chosen - jax.lax.stop_gradient(target_of(network, transition)))


def value_of(
    network: Network, state: Int32[Array, " layers"], layer: Int32[Array, ""], action: Int32[Array, ""]
) -> Float[Array, ""]:
    """Return Q(s, a)."""
    return values(network, state)[layer * (layer + 1) // 2 + action]


def returns_of(reward: np.ndarray) -> np.ndarray:
    r"""Return the discounted return of every action, \sum_n .99^n r_{t + n} up to the last action, `[..., action]`."""
    found = np.array(reward, float)
    for action in range(found.shape[-1] - 2, -1, -1):
        found[..., action] += DISCOUNT * found[..., action + 1]
    return found


def start(key: Key[Array, ""], layers: int) -> Learner:
    """Return an untrained learner."""
    network = init(key, layers)
    return Learner(network, OPTIMIZER.init(network))


def learn(learner: Learner, transition: Transition) -> tuple[Learner, Float[Array, ""]]:
    """Update the learner on a transition; return it and the squared error before the update."""
    loss, grads = jax.value_and_grad(squared_error)(learner.network, transition)
    updates, opt_state = OPTIMIZER.update(grads, learner.opt_state, learner.network)
    network = optax.apply_updates(learner.network, updates)
    return Learner(network, opt_state), loss


# Compiled once for all models of a run.
_choose, _learn, _value = jax.jit(choose), jax.jit(learn), jax.jit(value_of)


class Action(NamedTuple):
    """An agent's action: make `layer` a copy of the earlier layer `choice`, or independent if `choice == layer`.

    observation: the ties as the agent observed them before the action. value: Q(s, a) before it, NaN of a random agent.
    """

    episode: int
    layer: int
    choice: int
    epsilon: float
    observation: tying.Owner
    value: Any


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
    learner: Learner
    actions: int = 0

    def compile(self, observation: tying.Owner) -> None:
        """Compile acting and learning ahead of time, so that their compilation is not part of a measured time."""
        one, key = np.int32(1), jax.random.key(0)
        jax.block_until_ready(_choose(self.learner.network, *self.to_device((observation, one, np.float32(1), key))))
        jax.block_until_ready(_value(self.learner.network, *self.to_device((observation, one, one))))
        transition = Transition(*self.to_device((observation, one, one, np.float32(0), observation)))
        jax.block_until_ready(_learn(self.learner, transition))

    def act(self, observation: tying.Owner) -> Action:
        """Choose an action for the next layer in turn."""
        episode, index = divmod(self.actions, self.layers - 1)
        layer = index + 1
        epsilon = 1.0 if self.kind == "random" else epsilon_at(episode, self.epsilon_floor)
        key = jax.random.fold_in(stream(self.root, "choices"), self.actions)
        choice = int(_choose(self.learner.network, *self.to_device((observation, np.int32(layer), np.float32(epsilon), key))))
        self.actions += 1
        value = np.float32(np.nan)
        if self.kind == "learner":
            value = _value(self.learner.network, *self.to_device((observation, np.int32(layer), np.int32(choice))))
        return Action(episode, layer, choice, epsilon, observation, value)

    def learn(self, action: Action, reward: jax.Array, observation: tying.Owner) -> Any:
        """Learn from the reward of an action and the observation after it; return the squared error, NaN for a random agent."""
        if self.kind == "random":
            return np.float32(np.nan)
        transition = action.observation, np.int32(action.layer), np.int32(action.choice), reward, observation
        self.learner, q_loss = _learn(self.learner, Transition(*self.to_device(transition)))
        return q_loss
