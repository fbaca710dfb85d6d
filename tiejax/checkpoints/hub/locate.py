"""Which tensors of a checkpoint are its embedding tables and the bias of its logits, by the names in its architecture."""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Literal

from tiejax.checkpoints.hub.architectures import Architecture, architecture_of, unusual
from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import text_part
from tiejax.checkpoints.hub.tables import DTYPES

FACTORISED = "factorised"  # key in the configuration of a checkpoint written by `tiejax factorise`
MOST_SHOWN = 5
# Parts of names that are not the model's: of torch.compile, FSDP, activation checkpointing, DataParallel and PEFT.
INNER = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
OUTER = re.compile(r"^(module\.|base_model\.model\.)+")
LAYER = re.compile(r"(.*?\.\d+\.)(.+)")  # a name in a layer: its prefix, and the rest
WRAPPERS = re.compile(f"({INNER.pattern}|module\\.|base_model\\.model\\.)+")
Role = Literal["input", "output"]
# What follows a tensor's name without `weight`, if its values are stored in another form, and the form. The first match counts.
FORMS = (
    (r"token_adapter\..*", "with trained tokens of an adapter"),
    (r"base_layer\..*|lora_.*", "with a LoRA adapter"),
    (r"modules_to_save\..*|original_module\..*", "as modules_to_save of an adapter"),
    (r"weight\.quant_state\.bitsandbytes__(nf4|fp4)", "as {} of bitsandbytes"),
    (r"weight\.(absmax|quant_map|nested_absmax|nested_quant_map)|SCB|weight_format", "quantised by bitsandbytes"),
    (r"qweight|qzeros|g_idx", "quantised as by GPTQ or AWQ"),
    (r"weight_packed|weight_shape|weight_zero_point", "packed as by compressed-tensors"),
    (r"(weight_)?blocks", "as mxfp4 blocks with scales"),
    (r"weight_scale(_inv|_2)?|(weight_|input_|output_)?scales?|W_q|qscale.*", "quantised with scales"),
    (r"(?!(\w*norm\.)?(weight|bias)$).*", "in another form"),
)
BIAS_OF_BART = "final_logits_bias"  # [1, tokens]
# First parts of the names of tensors that are not in the base model, other than output tables.
HEADS = {
    *("cls", "entity_predictions", BIAS_OF_BART, "generator_lm_head", "generator_predictions", "head", "lm_head", "mlm_score"),
    *("multiple_choice_head", "post_projection", "pre_projection", "predictions", "projection_head", "sop_classifier"),
    *("text_decoder_postnet", "vocab_layer_norm", "vocab_transform", "word_timestamp_head"),
    *("classifier", "qa_outputs", "score", "v_head"),
}


def located(checkpoint: Checkpoint, names: Sequence[str], prefix: str = "") -> Tensor | None:
    """Return the matrix with the first of these names that a matrix of the file has, None if none does.

    A file may lack the prefix of the base model, and all its names may begin with another one.
    """
    found = (tensor for tensor in spelled_so(checkpoint, names, prefix) if len(tensor.shape) == 2)
    return next(found, None)


def spelled_so(checkpoint: Checkpoint, names: Sequence[str], prefix: str) -> Iterator[Tensor]:
    """Yield the tensors with one of these names, as `located` finds them."""
    actual = plain_names(tuple(checkpoint.tensors))
    for wanted in names:
        for spelled in _spellings(checkpoint, wanted, prefix):
            if spelled in actual:
                yield checkpoint.tensors[actual[spelled]]


def _spellings(checkpoint: Checkpoint, name: str, prefix: str) -> list[str]:
    """Return the names, without parts of wrappers, that a tensor may have in a file whose names all begin in some way."""
    common = _common(tuple(checkpoint.tensors))
    bare = name.removeprefix(f"{prefix}.") if prefix else name
    return list(dict.fromkeys((name, common + name, bare, common + bare)))


def plain(name: str) -> str:
    """Return the name that a tensor has without the parts that a compiler, or a wrapper for training, added to it."""
    return OUTER.sub("", INNER.sub("", name))


def wrapped(checkpoint: Checkpoint) -> list[str]:
    """Return the names with parts of wrappers, which loaders do not find."""
    return [name for name in checkpoint.tensors if plain(name) != name]


def wrapper_of(name: str) -> str:
    """Return the first parts of a wrapper in a name."""
    found = WRAPPERS.search(name)
    return found[0] if found else ""


@functools.lru_cache(maxsize=8)
def plain_names(names: tuple[str, ...]) -> dict[str, str]:
    """Return the names of a file, by the names without parts of wrappers; of two, the one that has none."""
    return {plain(name): name for name in names} | {name: name for name in names if plain(name) == name}


@functools.lru_cache(maxsize=8)
def _common(names: tuple[str, ...]) -> str:
    """Return the parts up to a dot with which all names begin, after those of wrappers."""
    if not names:  # of a known architecture, but in no downloaded shard
        return ""
    known = plain_names(names)
    first, last = (name.split(".")[:-1] for name in (min(known), max(known)))
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(f"{part}." for part, _ in same)


def missing_block(checkpoint: Checkpoint, block: str) -> str | None:
    """Return the name of a tensor that a layer lacks although a layer of the same kind stores it, None if there is none.

    block: the name of the tensor in its layer. Layers are of the same kind if their other modules have the same names.
    """
    layers: dict[str, set[str]] = {}
    for name in checkpoint.tensors:
        if found := LAYER.match(name):
            layers.setdefault(found[1], set()).add(found[2])
    others = {layer: {name.split(".")[0] for name in names} - {block.split(".")[0]} for layer, names in layers.items()}
    storing = [others[layer] for layer, names in layers.items() if block in names]
    return next((layer + block for layer, names in layers.items() if block not in names and others[layer] in storing), None)


def called(name: str, wanted: str) -> bool:
    """Return whether a tensor has the wanted name, possibly with a prefix that ends in a dot."""
    return name == wanted or name.endswith(f".{wanted}")


def extra_prefix(architecture: Architecture, table: Tensor) -> str:
    """Return what precedes the name that the library gives a table, without parts of wrappers, "" if nothing does.

    The name without the prefix of the base model is one of the library's as well.
    """
    own = plain(table.name)
    known = {*architecture.tables} | {name.removeprefix(f"{architecture.prefix}.") for name in architecture.tables}
    name = max((name for name in known if called(own, name)), key=len, default=own)
    return own.removesuffix(name)


def read_by_all(checkpoint: Checkpoint, architecture: Architecture, tables: Sequence[Tensor]) -> str | None:
    """Return in words why only version 5 of the library finds a table by its name, None if both do, or none does."""
    prefix = f"{architecture.prefix}."
    if len(prefix) == 1:
        return None
    for table in tables:
        if extra_prefix(architecture, table) == prefix:
            return f"version 5 of the transformers library removes {prefix} from {table.name}, version 4 does not find it"
    headed = any(of_head(architecture, name) for name in checkpoint.tensors)
    if headed and any(lacks_prefix(checkpoint, architecture, table) for table in tables):
        return f"names lack {prefix}, although the file has a head: version 4 of the transformers library refuses it"
    return None


def lacks_prefix(checkpoint: Checkpoint, architecture: Architecture, table: Tensor) -> bool:
    """Return whether no name has the prefix of the base model, which that of a table should have, as in a file of it alone."""
    prefix, own = f"{architecture.prefix}.", plain(table.name)
    known = prefix + own in architecture.tables and own not in architecture.tables
    return known and not any(plain(name).startswith(prefix) for name in checkpoint.tensors)


def of_head(architecture: Architecture, name: str) -> bool:
    """Return whether a tensor of a file without the prefix of the base model is in the head."""
    own = plain(name)
    return own.split(".")[0] in HEADS or any(own.startswith(table.removesuffix("weight")) for table in architecture.output)


def candidates(checkpoint: Checkpoint) -> str:
    """Return the names and shapes of the first few matrices that may be tables, "" if there are none.

    They are those with a row or a column for each token, or else the longest ones.
    """
    tokens = text_part(checkpoint.config).get("vocab_size")
    matrices = [tensor for tensor in checkpoint.tensors.values() if len(tensor.shape) == 2 and tensor.dtype in DTYPES]
    fitting = [tensor for tensor in matrices if isinstance(tokens, int) and tokens in tensor.shape]
    found = fitting or sorted(matrices, key=lambda tensor: -max(tensor.shape))[:3]
    texts = [f"{tensor.name} {list(tensor.shape)}" for tensor in found[:MOST_SHOWN]]
    return ", ".join(texts) + (", ..." if len(found) > MOST_SHOWN else "")


def stored_under(checkpoint: Checkpoint, architecture: Architecture, tensor: Tensor, wanted: str) -> str:
    """Return the name of another table of a checkpoint, with the prefix of the given table and that of a wrapper of all names.

    tensor: a table of the checkpoint. wanted: the name of the other table in a file of the library.
    """
    known, own = (*architecture.input, *architecture.output, *architecture.kept), plain(tensor.name)
    bare = {name.removeprefix(f"{architecture.prefix}.") for name in known}
    name = next((name for names in (known, bare) for name in sorted(names, key=len)[::-1] if called(own, name)), own)
    target = own.removesuffix(name) + wanted
    wrapper = WRAPPERS.match(tensor.name)
    outer = wrapper[0] if wrapper and all(name.startswith(wrapper[0]) for name in checkpoint.tensors) else ""
    return plain_names(tuple(checkpoint.tensors)).get(target, outer + target)


def unknown(checkpoint: Checkpoint) -> str:
    """Return in words that the architecture of a checkpoint is unknown, and which tensors may be its tables."""
    config = checkpoint.config
    names = config.get("architectures")
    named = ", ".join(map(str, names)) if isinstance(names, list) and names else None
    what = f"the architecture {named}" if named else f"the model_type {config.get('model_type')!r}"
    what += f", whose {setting}," if (setting := unusual(config)) else ""
    may_be = candidates(checkpoint)
    return f"{what} is not known" + (f"; tensors that may be tables: {may_be}" if may_be else "")


def locate(checkpoint: Checkpoint, architecture: Architecture | None, role: Role) -> Tensor | None:
    """Return the table of a role by the names of the architecture, None if there is none or the architecture is unknown."""
    return located(checkpoint, getattr(architecture, role), architecture.prefix) if architecture else None


def form_of_tables(checkpoint: Checkpoint, architecture: Architecture | None) -> str | None:
    """Return in words how a table is stored if not as numbers alone, None if none is, or if the architecture is unknown.

    That is, quantised or with an adapter: its values do not follow from one tensor. Any tensor of the table's module but a
    weight, a bias and a normalisation means that.
    """
    if architecture is None:
        return None
    names = dict.fromkeys((*architecture.input, *architecture.output, *architecture.kept, *architecture.inner))
    spelled = (one for name in names for one in _spellings(checkpoint, name, architecture.prefix))
    stems, actual = [one.removesuffix("weight") for one in spelled], plain_names(tuple(checkpoint.tensors))
    rests = [(name[len(stem) :], actual[name]) for stem in stems for name in actual if name.startswith(stem)]
    for pattern, words in FORMS:
        for rest, name in rests:
            if match := re.fullmatch(pattern, rest):
                return f"{words.format(*match.groups())} ({name})"
    for weight in (checkpoint.tensors[name] for rest, name in rests if rest == "weight"):
        if weight.dtype not in DTYPES or len(weight.shape) != 2:
            return f"as {weight.dtype}{'' if len(weight.shape) == 2 else f' of the shape {list(weight.shape)}'} ({weight.name})"
    return None


def check_whole(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if a table is stored as factors or is empty, or under two names.

    The other table might be mistaken for the only one.
    """
    if isinstance(checkpoint.config.get(FACTORISED), dict):
        raise CheckpointError(
            f"{checkpoint.folder}: its tables are factorised (`{FACTORISED}` in config.json); name the checkpoint that it was "
            "written from"
        )
    architecture = architecture_of(checkpoint.config)
    if architecture is None:
        return
    for tensor in spelled_so(checkpoint, architecture.tables, architecture.prefix):
        if 0 in tensor.shape:
            raise CheckpointError(
                f"{checkpoint.folder}: {tensor.name} has the shape {list(tensor.shape)}: the tables were not gathered when "
                "this was saved; gather them (with DeepSpeed ZeRO-3: zero_to_fp32.py) and save it again"
            )
    for wanted in architecture.tables:
        found = list(dict.fromkeys(tensor.name for tensor in spelled_so(checkpoint, [wanted], architecture.prefix)))
        if len(found) > 1:
            raise CheckpointError(
                f"{checkpoint.folder}: {' and '.join(found)} are two spellings of one tensor, of which versions of the "
                "transformers library read different ones; remove one of them"
            )


def bias_of(checkpoint: Checkpoint, heads: Sequence[str], rows: int) -> str | None:
    """Return the name of the tensor added to the logits, None if there is none.

    heads: possible names of the output table, even if it is tied and not stored. rows: number of its rows.
    """
    own = [head.removesuffix("weight") + "bias" for head in heads]
    # BERT-like models also have a bias one level up. In a tied model it is the decoder's bias; in an untied one it is unused.
    above = [name.removesuffix("decoder.bias") + "bias" for name in own if name.endswith(".decoder.bias")]
    for wanted in (*own, *above, BIAS_OF_BART):
        for name, tensor in checkpoint.tensors.items():
            if tensor.shape in ((rows,), (1, rows)) and called(name, wanted):
                return name
    return None
