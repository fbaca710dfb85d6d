"""Parity with the published model and loss in torch, with padded rows and logits of all tokens instead of packing and slots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiejax import models, tying
from tiejax.pretraining.loss import predict_slots
from tiejax.text.masking import Masking
from tiejax.text.packing import Stream
from tiejax.text.twins import Twins

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.parity

SIZE, WIDTH, HEADS, HIDDEN, LAYERS, LENGTH = 60, 16, 4, 32, 3, 32
TIES = [tying.Tie("embed/embedding", "head/embedding")]


def batch():
    """Packed rows of 24 sentences with twins and masks, and the size of the vocabulary."""
    rng = np.random.default_rng(0)
    sentences = [[2, *rng.integers(5, SIZE, rng.integers(2, 20)), 3] for _ in range(24)]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in sentences])])
    stream = Stream(np.concatenate(sentences).astype(np.uint16), offsets, LENGTH, 0, seed=4)
    number = len(stream.packing(0).starts) - 1
    twins = Twins(SIZE, ("a", "b"), (7, 8), (0.5, 0.1))
    masking = Masking(twins, (0, 1, 2, 3, 4), 4, slots=80)
    visit = masking.visit(*map(jnp.asarray, stream.rows(0, number)), jnp.arange(number), jax.random.key(1))
    return visit, twins.vocabulary


class Published(torch.nn.Module):
    def __init__(self, params, tied, norm_first):
        super().__init__()
        embed, head = (torch.tensor(np.array(params[part]["embedding"])) for part in ("embed", "head"))
        self.embed = torch.nn.Embedding.from_pretrained(embed, freeze=False, padding_idx=0)
        self.head = self.embed.weight if tied else torch.nn.Parameter(head)
        layer = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first, dtype=torch.float64
        )
        norm = torch.nn.LayerNorm(WIDTH, dtype=torch.float64) if norm_first else None
        self.encoder = torch.nn.TransformerEncoder(layer, LAYERS, norm=norm, enable_nested_tensor=False)
        stack = params["encoder"]["layers"]
        names = {
            "self_attn.in_proj_weight": ("qkv", "kernel"),
            "self_attn.in_proj_bias": ("qkv", "bias"),
            "self_attn.out_proj.weight": ("out", "kernel"),
            "self_attn.out_proj.bias": ("out", "bias"),
            "linear1.weight": ("feed_forward_in", "kernel"),
            "linear1.bias": ("feed_forward_in", "bias"),
            "linear2.weight": ("feed_forward_out", "kernel"),
            "linear2.bias": ("feed_forward_out", "bias"),
            "norm1.weight": ("attention_norm", "scale"),
            "norm1.bias": ("attention_norm", "bias"),
            "norm2.weight": ("feed_forward_norm", "scale"),
            "norm2.bias": ("feed_forward_norm", "bias"),
        }
        with torch.no_grad():
            for number, own in enumerate(self.encoder.layers):
                for name, parameter in own.named_parameters():
                    part, leaf = names[name]
                    value = np.array(stack[part][leaf][number])
                    parameter.copy_(torch.tensor(value.T if leaf == "kernel" else value))
            if norm is not None:
                norm.weight.copy_(torch.tensor(np.array(params["encoder"]["final_norm"]["scale"])))
                norm.bias.copy_(torch.tensor(np.array(params["encoder"]["final_norm"]["bias"])))

    def loss(self, tokens, target):
        """Mean cross-entropy over the targets, from the logits of all tokens of padded sentences."""
        padding = tokens == 0
        logits = self.encoder(self.embed(tokens), src_key_padding_mask=padding) @ self.head.T
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)


def as_published(visit):
    """One sentence per row, padded with 0 to the longest, and the targets, -100 for no target."""
    target = np.full(visit.tokens.size, -100)
    used = np.asarray(visit.weight) > 0
    target[np.asarray(visit.slot)[used]] = np.asarray(visit.target)[used]
    target = target.reshape(visit.tokens.shape)
    rows = []
    for row, segments in enumerate(np.asarray(visit.segments)):
        rows += [(row, segments == number) for number in range(1, segments.max() + 1)]
    longest = max(int(where.sum()) for _, where in rows)
    tokens, asked = np.zeros((len(rows), longest), int), np.full((len(rows), longest), -100)
    for place, (row, where) in enumerate(rows):
        tokens[place, : where.sum()] = np.asarray(visit.tokens)[row][where]
        asked[place, : where.sum()] = target[row][where]
    return torch.tensor(tokens), torch.tensor(asked)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_loss_and_gradients_of_the_published_model(x64, tied, norm_first):
    visit, vocabulary = batch()
    encoder = models.Transformer(LAYERS, WIDTH, HEADS, HIDDEN, identical_layers=False, norm_first=norm_first)
    model = models.LanguageModel(vocabulary, WIDTH, encoder, embedding_std=0.3, padding=0)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))["params"]
    assert params["embed"]["embedding"].dtype == jnp.float64
    stored = tying.store(params, TIES) if tied else params

    def loss(stored):
        params = tying.view(stored, TIES) if tied else stored
        encoded = model.apply({"params": params}, visit.tokens, None, visit.segments, method="encode")
        states = encoded.reshape(-1, WIDTH)[visit.slot]
        table = params["head"]["embedding"]
        return predict_slots(states, table, visit.target, visit.weight, chunk=16)[0] / jnp.sum(visit.weight)

    value, gradients = jax.jit(jax.value_and_grad(loss))(stored)
    reference = Published(tying.view(stored, TIES) if tied else params, tied, norm_first)
    expected = reference.loss(*as_published(visit))
    expected.backward()
    np.testing.assert_allclose(float(value), expected.item(), rtol=1e-12)
    pairs = [
        (gradients["embed"]["embedding"], reference.embed.weight.grad),
        (gradients["encoder"]["layers"]["qkv"]["kernel"][1], reference.encoder.layers[1].self_attn.in_proj_weight.grad.T),
        (gradients["encoder"]["layers"]["feed_forward_in"]["kernel"][0], reference.encoder.layers[0].linear1.weight.grad.T),
        (gradients["encoder"]["layers"]["feed_forward_norm"]["scale"][2], reference.encoder.layers[2].norm2.weight.grad),
    ]
    if not tied:
        pairs.append((gradients["head"]["embedding"], reference.head.grad))
    # The row of the padding token gets a gradient from the output product, but not from the look-up.
    assert np.abs(np.asarray(gradients["embed" if tied else "head"]["embedding"])[0]).max() > 1e-6
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-12 * max(1, np.abs(theirs.numpy()).max()))
