"""The published architectures in plain torch, with a conversion of our parameters: the oracle of the parity tests."""

import re

import numpy as np
import torch
from published import LENGTH, VOCABULARY, Case, Protocol, by_path
from torch import nn
from torch.nn import functional

# Threads do not help with matrices this small, and wait for each other on shared cores (70 s instead of 1 s measured).
torch.set_num_threads(1)

ACTIVATIONS = {"gelu": functional.gelu, "relu": functional.relu, "silu": functional.silu, "tanh": torch.tanh}


class TransformerReference(nn.Module):
    """torch's post-LN encoder, without positions and without a final norm."""

    def __init__(self, layers, width, heads, feed_forward, activation="gelu"):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, heads, feed_forward, dropout=0.0, activation=ACTIVATIONS[activation], batch_first=True
        )
        # Nested tensors concern padding only; torch warns where it cannot use them.
        self.stack = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x):
        return self.stack(x)


class LSTMReference(nn.Module):
    """torch's LSTM, then Linear."""

    def __init__(self, layers, width, hidden, bidirectional=True):
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True, bidirectional=bidirectional)
        self.projection = nn.Linear((1 + bidirectional) * hidden, width)

    def forward(self, x):
        return self.projection(self.lstm(x)[0])


class MixerLayerReference(nn.Module):
    """Pre-LN token mixing, then channel mixing, each with a residual."""

    def __init__(self, width, token_hidden, channel_hidden, activation):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.token_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token_in, self.token_out = nn.Linear(LENGTH, token_hidden), nn.Linear(token_hidden, LENGTH)
        self.channel_in, self.channel_out = nn.Linear(width, channel_hidden), nn.Linear(channel_hidden, width)

    def forward(self, x):
        across = self.token_norm(x).transpose(1, 2)
        x = x + self.token_out(self.activation(self.token_in(across))).transpose(1, 2)
        return x + self.channel_out(self.activation(self.channel_in(self.channel_norm(x))))


class MixerReference(nn.Module):
    """Mixer layers without a final norm."""

    def __init__(self, layers, width, token_hidden, channel_hidden, activation="relu"):
        super().__init__()
        self.layers = nn.Sequential(
            *(MixerLayerReference(width, token_hidden, channel_hidden, activation) for _ in range(layers))
        )

    def forward(self, x):
        return self.layers(x)


ENCODERS = {"transformer": TransformerReference, "lstm": LSTMReference, "mixer": MixerReference}


class MaskedLMReference(nn.Module):
    """Input table, encoder, output table: logits = encoded . E_out^T. If tied, both tables are one Parameter."""

    def __init__(self, case: Case, tied: bool = False):
        super().__init__()
        width = case.settings["width"]
        self.embed, self.head = nn.Embedding(VOCABULARY, width), nn.Embedding(VOCABULARY, width)
        self.encoder = ENCODERS[case.architecture](**case.settings)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        """Return logits at every position, [batch, length, vocabulary]."""
        return self.encoder(self.embed(tokens)) @ self.head.weight.T


def build(case: Case, params: dict, tied: bool = False) -> MaskedLMReference:
    """Return the torch model with our parameters, in their dtype. If tied, it uses only the input table."""
    model = MaskedLMReference(case, tied).to(torch.float64)
    state = to_torch(case.architecture, params)
    if tied:
        state["head.weight"] = state["embed.weight"]
    model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()}, strict=True)
    return model.to(torch.from_numpy(state["embed.weight"].copy()).dtype)


def to_torch(architecture: str, params: dict) -> dict:
    """Return our parameters with torch's names and layout; a leaf without a counterpart is an error."""
    rename = {"transformer": _transformer_names, "lstm": _lstm_names, "mixer": _mixer_names}[architecture]
    state = {}
    for path, leaf in by_path(params).items():
        value = np.asarray(leaf)
        if path in ("embed/embedding", "head/embedding"):
            state[path.replace("/embedding", ".weight")] = value
        else:
            state |= {f"encoder.{name}": part for name, part in rename(path.removeprefix("encoder/"), value)}
    return state


# Our kernels are [inputs, outputs] and torch's weights [outputs, inputs]; norms call their scale `weight`.
def _leaf_names(module, leaf, value):
    return f"{module}.{'bias' if leaf == 'bias' else 'weight'}", value.T if leaf == "kernel" else value


def _transformer_names(path, value):
    _, module, leaf = path.split("/")
    theirs = {
        "out": "self_attn.out_proj",
        "attention_norm": "norm1",
        "feed_forward_in": "linear1",
        "feed_forward_out": "linear2",
        "feed_forward_norm": "norm2",
    }
    for index, one in enumerate(value):  # leaves are stacked over the layers
        layer = f"stack.layers.{index}"
        if module == "qkv":
            yield f"{layer}.self_attn.in_proj_{'bias' if leaf == 'bias' else 'weight'}", one.T
        else:
            yield _leaf_names(f"{layer}.{theirs[module]}", leaf, one)


def _lstm_names(path, value):
    module, leaf = path.split("/")
    if module == "projection":
        yield _leaf_names(module, leaf, value)
        return
    index, direction = re.fullmatch(r"layer_(\d+)_(forward|backward)", module).groups()
    name = {"input_kernel": "weight_ih", "hidden_kernel": "weight_hh", "input_bias": "bias_ih", "hidden_bias": "bias_hh"}[leaf]
    yield f"lstm.{name}_l{index}{'_reverse' if direction == 'backward' else ''}", value.T


def _mixer_names(path, value):
    layer, module, leaf = path.split("/")
    yield _leaf_names(f"layers.{layer.removeprefix('layer_')}.{module}", leaf, value)


def logits_everywhere(model: MaskedLMReference, tokens: np.ndarray) -> np.ndarray:
    """Return torch's logits at every position."""
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).numpy()


def train(model: MaskedLMReference, batches, protocol: Protocol) -> np.ndarray:
    """Train in place with torch's optimizer and scheduler; return the loss before every update."""
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[protocol.kind]
    optimizer = kind(
        model.parameters(),
        lr=protocol.maximum,
        betas=protocol.betas,
        eps=protocol.eps,
        weight_decay=protocol.weight_decay,
        foreach=False,
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, protocol.half_period, protocol.minimum)
    losses = []
    for tokens, position, target in zip(*map(torch.from_numpy, batches), strict=True):
        logits = model(tokens)[torch.arange(len(tokens)), position.long()]
        loss = functional.cross_entropy(logits, target.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return np.array(losses)
