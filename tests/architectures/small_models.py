"""Models of every architecture of the installed transformers library, built without memory and saved with small tensors only.

A model is built on the meta device with a short vocabulary; its tables, and its other parameters with few values, are filled
with random numbers and written by the library's own `save_pretrained`. The names in the file are thus those that the library
writes, also where they differ from those in memory.
"""

import contextlib
import importlib
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors import safe_open
from transformers import PretrainedConfig, PreTrainedModel

FLAG = "tie_word_embeddings"
TOKENS = 40  # size of vocabularies
MOST_VALUES = 20_000  # of a parameter that is written
LAYERS = re.compile(r"(num_.*layers|n_layers?|.*_layers|num_hidden_groups|depth|layers)")
EXPERTS = re.compile(r"num_(local_)?experts|n_routed_experts")
TIMM = ("timm_wrapper", "gemma3n_vision")  # image encoders of a library that is not needed here
FEW = 8  # experts, at most
IDS = re.compile(r".*(token_id|token_ids|_id|token_index|_idx)")


class Model(NamedTuple):
    """A model on the meta device. input, output: the modules of its tables, None if it has none."""

    module: PreTrainedModel
    input: torch.nn.Module | None
    output: torch.nn.Module | None

    @property
    def tied(self) -> bool:
        """Whether the output table is also another parameter, which need not be what the class names as its input table."""
        return self.output is not None and len(self.shared()) > len(self.names(self.output))

    def names(self, table: torch.nn.Module | None) -> list[str]:
        """Return the names in memory of the weight of a module."""
        return [f"{name}.weight" for name, part in self.module.named_modules(remove_duplicate=False) if part is table]

    def shared(self) -> list[str]:
        """Return all names in memory of the values of the output table."""
        assert self.output is not None
        return [name for name, value in self.module.named_parameters(remove_duplicate=False) if value is self.output.weight]


def architectures() -> Iterator[type[PreTrainedModel]]:
    """Yield the public model classes of the library that have a configuration, by name of their module."""
    root = Path(inspect.getfile(transformers)).parent / "models"
    for file in sorted(root.glob("*/modeling_*.py")):
        if re.search("modeling_(tf|flax)_", file.name):
            continue
        with warnings.catch_warnings(), contextlib.suppress(ImportError, AttributeError):
            warnings.simplefilter("ignore")
            module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
            for name, kind in sorted(vars(module).items()):
                if (
                    inspect.isclass(kind)
                    and issubclass(kind, PreTrainedModel)
                    and kind.__module__ == module.__name__
                    and not name.endswith("PreTrainedModel")
                    and getattr(kind, "config_class", None) is not None
                    and getattr(transformers, name, None) is kind
                ):
                    yield kind


def parts_of(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """Yield a configuration and those inside it."""
    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PretrainedConfig):
            yield from parts_of(value)


def small_config(kind: type[PreTrainedModel], tied: bool, layers: bool = True) -> PretrainedConfig:
    """Return the usual configuration of a class with few tokens, experts and layers, and with the flag at every level.

    layers: False leaves the layers as they are, which some configurations need.
    """
    config = kind.config_class()
    for part in parts_of(config):
        setattr(part, FLAG, tied)
        _complete(part)
        for name, value in list(vars(part).items()):
            if getattr(value, "model_type", None) in TIMM:
                width = value.to_dict().get("hidden_size") or 768
                setattr(part, name, transformers.SiglipVisionConfig(hidden_size=width, num_attention_heads=1))
        for name, value in list(vars(part).items()):
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            with contextlib.suppress(Exception):  # some configurations compute a value and refuse to set it
                if layers and LAYERS.fullmatch(name) and value > 2:
                    setattr(part, name, 2)
                    _truncate(part, value)
                elif EXPERTS.fullmatch(name):
                    setattr(part, name, min(value, FEW))
                elif name.endswith("vocab_size"):
                    setattr(part, name, min(value, TOKENS))
                elif IDS.fullmatch(name) and value >= TOKENS:
                    setattr(part, name, TOKENS - 1)
    return config


def _truncate(config: PretrainedConfig, layers: int) -> None:
    """Cut the lists of a configuration that have an entry for each layer."""
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == layers:
            setattr(config, name, value[:2])


def _complete(config: PretrainedConfig) -> None:
    """Set what has no usual value, and without which a model cannot be built."""
    with contextlib.suppress(Exception):  # some configurations have one value for each layer
        heads, width = (getattr(config, name, None) for name in ("num_attention_heads", "hidden_size"))
        missing: dict[str, Any] = {"vocab_size": TOKENS, "pad_token_id": 0, "num_key_value_heads": heads}
        if isinstance(heads, int) and isinstance(width, int):
            missing["head_dim"] = width // heads
        for name, value in missing.items():
            if value is not None and getattr(config, name, 0) is None:
                setattr(config, name, value)


def build(
    kind: type[PreTrainedModel],
    tied: bool,
    level: int | None = None,
    states: Mapping[str, bool | None] | None = None,
    settings: Mapping[str, Any] | None = None,
    cut: bool = True,
) -> Model:
    """Build a class on the meta device.

    level: the part of the configuration (in the order of `parts_of`) at which the flag has the other value. states: the flag in
    config.json at the top ("") and in parts by name; None removes it. settings: other values at the top of config.json. cut:
    whether only few layers are built, if the class allows that.
    """

    def built(layers: bool) -> PreTrainedModel:
        config = small_config(kind, tied, layers)
        if level is not None:
            setattr(list(parts_of(config))[level], FLAG, not tied)
        if states is not None:
            config = kind.config_class.from_dict({**_with_states(config.to_dict(), states), **(settings or {})})
        else:
            with contextlib.suppress(Exception):  # as a loader reads it, since some classes change the flag they are given
                config = kind.config_class.from_dict(config.to_dict())
        with torch.device("meta"):
            return kind(config)

    try:
        module = built(cut)
    except Exception:  # whatever a configuration with too few layers raises
        module = built(False)
    module.tie_weights()
    return Model(module, _table(module.get_input_embeddings), _table(module.get_output_embeddings))


def _with_states(config: dict[str, Any], states: Mapping[str, bool | None]) -> dict[str, Any]:
    """Return the content of config.json with the flag in given states."""
    for where, state in states.items():
        part = config[where] if where else config
        part.pop(FLAG, None)
        if state is not None:
            part[FLAG] = state
    return config


def has_head(model: Model) -> bool:
    """Return whether some linear layer has an output for each token, though the class names none as its output table."""
    layers = [part for part in model.module.modules() if isinstance(part, torch.nn.Linear)]
    return any(layer.out_features == TOKENS for layer in layers)


def _table(of: Any) -> torch.nn.Module | None:
    try:
        module = of()
    except (AttributeError, NotImplementedError):  # a model without embeddings of tokens
        return None
    weight = getattr(module, "weight", None)
    return module if isinstance(weight, torch.nn.Parameter) and weight.ndim == 2 else None


def groups(model: Model) -> list[list[str]]:
    """Return the names in memory of parameters that have several, by parameter."""
    names: dict[int, list[str]] = {}
    for name, value in model.module.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def is_stored(value: torch.Tensor, tables: Iterable[torch.Tensor]) -> bool:
    """Return whether a parameter is written to the file of a small model."""
    return (
        any(value is table for table in tables) or value.numel() <= MOST_VALUES or (value.ndim == 2 and TOKENS in value.shape)
    )


def save(model: Model, folder: Path) -> dict[str, list[str]]:
    """Save a model; return the names in the file of its tables, as `input` and `output`."""
    torch.manual_seed(0)
    filled: dict[int, torch.Tensor] = {}
    state = {}
    modules = {"input": model.input, "output": model.output}
    tables = {role: module.weight for role, module in modules.items() if module is not None}
    for name, value in model.module.named_parameters(remove_duplicate=False):
        if is_stored(value, tables.values()):
            if id(value) not in filled:
                filled[id(value)] = torch.randn(value.shape)
            state[name] = filled[id(value)]
    model.module.save_pretrained(folder, state_dict=state)
    found: dict[str, list[str]] = {"input": [], "output": []}
    wanted = {role: filled[id(value)] for role, value in tables.items()}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                stored = opened.get_tensor(name)
                for role, values in wanted.items():
                    if stored.shape == values.shape and torch.equal(stored.float(), values):
                        found[role].append(name)
    return found
