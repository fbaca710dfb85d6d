"""Which tensors of a checkpoint are its embedding tables, by the names that its architecture gives them."""

import functools
import itertools
import re
from collections.abc import Sequence
from typing import Literal

from tiejax.checkpoints.hub.architectures import Architecture
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import text_part
from tiejax.checkpoints.hub.tables import DTYPES

FACTORISED = "factorised"  # key in the configuration of a checkpoint written by `tiejax factorise`
MOST_SHOWN = 5
Role = Literal["input", "output"]
# What follows a tensor's name without `weight`, if its values are stored in another form, and the form. The first match counts.
FORMS = (
    (r"base_layer\..*|lora_.*", "with a LoRA adapter"),
    (r"modules_to_save\..*|original_module\..*", "as modules_to_save of an adapter"),
    (r"weight\.quant_state\.bitsandbytes__(nf4|fp4)", "as {} of bitsandbytes"),
    (r"weight\.(absmax|quant_map|nested_absmax|nested_quant_map)|SCB|weight_format", "quantised by bitsandbytes"),
    (r"qweight|qzeros|g_idx", "quantised as by GPTQ or AWQ"),
    (r"weight_packed|weight_shape|weight_zero_point", "packed as by compressed-tensors"),
    (r"(weight_)?blocks", "as mxfp4 blocks with scales"),
    (r"weight_scale(_inv|_2)?|(weight_|input_|output_)?scales?|W_q|qscale.*", "quantised with scales"),
)


def located(checkpoint: Checkpoint, names: Sequence[str], prefix: str = "") -> Tensor | None:
    """Return the matrix with the first of these names that a matrix of the file has, None if none does.

    A file may lack the prefix of the base model, and all its names may begin with another one.
    """
    for wanted in names:
        for spelled in _spellings(checkpoint, wanted, prefix):
            tensor = checkpoint.tensors.get(spelled)
            if tensor is not None and len(tensor.shape) == 2:
                return tensor
    return None


def _spellings(checkpoint: Checkpoint, name: str, prefix: str) -> list[str]:
    """Return the names that a tensor may have in a file whose names all begin in some way."""
    common = _common(tuple(checkpoint.tensors))
    bare = name.removeprefix(f"{prefix}.") if prefix else name
    return list(dict.fromkeys((name, common + name, bare, common + bare)))


@functools.lru_cache(maxsize=8)
def _common(names: tuple[str, ...]) -> str:
    """Return the parts up to a dot with which all names begin."""
    if not names:  # of a known architecture, but in no downloaded shard
        return ""
    first, last = (name.split(".")[:-1] for name in (min(names), max(names)))
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(f"{part}." for part, _ in same)


def called(name: str, wanted: str) -> bool:
    """Return whether a tensor has the wanted name, possibly with a prefix that ends in a dot."""
    return name == wanted or name.endswith(f".{wanted}")


def form_of(checkpoint: Checkpoint, names: Sequence[str], prefix: str = "") -> str | None:
    """Return in words how a table with one of these names is stored if not as numbers alone, None if it is not.

    That is, quantised or with an adapter: its values do not follow from one tensor.
    """
    stems = [spelled.removesuffix("weight") for name in names for spelled in _spellings(checkpoint, name, prefix)]
    rests = {name[len(stem) :]: name for stem in stems for name in checkpoint.tensors if name.startswith(stem)}
    for pattern, words in FORMS:
        for rest, name in rests.items():
            if match := re.fullmatch(pattern, rest):
                return f"{words.format(*match.groups())} ({name})"
    for rest, name in rests.items():
        dtype = checkpoint.tensors[name].dtype
        if rest == "weight" and dtype not in DTYPES and len(checkpoint.tensors[name].shape) == 2:
            return f"as {dtype} ({name})"
    return None


def shown(tensors: Sequence[Tensor]) -> str:
    """Return the names and shapes of the first few tensors."""
    texts = [f"{tensor.name} {list(tensor.shape)}" for tensor in tensors[:MOST_SHOWN]]
    return ", ".join(texts) + (", ..." if len(tensors) > MOST_SHOWN else "")


def candidates(checkpoint: Checkpoint) -> list[Tensor]:
    """Return the matrices that may be tables: those with a row or a column for each token, or else the longest ones."""
    tokens = text_part(checkpoint.config).get("vocab_size")
    matrices = [tensor for tensor in checkpoint.tensors.values() if len(tensor.shape) == 2 and tensor.dtype in DTYPES]
    fitting = [tensor for tensor in matrices if isinstance(tokens, int) and tokens in tensor.shape]
    return fitting or sorted(matrices, key=lambda tensor: -max(tensor.shape))[:3]


def stored_under(checkpoint: Checkpoint, architecture: Architecture, tensor: Tensor, wanted: str) -> str:
    """Return the name of another table of a checkpoint, with the prefix that all names of the file have in addition, if any.

    tensor: a table of the checkpoint. wanted: the name of the other table in a file of the library.
    """
    names = (*architecture.input, *architecture.output)
    common = _common(tuple(checkpoint.tensors))
    exact = any(tensor.name in (name, name.removeprefix(f"{architecture.prefix}.")) for name in names)
    return wanted if exact else common + wanted


def unknown(checkpoint: Checkpoint) -> str:
    """Return in words that the architecture of a checkpoint is unknown, and which tensors may be its tables."""
    config = checkpoint.config
    names = config.get("architectures")
    named = ", ".join(map(str, names)) if isinstance(names, list) and names else None
    what = f"the architecture {named}" if named else f"the model_type {config.get('model_type')!r}"
    found = candidates(checkpoint)
    return f"{what} is not known" + (f"; tensors that may be tables: {shown(found)}" if found else "")


def locate(checkpoint: Checkpoint, architecture: Architecture | None, role: Role) -> Tensor | None:
    """Return the table of a role by the names of the architecture, None if there is none or the architecture is unknown."""
    return located(checkpoint, getattr(architecture, role), architecture.prefix) if architecture else None


def form_of_tables(checkpoint: Checkpoint, architecture: Architecture | None) -> str | None:
    """Return in words how a table is stored if not as numbers alone, as `form_of` does."""
    names = () if architecture is None else (architecture.input, architecture.output)
    return next((form for of in names if architecture and (form := form_of(checkpoint, of, architecture.prefix))), None)


def check_whole(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if a table is stored as factors, since the other table might be mistaken for the only one."""
    if isinstance(checkpoint.config.get(FACTORISED), dict):
        raise CheckpointError(
            f"{checkpoint.folder}: its tables are factorised (`{FACTORISED}` in config.json); name the checkpoint that it was "
            "written from"
        )
