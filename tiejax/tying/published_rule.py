"""The rule by which the published code of dynamic layer tying (Hay and Wolf, ICLR 2024) changes ties.

An agent goes through the layers and makes each one a copy of an earlier layer, or independent. The rule differs from resolved
ties as follows.

* A copy takes the weights that the other layer reads at this moment, and does not train them.
* Copies of a layer that becomes a copy keep its old weights, which no layer then trains.
* "Independent" means that a layer trains the weights that it reads. A layer that was a copy never gets its own weights back:
  the weights that it shares stay shared, and each layer that trains them updates them once.
* The agent observes its own choices, s_i = choice, whichever weights layer i reads.

Example: four layers that start `frozen-random`, with random weights that are frozen above layer 0. Columns: `owner`, the layer
whose weights each of the four reads; `trains`, whether it trains them; `seen`, the agent's observation; `updates`, the
number of updates per step of the weights that were initialised for each layer.

    action              published rule                  resolved ties
                        owner trains seen  updates      owner trains seen  updates
    start               0123  T...   0000  1000         0123  T...   0000  1000
    2 is independent    0123  T.T.   0020  1010         0123  T.T.   0020  1010
    3 copies 2          0122  T.T.   0022  1010         0122  T.TT   0022  1010
    2 copies 0          0102  T...   0002  1000         0100  T.TT   0000  1000
    2 is independent    0102  T.T.   0022  2000         0120  T.TT   0020  1010
    3 is independent    0102  T.TT   0023  2010         0123  T.TT   0023  1011

In the third row layer 3 becomes a copy, so only layer 2 trains the shared weights. In the fourth, layer 2 gives up its weights;
layer 3 continues to read them without training them, and the agent still observes 3 as a copy of 2; with resolved ties, 3
follows 2. In the fifth, layer 2 continues to read layer 0's weights and both update them; with resolved ties, 2 has its own
weights. In the last, layer 3 trains the former weights of layer 2.

Every layer that trains shared weights has separate moments, and updates the weights with the gradient of its use alone;
`training.layered_adamw` has the equations.
"""

import numpy as np

from tiejax.tying.owner import LayerTies, Storage, Wiring, slots, stack_size


def choose(ties: LayerTies, layer: int, choice: int) -> LayerTies:
    """Apply an action: `layer` copies the earlier layer `choice` or, if they are equal, trains the weights that it reads."""
    chosen = np.arange(len(ties.owner)) == layer
    owner = np.where(chosen & (choice != layer), ties.owner[choice], ties.owner).astype(np.int32)
    trains = np.where(chosen, choice == layer, ties.trains)
    observation = np.where(chosen, choice, ties.observation).astype(np.int32)
    return LayerTies(owner, trains, observation)


def wiring(ties: LayerTies, storage: Storage) -> Wiring:
    """Convert ties to a `Wiring`: layers that train send gradient, and each of them updates the weights once."""
    reads, sends = slots(ties.owner, storage), ties.trains
    trained = np.bincount(reads[sends], minlength=stack_size(ties.owner, storage)).astype(np.int32)
    return Wiring(reads, sends, trained)
