"""Q-learning of layer ties, as pure functions on one transition (s, layer, action, reward, s').

The state s gives for each of L layers the layer that it copies, with s_i = i if layer i is independent. Layer i has i + 1
actions: copy layer 0, ..., i - 1, or be independent. One network returns the values of the actions of all layers, concatenated.
Source: Hay and Wolf, Dynamic Layer Tying for Parameter-Efficient Transformers, ICLR 2024.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int32, Key

HIDDEN = 128
DISCOUNT = 0.99
LOWEST, HIGHEST = -10.0, 10.0

Reward = Literal["negative-loss", "negative-ppl", "clipped-ppl"]
Network = dict[str, Float[Array, "..."]]


class Learner(NamedTuple):
    """The parameters of the Q-network and the state of its optimizer."""

    network: Network
    opt_state: optax.OptState


class Transition(NamedTuple):
    """An action with its reward. state, next_state: s before and after the action."""

    state: Int32[Array, "layers"]
    layer: Int32[Array, ""]
    action: Int32[Array, ""]
    reward: Float[Array, ""]
    next_state: Int32[Array, "layers"]


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


def values(network: Network, state: Int32[Array, "layers"]) -> Float[Array, "values"]:
    """Return Q(s, .) of the actions of all layers; the input is s as floats, unscaled."""
    before = jnp.dot(state.astype(jnp.float32), network["hidden_kernel"], precision="highest") + network["hidden_bias"]
    return jnp.dot(jax.nn.relu(before), network["out_kernel"], precision="highest") + network["out_bias"]


def epsilon_at(episode: int, floor: float, decay: float = 0.95) -> float:
    """Return the epsilon of an episode: max(decay^episode, floor)."""
    return max(decay**episode, floor)


def choose(
    network: Network, state: Int32[Array, "layers"], layer: Int32[Array, ""], epsilon: Float[Array, ""], key: Key[Array, ""]
) -> Int32[Array, ""]:
    """Return an epsilon-greedy action: uniform over the actions of layer i with probability epsilon, otherwise argmax Q."""
    explore_key, action_key = jax.random.split(key)
    first = layer * (layer + 1) // 2
    greedy = jnp.argmax(values(network, state) + mask_of(layer, len(state))) - first
    uniform = jax.random.randint(action_key, (), 0, layer + 1)
    return jnp.where(jax.random.uniform(explore_key) < epsilon, uniform, greedy).astype(jnp.int32)


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
    index = transition.layer * (transition.layer + 1) // 2 + transition.action
    chosen = values(network, transition.state)[index]
    return jnp.square(chosen - jax.lax.stop_gradient(target_of(network, transition)))


def make_optimizer() -> optax.GradientTransformation:
    """Return the AdamW of the agent: learning rate .001, weight decay .01."""
    return optax.adamw(1e-3, weight_decay=0.01)


def start(key: Key[Array, ""], layers: int) -> Learner:
    """Return an untrained learner."""
    network = init(key, layers)
    return Learner(network, make_optimizer().init(network))


def learn(learner: Learner, transition: Transition) -> tuple[Learner, Float[Array, ""]]:
    """Update the learner on a transition; return it and the squared error before the update."""
    loss, grads = jax.value_and_grad(squared_error)(learner.network, transition)
    updates, opt_state = make_optimizer().update(grads, learner.opt_state, learner.network)
    network = optax.apply_updates(learner.network, updates)
    return Learner(network, opt_state), loss
