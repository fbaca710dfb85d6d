"""Names of the input and output tables in common model families, and the tying flag in their configurations."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.tables import DTYPES, HubTable, table

FLAG, TEXT = "tie_word_embeddings", "text_config."
BIAS_OF_BART = "final_logits_bias"  # [1, tokens]
FACTORISED = "factorised"  # key in the configuration of a checkpoint written by `tiejax factorise`
INPUT, OUTPUT = Field("input_table"), Field("output_table")
NORMED = "Layer normalisation follows the input table, so that the scale of its rows has no effect."
TRANSFORMED = "A separate dense layer precedes the output table, and can map hidden states to another space."
SCALED_LOGITS = (
    "Logits are divided by the square root of the width if the flag says tied, and not if it says untied, so that tied and "
    "untied models of this family differ in the scale of logits and in the norms of their tables. From version 5 on, the "
    "transformers library ties them whatever the flag says, and uses the flag only for this division."
)
SCALED_INPUT = (
    "Input embeddings are multiplied by the square root of the width before the first layer, output embeddings are not: "
    "the norms of the two uses are on different scales, even in a tied model."
)
ONLY_OUTPUT = "Only the output table is stored, and is used as the one table; loaders expect it under the input table's name."
# Suffixes of quantised weights, instead of `weight`.
QUANTISED = re.compile(r"(qweight|weight_packed|weight_scale|qzeros|SCB|absmax)$")
# Keys of a configuration that scale embeddings or logits, in any family.
SCALES = ("embedding_multiplier", "scale_emb", "logits_scaling", "logit_scale", "lm_head_multiplier", "final_logit_softcapping")


class Family(NamedTuple):
    """A family of models, and the names of its tables.

    types: `model_type` of its configurations. input, output: names of the tables, the likeliest first; each may have a prefix
    that ends in a dot. ties: the default of the flag, None if versions of the transformers library disagree. notes: properties
    of the family that the tables do not show. never: that library never ties it, whatever the flag says. always: from version 5
    on, that library always ties it, whatever the flag says.
    """

    title: str
    types: tuple[str, ...]
    input: tuple[str, ...]
    output: tuple[str, ...]
    ties: bool | None
    notes: tuple[str, ...] = ()
    never: bool = False
    always: bool = False


WORD, TOKENS, LM_HEAD = ("word_embeddings.weight",), ("embed_tokens.weight",), ("lm_head.weight",)
SHARED = ("shared.weight", "decoder.embed_tokens.weight", "encoder.embed_tokens.weight")
FAMILIES = (
    Family("BERT", ("bert",), WORD, ("cls.predictions.decoder.weight",), True, (NORMED, TRANSFORMED)),
    Family("DeBERTa", ("deberta-v2",), WORD, ("cls.predictions.decoder.weight",), True, (NORMED, TRANSFORMED)),
    Family("RemBERT", ("rembert",), WORD, ("cls.predictions.decoder.weight",), False, (NORMED, TRANSFORMED), never=True),
    Family("ALBERT", ("albert",), WORD, ("predictions.decoder.weight",), True, (NORMED, TRANSFORMED)),
    Family("DistilBERT", ("distilbert",), WORD, ("vocab_projector.weight",), True, (NORMED, TRANSFORMED)),
    Family("ELECTRA", ("electra",), WORD, ("generator_lm_head.weight",), True, (NORMED, TRANSFORMED)),
    Family(
        "RoBERTa",
        ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert"),
        WORD,
        ("lm_head.decoder.weight",),
        True,
        (NORMED, TRANSFORMED),
    ),
    Family("ModernBERT", ("modernbert",), ("tok_embeddings.weight",), ("decoder.weight",), True, (NORMED, TRANSFORMED)),
    Family("GPT-2", ("gpt2",), ("wte.weight",), LM_HEAD, True),
    Family("GPT-Neo", ("gpt_neo",), ("wte.weight",), LM_HEAD, True),
    Family("GPT-J", ("gptj",), ("wte.weight",), LM_HEAD, False),
    Family("NeoX (Pythia)", ("gpt_neox",), ("embed_in.weight",), ("embed_out.weight",), False),
    Family("Llama", ("llama", "mistral", "mixtral", "phi", "phi3"), TOKENS, LM_HEAD, False),
    Family("Qwen", ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), TOKENS, LM_HEAD, False),
    Family(
        "Gemma", ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"), TOKENS, LM_HEAD, True, (SCALED_INPUT,)
    ),
    Family("SmolLM3", ("smollm3",), TOKENS, LM_HEAD, True),
    Family("Cohere", ("cohere", "cohere2"), TOKENS, LM_HEAD, True),
    Family("Mamba", ("mamba",), ("embeddings.weight",), LM_HEAD, True),
    Family("OLMo", ("olmo", "olmo2", "olmo3", "olmoe"), TOKENS, LM_HEAD, False),
    Family("OPT", ("opt",), TOKENS, LM_HEAD, True),
    Family("BLOOM", ("bloom",), WORD, LM_HEAD, True, (NORMED,)),
    Family("Falcon", ("falcon",), WORD, LM_HEAD, True),
    Family("T5", ("t5",), SHARED, LM_HEAD, True, (SCALED_LOGITS,), always=True),
    Family("mT5", ("mt5", "umt5"), SHARED, LM_HEAD, None, (SCALED_LOGITS,), always=True),
    Family("BART", ("bart", "mbart"), SHARED, LM_HEAD, True, (NORMED,)),
)


class Flag(NamedTuple):
    """The tying flag of a configuration. tied: None if unknown. where: the source of the value, in words."""

    tied: bool | None
    where: str


class Tables(NamedTuple):
    """The input and output tables of a checkpoint, and related facts.

    family: title of the family, None if `model_type` is unknown. output: None if no output table is stored. bias: the tensor
    added to the logits, if any. head: False if the architecture predicts no tokens. notes: facts that the tables do not show.
    quantised: whether the output table is stored in a quantised form, which is not read.
    """

    family: str | None
    input: HubTable
    output: HubTable | None
    bias: str | None
    flag: Flag
    head: bool
    notes: tuple[str, ...]
    quantised: bool = False


def find_tables(checkpoint: Checkpoint, input_table: str | None = None, output_table: str | None = None) -> Tables:
    """Find the tables of a checkpoint, by the names of its family or by the given names.

    Raises CheckpointError if no tensor or several tensors match, or if the shapes do not fit.
    """
    if input_table is None:
        check_whole(checkpoint)
    config = checkpoint.config
    family = family_of(config)
    inputs = [family.input] if family else [other.input for other in FAMILIES]
    outputs = [family.output] if family else [other.output for other in FAMILIES]
    name = input_table or _name_of_only(checkpoint, named(checkpoint, inputs), "input")
    more: tuple[str, ...] = ()
    if name is None and (name := _name_of_only(checkpoint, named(checkpoint, outputs), "output")):
        more = (ONLY_OUTPUT,)
    if name is None:
        raise _no_input(checkpoint)
    tokens = text_part(config).get("vocab_size")
    first = table(checkpoint, name, INPUT, tokens if isinstance(tokens, int) else None)
    if output_table is not None and output_table == name:
        raise CheckpointError(OUTPUT, f" {output_table}: is the input table; omit it if no output table is stored")
    rows = first.shape[0]
    others = [tensor for tensor in named(checkpoint, outputs) if tensor.name != name]
    fitting = [tensor for tensor in others if rows in tensor.shape]
    # A head of the wrong shape is still a head: raise an error below rather than report the model as tied.
    other = output_table or _name_of_only(checkpoint, fitting or (others if family else []), "output")
    second = table(checkpoint, other, OUTPUT, rows) if other else None
    if second is not None and output_table is None and second.shape[0] > rows and second.shape[1] == first.shape[1]:
        more += (
            f"The output table has {second.shape[0] - rows:,} more rows than the input table, for padding, which are ignored.",
        )
        second = second.cut(rows)
    if second is not None and second.shape[0] != rows:
        raise CheckpointError(
            OUTPUT,
            f" {second.name}: the shape is {list(second.tensor.shape)}, that of the input table {name} is "
            f"{list(first.tensor.shape)}; both need one row per token: name the right tensors with ",
            INPUT,
            " and ",
            OUTPUT,
        )
    notes = (*(family.notes if family else ()), *_scales(config), *more)
    heads = [second.name] if second else [wanted for family_names in outputs for wanted in family_names]
    bias = bias_of(checkpoint, heads, rows)
    in_other_form = second is None and has_quantised_head(checkpoint, outputs)
    title = family.title if family else None
    return Tables(title, first, second, bias, flag_of(config), predicts(config), notes, in_other_form)


def check_whole(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if a table is stored as factors, since the other table might be mistaken for the only one."""
    if isinstance(checkpoint.config.get(FACTORISED), dict):
        raise CheckpointError(
            f"{checkpoint.folder}: its tables are factorised (`{FACTORISED}` in config.json); name the checkpoint that it was "
            "written from"
        )


def has_quantised_head(checkpoint: Checkpoint, outputs: Sequence[Sequence[str]]) -> bool:
    """Return whether a quantised output table is stored under one of these names."""
    stems = {wanted.removesuffix("weight") for names in outputs for wanted in names}
    return any(
        QUANTISED.search(name) and any(name.startswith(stem) or f".{stem}" in name for stem in stems)
        for name in checkpoint.tensors
    )


def family_of(config: dict[str, Any]) -> Family | None:
    """Return the family for the `model_type` of a configuration or of its text model, None if unknown."""
    types = [part.get("model_type") for part in (config, text_part(config))]
    return next((family for kind in types for family in FAMILIES if kind in family.types), None)


def flag_of(config: dict[str, Any]) -> Flag:
    """Return the tying flag of a configuration, or its family's default."""
    for where, part in levels(config).items():
        if isinstance(part.get(FLAG), bool):
            return Flag(part[FLAG], f"{where}{FLAG}: {str(part[FLAG]).lower()}")
    family = family_of(config)
    if family is None or family.ties is None:
        return Flag(None, f"no {FLAG}, and no known default for this model")
    return Flag(family.ties, f"no {FLAG}; the default of {family.title} is {str(family.ties).lower()}")


def levels(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parts of a configuration that may contain the flag, outermost first, by prefix ("" or "text_config.")."""
    part = config.get("text_config")
    return {"": config} | ({TEXT: part} if isinstance(part, dict) else {})


def with_flag(config: dict[str, Any], tied: bool) -> dict[str, Any]:
    """Return a configuration whose flag is `tied` at every level at which a loader may read it."""
    inner = {where.rstrip("."): {**part, FLAG: tied} for where, part in levels(config).items() if where}
    return {**config, **inner, FLAG: tied}


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that describes the text model."""
    return levels(config).get(TEXT, config)


def called(name: str, wanted: str) -> bool:
    """Return whether a tensor has the wanted name, possibly with a prefix that ends in a dot."""
    return name == wanted or name.endswith(f".{wanted}")


def named(checkpoint: Checkpoint, names: Sequence[Sequence[str]]) -> list[Tensor]:
    """Return the matrices with a name of any family; of a family's names, only the first that occurs counts."""
    matrices: dict[str, Tensor] = {}
    for family_names in names:
        for wanted in family_names:
            hits = {
                name: tensor for name, tensor in checkpoint.tensors.items() if called(name, wanted) and len(tensor.shape) == 2
            }
            if hits:
                matrices |= hits
                break
    return list(matrices.values())


def only(checkpoint: Checkpoint, candidates: Sequence[Tensor], role: str, *remedy: str) -> Tensor | None:
    """Return the only candidate, None if there is none; raises CheckpointError, with a remedy, if there are several."""
    if len(candidates) > 1:
        shown = ", ".join(_shown(tensor) for tensor in candidates[:5]) + (", ..." if len(candidates) > 5 else "")
        raise CheckpointError(f"{checkpoint.folder}: several tensors may be the {role} table", *remedy, f": {shown}")
    return candidates[0] if candidates else None


def _name_of_only(checkpoint: Checkpoint, candidates: Sequence[Tensor], role: str) -> str | None:
    found = only(checkpoint, candidates, role, "; name one with ", Field(f"{role}_table"))
    return None if found is None else found.name


def _shown(tensor: Tensor) -> str:
    return f"{tensor.name} {list(tensor.shape)}"


def _no_input(checkpoint: Checkpoint) -> CheckpointError:
    matrices = [tensor for tensor in checkpoint.tensors.values() if len(tensor.shape) == 2 and tensor.dtype in DTYPES]
    tall = sorted(matrices, key=lambda tensor: -max(tensor.shape))[:3]
    shown = f" (the longest matrices: {', '.join(map(_shown, tall))})" if tall else ""
    message = f"{checkpoint.folder}: no tensor has one of the usual names of an input table; name it with "
    return CheckpointError(message, INPUT, shown)


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


def predicts(config: dict[str, Any]) -> bool:
    """Return whether the architecture predicts tokens; True if the configuration names none."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        return True
    return any(re.search("MaskedLM|CausalLM|LMHead|ConditionalGeneration|PreTraining", str(name)) for name in names)


def _scales(config: dict[str, Any]) -> tuple[str, ...]:
    text = text_part(config)
    scales = [f"{key} {text[key]}" for key in SCALES if isinstance(text.get(key), int | float) and text[key] != 1]
    return (f"config.json scales embeddings or logits ({', '.join(scales)}), which the tables do not show.",) if scales else ()
