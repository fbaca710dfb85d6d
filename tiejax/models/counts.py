"""Numbers of parameters in closed form, without loading jax or a model."""

from tiejax.models.shapes import FEED_FORWARD, TOKEN_TYPES, Shape


def linear(inputs: int, outputs: int) -> int:
    """Return the number of parameters of a linear map with a bias."""
    return (inputs + 1) * outputs


def norm(width: int) -> int:
    """Return the number of parameters of a LayerNorm: scale and bias."""
    return 2 * width


def layer_matrices(width: int, feed_forward: int) -> int:
    """Return the number of matrix entries of a transformer layer: four attention matrices and two feed-forward ones."""
    return 4 * width**2 + 2 * width * feed_forward


def transformer_layer(width: int, feed_forward: int) -> int:
    """Return the number of parameters of a transformer layer: its matrices, their biases, and two LayerNorms."""
    biases = 5 * width + feed_forward  # of query, key, value, both outputs, and the hidden values
    return layer_matrices(width, feed_forward) + biases + 2 * norm(width)


def transformer(layers: int, width: int, feed_forward: int, norm_first: bool = False) -> int:
    """Return the number of parameters of `layers` distinct layers, with the final LayerNorm of a pre-LN model."""
    return layers * transformer_layer(width, feed_forward) + norm_first * norm(width)


def lora(layers: int, width: int, feed_forward: int, rank: int) -> int:
    """Return the number of parameters of the low-rank adaptation of `layers` layers (`models.lora`), 0 for rank 0."""
    kernels = (width, 3 * width), (width, width), (width, feed_forward), (feed_forward, width)
    vectors = transformer_layer(width, feed_forward) - layer_matrices(width, feed_forward)
    return layers * (sum(min(rank, *kernel) * sum(kernel) for kernel in kernels) + vectors) if rank else 0


def gpt2(vocabulary: int, layers: int, width: int, feed_forward: int, context: int, tied: bool) -> int:
    """Return the number of parameters of GPT-2 with `layers` distinct layers, a tied table counted once."""
    return (2 - tied) * vocabulary * width + context * width + transformer(layers, width, feed_forward, norm_first=True)


def gpt2_factorised(vocabulary: int, layers: int, width: int, feed_forward: int, context: int, embed_width: int) -> int:
    """Return the number of parameters of untied GPT-2 whose input table and positions have another width than the states."""
    whole = gpt2(vocabulary, layers, width, feed_forward, context, tied=False)
    return whole - (vocabulary + context) * (width - embed_width) + linear(embed_width, width)


def feed_forward_for(number: int, vocabulary: int, layers: int, width: int, context: int, tied: bool) -> int:
    """Return the feed-forward width, at least 1, with which GPT-2 has nearest to `number` parameters."""
    least, next_one = (gpt2(vocabulary, layers, width, hidden, context, tied) for hidden in (1, 2))
    return max(1, 1 + round((number - least) / (next_one - least)))


def lstm(layers: int, width: int, hidden: int, bidirectional: bool) -> int:
    """Return the number of parameters of LSTM layers with two bias vectors each, and of the map from states to `width`."""
    directions = 1 + bidirectional
    below = width + (layers - 1) * directions * hidden  # input widths, summed over layers
    gates = 4 * hidden * (below + layers * (hidden + 2))
    return directions * gates + linear(directions * hidden, width)


def mixer(layers: int, width: int, length: int, token_hidden: int, channel_hidden: int) -> int:
    """Return the number of parameters of mixer layers over `length` positions."""
    tokens = linear(length, token_hidden) + linear(token_hidden, length)
    channels = linear(width, channel_hidden) + linear(channel_hidden, width)
    return layers * (tokens + channels + 2 * norm(width))


def bert_encoder(shape: Shape, vocabulary: int, max_positions: int) -> int:
    """Return the number of parameters of a shape with all layers, without head and pooler."""
    rows = vocabulary + max_positions + TOKEN_TYPES
    projection = linear(shape.embed_in, shape.width) if shape.embed_in != shape.width else 0
    layers = transformer(shape.layers, shape.width, FEED_FORWARD * shape.width)
    return rows * shape.embed_in + norm(shape.embed_in) + projection + layers


def bert_head(shape: Shape, vocabulary: int) -> int:
    """Return the number of parameters of the prediction head: transform, bias, and the table unless it is coupled."""
    table = 0 if shape.coupled else vocabulary * shape.embed_out
    return linear(shape.width, shape.embed_out) + norm(shape.embed_out) + table + vocabulary


def bert_fine_tuned(shape: Shape, vocabulary: int, max_positions: int) -> int:
    """Return the number of parameters in fine-tuning, without pooler, head and dropped layers."""
    dropped = transformer(shape.drop, shape.width, FEED_FORWARD * shape.width)
    return bert_encoder(shape, vocabulary, max_positions) - dropped
