"""How the published code of dynamic layer tying changes ties (Hay and Wolf, ICLR 2024), where it departs from resolved ties.

An agent says of one layer after the other which earlier layer it copies, or that it is independent.

* A copy takes the weights that the other layer reads at this moment, and does not train them.
* Copies of a layer that becomes a copy stay with its old weights, which nobody trains then.
* "Independent" means that a layer trains whatever it reads. One that was a copy never has weights of its own again: what it
  shares stays shared, and is updated once by each layer that trains it.
* The agent is told its own choices, s_i = choice, whatever weights layer i reads.

An example: four layers that start frozen-random, with random weights, those above layer 0 frozen. Columns: `owner`, the layer
whose weights each of the four reads; `trains`, whether it trains them; `told`, the agent's observation; `updates`, how often a
step updates the weights that were drawn for each layer.

    action              published rule                  resolved ties
                        owner trains told  updates      owner trains told  updates
    start               0123  T...   0000  1000         0123  T...   0000  1000
    2 is independent    0123  T.T.   0020  1010         0123  T.T.   0020  1010
    3 copies 2          0122  T.T.   0022  1010         0122  T.TT   0022  1010
    2 copies 0          0102  T...   0002  1000         0100  T.TT   0000  1000
    2 is independent    0102  T.T.   0022  2000         0120  T.TT   0020  1010
    3 is independent    0102  T.TT   0023  2010         0123  T.TT   0023  1011

In the third row the copy 3 leaves the training to 2. In the fourth, 2 gives up its weights and 3, which goes on reading them,
does not train them, while the agent is told that 3 still copies 2; resolved, 3 follows 2. In the fifth, 2 goes on reading 0's
weights and both update them; resolved, 2 has weights of its own. In the last, 3 trains what once were 2's weights.

Every layer that trains shared weights has moments of its own, and updates them by the gradient of its own use: equations are in
`training.per_layer_adamw`.

Weights that no layer reads any more are lost, and nothing makes new ones. Under random actions for one layer after the other
5 layers all read the first layer's weights after 8 actions in the median (mean 10.4), and so they stay.
"""

import numpy as np

from tiejax.tying.owner import LayerTies, Storage, Wiring, places, stack_size


def start_tied(layers: int) -> LayerTies:
    """Return the ties of a stack in which all layers are copies of layer 0, which alone trains."""
    of_first = np.zeros(layers, np.int32)
    return LayerTies(of_first, np.arange(layers) == 0, of_first)


def choose(ties: LayerTies, layer: int, choice: int) -> LayerTies:
    """Return the ties after an action: `layer` copies the earlier layer `choice` or, if it is that, trains what it reads."""
    chosen = np.arange(len(ties.owner)) == layer
    owner = np.where(chosen & (choice != layer), ties.owner[choice], ties.owner).astype(np.int32)
    trains = np.where(chosen, choice == layer, ties.trains)
    observation = np.where(chosen, choice, ties.observation).astype(np.int32)
    return LayerTies(owner, trains, observation)


def wiring(ties: LayerTies, storage: Storage) -> Wiring:
    """Return what a step is told: layers that train send gradient, and the weights are updated once by each of them."""
    reads, sends = places(ties.owner, storage), ties.trains
    trained = np.bincount(reads[sends], minlength=stack_size(ties.owner, storage)).astype(np.int32)
    return Wiring(reads, sends, trained)
