"""Q-learning of layer ties, as pure functions on one transition (s, layer, action, reward, s').

The state s holds, for each of L layers, the layer that it copies, s_i = i if none. For layer i an action is one of i + 1: copy
layer 0, ..., i - 1, or be independent. One network gives the values of all layers' actions side by side.
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
    """The network's parameters and its optimizer's state."""

    network: Network
    opt_state: optax.OptState


class Transition(NamedTuple):
    """What an action led to. state, next_state: s before and after it."""

    state: Int32[Array, "layers"]
    layer: Int32[Array, ""]
    action: Int32[Array, ""]
    reward: Float[Array, ""]
    next_state: Int32[Array, "layers"]


def number_of_values(layers: int) -> int:
    """Return L (L + 1) / 2, the number of actions of all layers."""
    return layers * (layers + 1) // 2


def mask_of(layer: Int32[Array, ""], layers: int) -> Float[Array, "values"]:
    """Return 0 in the slice of a layer's actions, of length i + 1 from i (i + 1) / 2 on, and -inf outside it."""
    place = jnp.arange(number_of_values(layers)) - layer * (layer + 1) // 2
    return jnp.where((place >= 0) & (place <= layer), 0.0, -jnp.inf)


def init(key: Key[Array, ""], layers: int) -> Network:
    """Return the parameters of Linear(L, 128) - ReLU - Linear(128, L (L + 1) / 2), as torch starts them."""
    shapes = {"hidden": (layers, HIDDEN), "out": (HIDDEN, number_of_values(layers))}
    network = {}
    for number, (name, (inputs, outputs)) in enumerate(shapes.items()):
        kernel_key, bias_key = jax.random.split(jax.random.fold_in(key, number))
        bound = inputs**-0.5
        network[f"{name}_kernel"] = jax.random.uniform(kernel_key, (inputs, outputs), minval=-bound, maxval=bound)
        network[f"{name}_bias"] = jax.random.uniform(bias_key, (outputs,), minval=-bound, maxval=bound)
    return network


def values(network: Network, state: Int32[Array, "layers"]) -> Float[Array, "values"]:
    """Return Q(s, .) of every layer's actions; s goes in as raw numbers."""
    before = jnp.dot(state.astype(jnp.float32), network["hidden_kernel"], precision="highest") + network["hidden_bias"]
    return jnp.dot(jax.nn.relu(before), network["out_kernel"], precision="highest") + network["out_bias"]


def epsilon_at(episode: int, floor: float, decay: float = 0.95) -> float:
    """Return epsilon of an episode: decay^episode, but at least `floor`."""
    return max(decay**episode, floor)


def choose(
    network: Network, state: Int32[Array, "layers"], layer: Int32[Array, ""], epsilon: Float[Array, ""], key: Key[Array, ""]
) -> Int32[Array, ""]:
    """Return an epsilon-greedy action: uniform among the layer's i + 1 with probability epsilon, else that of the highest Q."""
    explore_key, action_key = jax.random.split(key)
    first = layer * (layer + 1) // 2
    greedy = jnp.argmax(values(network, state) + mask_of(layer, len(state))) - first
    uniform = jax.random.randint(action_key, (), 0, layer + 1)
    return jnp.where(jax.random.uniform(explore_key) < epsilon, uniform, greedy).astype(jnp.int32)


def reward_of(kind: Reward, loss: Float[Array, ""]) -> Float[Array, ""]:
    """Return the reward of a loss in nats: - loss (ours), - e^loss (the paper's), or its code's, clipped to [-10, 10]."""
    if kind == "negative-loss":
        return -loss
    return -jnp.exp(loss) if kind == "negative-ppl" else jnp.clip(-jnp.exp(loss), LOWEST, HIGHEST)


def target_of(network: Network, transition: Transition) -> Float[Array, ""]:
    """Return reward + .99 max_a Q(s', a), over the actions of the same layer."""
    following = values(network, transition.next_state) + mask_of(transition.layer, len(transition.state))
    return transition.reward + DISCOUNT * jnp.max(following)


def squared_error(network: Network, transition: Transition) -> Float[Array, ""]:
    """Return (Q(s, a) - target)^2; the target sends no gradient."""
    place = transition.layer * (transition.layer + 1) // 2 + transition.action
    chosen = values(network, transition.state)[place]
    return jnp.square(chosen - jax.lax.stop_gradient(target_of(network, transition)))


def make_optimizer() -> optax.GradientTransformation:
    """Return the agent's AdamW: rate .001, weight decay .01."""
    return optax.adamw(1e-3, weight_decay=0.01)


def start(key: Key[Array, ""], layers: int) -> Learner:
    """Return an agent that has learnt nothing."""
    network = init(key, layers)
    return Learner(network, make_optimizer().init(network))


def learn(learner: Learner, transition: Transition) -> tuple[Learner, Float[Array, ""]]:
    """Return the agent after one update on a transition, and its squared error before it."""
    loss, grads = jax.value_and_grad(squared_error)(learner.network, transition)
    updates, opt_state = make_optimizer().update(grads, learner.opt_state, learner.network)
    network = optax.apply_updates(learner.network, updates)
    return Learner(network, opt_state), loss
