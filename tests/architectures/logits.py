"""Logits of every architecture before and after its tables are untied and tied, in the installed transformers library.

A model has two layers and its usual width. Its file holds the tables and the parameters with few values; the others, which the
library finds missing, are views of a short random vector, so that a model of any width needs little memory. What is compared
is thus what the library computes from the files, bit for bit.
"""

import contextlib
import inspect
import math
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from architectures.small_models import build, is_stored, save
from safetensors.torch import load_file
from transformers import PreTrainedModel

from tiejax.checkpoints.hub.architectures import known
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.rewrite.tie import tie
from tiejax.checkpoints.rewrite.untie import untie

# Version 5 has kernels for experts that take contiguous parameters only.
PLAIN = {} if transformers.__version__.startswith("4.") else {"experts_implementation": "eager"}
OUTCOMES = ("equal", "refused", "not run", "differ")
LENGTH = 6  # tokens of an input
FEATURES = ("pixel_values", "input_features", "input_values")
SECONDS = 120  # for one architecture
FILLS = (
    (torch.Tensor, "normal_"),
    (torch.Tensor, "uniform_"),
    (torch.nn.init, "_no_grad_trunc_normal_"),
    (torch.nn.init, "orthogonal_"),
)


def outcomes(kind: type[PreTrainedModel], folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield what was compared, the outcome and its reason; nothing for a class without an output table.

    "flag": the same values under the flag true and false; "refused" means that the map knows that they give other logits.
    "untie": the command on the tied checkpoint. "tie": the command on what `untie` wrote.
    """
    models = {tied: build(kind, tied) for tied in (True, False)}
    if models[True].output is None:
        return
    for tied, model in models.items():
        save(model, folder / str(tied))
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    try:
        before = loaded(kind, folder / "True")
        expected = logits(before)
        _check_that_head_counts(before, expected)
        _check_that_table_is_loaded(before, folder / "True")
    except Exception as error:  # an architecture that does not run on tokens alone, or in this configuration
        for name in ("flag", "untie", "tie"):
            yield name, "not run", _line(error)
        return
    finally:
        signal.alarm(0)
    yield "flag", *_flag(kind, folder, before, expected)
    for name, command, source, out in (("untie", untie, "True", "untied"), ("tie", tie, "untied", "tied")):
        if not (folder / source).exists():
            yield name, "refused", "nothing was untied"
            continue
        try:
            command(folder / source, folder / out)
        except CheckpointError as error:
            yield name, "refused", _line(error)
        else:
            same = _same(before, expected, loaded(kind, folder / out))
            yield name, "equal" if same else "differ", ""


def _flag(kind: type[PreTrainedModel], folder: Path, before: PreTrainedModel, expected: list[torch.Tensor]) -> tuple[str, str]:
    """Return whether an untied model with the values of a tied one computes the same."""
    one = known().get(kind.__name__)
    after = loaded(kind, folder / "False")
    values = dict(before.named_parameters(remove_duplicate=False))
    try:
        for name, value in after.named_parameters(remove_duplicate=False):
            value.data = values[name].data
        same = _equal(expected, logits(after))
    except Exception as error:  # tables of other shapes, or other parameters
        return ("refused" if one and (one.unlike or one.scaled) else "differ"), _line(error)
    return ("equal" if same else "refused" if one and one.scaled else "differ"), ""


def loaded(kind: type[PreTrainedModel], folder: Path) -> PreTrainedModel:
    """Load a checkpoint; parameters with many values are made from their names."""
    with contextlib.ExitStack() as stack:
        for where, name in FILLS:  # the library fills parameters that a file lacks, which takes minutes for the widest models
            stack.enter_context(mock.patch.object(where, name, _only_small(getattr(where, name))))
        torch.manual_seed(0)
        model = kind.from_pretrained(folder, dtype=torch.float32, **PLAIN)
    tables = [table.weight for table in (model.get_input_embeddings(), model.get_output_embeddings())]
    one = known().get(kind.__name__)
    first = {name: group[0] for group in (one.groups if one else ()) for name in group}  # a tied model has one of them
    wide = {name: value for name, value in model.named_parameters() if not is_stored(value, tables)}
    made = {value: _made(first.get(name, name), value.shape) for name, value in wide.items()}
    for module in model.modules():
        for name, value in module.named_parameters(recurse=False):
            if value in made:  # not `value.data`, since some are left on the meta device
                setattr(module, name, torch.nn.Parameter(made[value], requires_grad=False))
        for name, value in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:  # the file has none
                setattr(module, name, torch.full(value.shape, 0.5).to(value.dtype))
    return model.eval()


def _only_small(fill: Any) -> Any:
    return lambda tensor, *rest, **more: fill(tensor, *rest, **more) if tensor.numel() <= 1_000_000 else tensor


def _made(name: str, shape: torch.Size) -> torch.Tensor:
    """Return random values in which every index adds to the place in one short vector, as in a Hankel matrix."""
    random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    vector = torch.randn(sum(shape), generator=random) / math.sqrt(shape[-1])
    return vector.as_strided(shape, [1] * len(shape))


def logits(model: PreTrainedModel) -> list[torch.Tensor]:
    """Return every output of a model that has a number for each token."""
    with torch.no_grad():
        found = model(**_inputs(model))
    outputs = list(found.values()) if hasattr(found, "values") else list(found)
    size = model.get_output_embeddings().weight.shape[0]
    chosen = [value for value in outputs if isinstance(value, torch.Tensor) and value.shape[-1] == size]
    if not chosen:
        raise ValueError("no output has a number for each token")
    return chosen


def _inputs(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    tokens = torch.arange(3, 3 + LENGTH)[None]
    taken = inspect.signature(model.forward).parameters
    inputs: dict[str, Any] = {name: tokens for name in ("input_ids", "decoder_input_ids") if name in taken}
    if "use_cache" in taken:
        inputs["use_cache"] = False
    needed = {name for name in FEATURES if name in taken and taken[name].default is inspect.Parameter.empty}
    for name in needed or ({model.main_input_name} if "input_ids" not in taken else ()):
        inputs[name] = _features(name, model.config)
    return inputs


def _features(name: str, config: transformers.PretrainedConfig) -> torch.Tensor:
    """Return an input of images or sound."""
    random = torch.Generator().manual_seed(1)
    if name == "pixel_values":
        parts = [config, *(getattr(config, part, None) for part in ("encoder", "vision_config"))]
        size = next(part.image_size for part in parts if hasattr(part, "image_size"))
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return torch.randn(1, 3, height, width, generator=random)
    if name == "input_features":
        bins = getattr(config, "num_mel_bins", None) or config.input_feat_per_channel
        frames = 2 * getattr(config, "max_source_positions", 50)
        return torch.randn((1, bins, frames) if config.model_type == "whisper" else (1, 100, bins), generator=random)
    return torch.randn(1, 4_000, generator=random)


def _check_that_head_counts(model: PreTrainedModel, before: list[torch.Tensor]) -> None:
    """Raise if the outputs are not finite, or do not depend on the head: comparing them would show nothing."""
    if not all(value.isfinite().all() for value in before):
        raise ValueError("outputs are not finite")
    head = model.get_output_embeddings()
    values, head.weight.data = head.weight.data, head.weight.data + 1.0
    after = logits(model)
    head.weight.data = values
    if _equal(before, after):
        raise ValueError("outputs do not depend on the head")


def _check_that_table_is_loaded(model: PreTrainedModel, folder: Path) -> None:
    """Raise if the library fills the table at random although the file has it, as version 5.24 does for a tied Funnel."""
    table = model.get_output_embeddings().weight
    stored = (load_file(file).values() for file in folder.glob("*.safetensors"))
    if not any(torch.equal(table, value) for values in stored for value in values):
        raise ValueError("the library does not load the table that it saved")


def _same(before: PreTrainedModel, expected: list[torch.Tensor], after: PreTrainedModel) -> bool:
    """Return whether another model computes the same.

    Some kernels round differently where arrays lie elsewhere in memory: logits may then differ by rounding, if all parameters
    are equal bit for bit.
    """
    found = logits(after)
    if _equal(expected, found):
        return True
    values = dict(before.named_parameters(remove_duplicate=False))
    others = dict(after.named_parameters(remove_duplicate=False))
    close = all(
        torch.allclose(one, other, rtol=1e-5, atol=1e-6 * one.abs().max()) for one, other in zip(expected, found, strict=True)
    )
    return close and values.keys() == others.keys() and all(torch.equal(value, others[name]) for name, value in values.items())


def _equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
