"""How many parameters models have, in closed form from their sizes: this module loads neither jax nor a model."""

from tiejax.models.shapes import FEED_FORWARD, POSITIONS, TOKEN_TYPES, Shape


def linear(inputs: int, outputs: int) -> int:
    """Return the parameters of a linear map with a bias."""
    return (inputs + 1) * outputs


def norm(width: int) -> int:
    """Return the parameters of a LayerNorm: a scale and a bias."""
    return 2 * width


def layer_matrices(width: int, feed_forward: int) -> int:
    """Return the entries of a transformer layer's matrices: four maps of attention, and two of the feed-forward layer."""
    return 4 * width**2 + 2 * width * feed_forward


def transformer_layer(width: int, feed_forward: int) -> int:
    """Return the parameters of a layer: its matrices, their biases, and two LayerNorms."""
    biases = 5 * width + feed_forward  # query, key, value, what attention and the feed-forward layer add, and its hidden values
    return layer_matrices(width, feed_forward) + biases + 2 * norm(width)


def transformer(layers: int, width: int, feed_forward: int, norm_first: bool = False) -> int:
    """Return the parameters of so many distinct layers, and of the final LayerNorm of pre-LN ones."""
    return layers * transformer_layer(width, feed_forward) + norm_first * norm(width)


def lstm(layers: int, width: int, hidden: int, bidirectional: bool) -> int:
    """Return the parameters of LSTM layers, with two bias vectors each, and of the map from their states to the width."""
    directions = 1 + bidirectional
    below = width + (layers - 1) * directions * hidden  # what the layers read, added up
    gates = 4 * hidden * (below + layers * (hidden + 2))
    return directions * gates + linear(directions * hidden, width)


def mixer(layers: int, width: int, length: int, token_hidden: int, channel_hidden: int) -> int:
    """Return the parameters of mixer layers over so many positions."""
    tokens = linear(length, token_hidden) + linear(token_hidden, length)
    channels = linear(width, channel_hidden) + linear(channel_hidden, width)
    return layers * (tokens + channels + 2 * norm(width))


def pooler(shape: Shape) -> int:
    """Return the parameters of BERT's pooler, tanh(W h + b) of the first token's state: published counts include it."""
    return linear(shape.width, shape.width)


def bert_encoder(shape: Shape, vocabulary: int, max_positions: int = POSITIONS, token_types: int = TOKEN_TYPES) -> int:
    """Return the parameters of a shape without head and pooler, all of its layers among them."""
    rows = vocabulary + max_positions + token_types
    projection = linear(shape.embed_in, shape.width) if shape.embed_in != shape.width else 0
    layers = transformer(shape.layers, shape.width, FEED_FORWARD * shape.width)
    return rows * shape.embed_in + norm(shape.embed_in) + projection + layers


def bert_head(shape: Shape, vocabulary: int) -> int:
    """Return the parameters of the prediction head of a shape: its transform, a bias, and its table unless that is coupled."""
    table = 0 if shape.coupled else vocabulary * shape.embed_out
    return linear(shape.width, shape.embed_out) + norm(shape.embed_out) + table + vocabulary


def bert_fine_tuned(shape: Shape, vocabulary: int, max_positions: int = POSITIONS, token_types: int = TOKEN_TYPES) -> int:
    """Return the parameters that are left for fine-tuning, without a pooler: no head, and not the layers that are dropped."""
    dropped = transformer(shape.drop, shape.width, FEED_FORWARD * shape.width)
    return bert_encoder(shape, vocabulary, max_positions, token_types) - dropped
