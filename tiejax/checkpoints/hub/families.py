"""Where the common families of models keep their input and output tables, and what their configuration says of them."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tiejax.checkpoints.hub.checkpoint import Checkpoint, Tensor
from tiejax.checkpoints.hub.errors import CheckpointError, Field
from tiejax.checkpoints.hub.tables import DTYPES, HubTable, table

FLAG, TEXT = "tie_word_embeddings", "text_config."
BIAS_OF_BART = "final_logits_bias"  # [1, tokens]
FACTORISED = "factorised"  # key of a configuration whose tables `tiejax factorise` has stored as factors
INPUT, OUTPUT = Field("input_table"), Field("output_table")
NORMED = "Layer normalisation follows the input table, so that the scale of its rows is lost on the way into the model."
TRANSFORMED = "A dense layer of its own stands before the output table, and can turn hidden states into another space."
SCALED_LOGITS = (
    "Where the flag says tied, logits are divided by the square root of the width; where it says untied, they are not. "
    "Tied and untied models of this family so differ in scale as well, and the norms of their tables with it. From version 5 "
    "on the transformers library ties them whatever the flag says, and reads it as this division alone."
)
SCALED_INPUT = (
    "Input embeddings are multiplied by the square root of the width before the first layer, output embeddings are not: "
    "the norms of the two tables are on different scales, also in a tied model."
)
ONLY_OUTPUT = "Only the output table is stored, and is looked at as the one table; loaders look for it under the input's name."
# How quantised weights are called, in place of `weight`.
QUANTISED = re.compile(r"(qweight|weight_packed|weight_scale|qzeros|SCB|absmax)$")
# Keys of a configuration that scale embeddings or logits, whatever the family.
SCALES = ("embedding_multiplier", "scale_emb", "logits_scaling", "logit_scale", "lm_head_multiplier", "final_logit_softcapping")


class Family(NamedTuple):
    """The names of a family's tables, the likeliest first; each may stand behind a prefix and a dot.

    types: `model_type` of its configurations. ties: what a configuration without the flag means, None where versions of the
    library disagree. notes: what its tables have between them and the model, which no table shows. never: the library ties
    nothing, whatever the flag says. always: from version 5 on it ties, whatever the flag says.
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
    """What the configuration says: tied or not, None where it is unknown; and where that stands."""

    tied: bool | None
    where: str


class Tables(NamedTuple):
    """The input table of a checkpoint and its output table, None if none is stored; what is known around them.

    family: None if `model_type` is unknown. bias: the tensor that adds to the logits of each token, where there is one.
    head: False if the checkpoint's architecture predicts no tokens at all. quantised: the output table is stored in a form that
    is not read.
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
    """Return the tables of a checkpoint, found by its family's names or, where given, by their own.

    Raises CheckpointError where there is none, or several, or where the shapes do not fit each other.
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
        raise CheckpointError(OUTPUT, f" {output_table}: is the input table itself; leave it out if no other is stored")
    rows = first.shape[0]
    others = [tensor for tensor in named(checkpoint, outputs) if tensor.name != name]
    fitting = [tensor for tensor in others if rows in tensor.shape]
    # A head whose shape does not fit is still the head: better to say so than to call the model tied.
    other = output_table or _name_of_only(checkpoint, fitting or (others if family else []), "output")
    second = table(checkpoint, other, OUTPUT, rows) if other else None
    if second is not None and output_table is None and second.shape[0] > rows and second.shape[1] == first.shape[1]:
        more += (
            f"The output table has {second.shape[0] - rows:,} rows more than the input table, for padding: left out here.",
        )
        second = second.cut(rows)
    if second is not None and second.shape[0] != rows:
        raise CheckpointError(
            OUTPUT,
            f" {second.name}: is {list(second.tensor.shape)}, the input table {name} {list(first.tensor.shape)}: "
            "both need one row per token; name the right ones by ",
            INPUT,
            " and ",
            OUTPUT,
        )
    notes = (*(family.notes if family else ()), *_scales(config), *more)
    heads = [second.name] if second else [wanted for of_family in outputs for wanted in of_family]
    bias = bias_of(checkpoint, heads, rows)
    in_other_form = second is None and has_quantised_head(checkpoint, outputs)
    title = family.title if family else None
    return Tables(title, first, second, bias, flag_of(config), predicts(config), notes, in_other_form)


def check_whole(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError where tables are stored as factors, whose other table might be taken for the only one."""
    if isinstance(checkpoint.config.get(FACTORISED), dict):
        raise CheckpointError(
            f"{checkpoint.folder}: its tables are factorised (`{FACTORISED}` in config.json), and are not stored whole; "
            "name the checkpoint that it was made from"
        )


def has_quantised_head(checkpoint: Checkpoint, outputs: Sequence[Sequence[str]]) -> bool:
    """Say whether a head is there in a quantised form, under one of these names of output tables."""
    stems = {wanted.removesuffix("weight") for names in outputs for wanted in names}
    return any(
        QUANTISED.search(name) and any(name.startswith(stem) or f".{stem}" in name for stem in stems)
        for name in checkpoint.tensors
    )


def family_of(config: dict[str, Any]) -> Family | None:
    """Return the family that a configuration's `model_type`, or that of its text model, names."""
    types = [part.get("model_type") for part in (config, text_part(config))]
    return next((family for kind in types for family in FAMILIES if kind in family.types), None)


def flag_of(config: dict[str, Any]) -> Flag:
    """Return what a configuration says of tying, by its flag or by its family's default."""
    for where, part in levels(config).items():
        if isinstance(part.get(FLAG), bool):
            return Flag(part[FLAG], f"{where}{FLAG}: {str(part[FLAG]).lower()}")
    family = family_of(config)
    if family is None or family.ties is None:
        return Flag(None, f"no {FLAG}, and no default is known for this model")
    return Flag(family.ties, f"no {FLAG}; the default of {family.title} is {str(family.ties).lower()}")


def levels(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parts of a configuration in which its flag may stand, the whole first, by what stands before the flag."""
    part = config.get("text_config")
    return {"": config} | ({TEXT: part} if isinstance(part, dict) else {})


def with_flag(config: dict[str, Any], tied: bool) -> dict[str, Any]:
    """Return a configuration whose flag is `tied` at every level at which a loader may read it."""
    inner = {where.rstrip("."): {**part, FLAG: tied} for where, part in levels(config).items() if where}
    return {**config, **inner, FLAG: tied}


def text_part(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that is about the text model."""
    return levels(config).get(TEXT, config)


def called(name: str, wanted: str) -> bool:
    """Say whether a tensor has a name, alone or behind a prefix and a dot."""
    return name == wanted or name.endswith(f".{wanted}")


def named(checkpoint: Checkpoint, names: Sequence[Sequence[str]]) -> list[Tensor]:
    """Return the matrices under any of the families' names; within a family, under its first that occurs."""
    matrices: dict[str, Tensor] = {}
    for of_family in names:
        for wanted in of_family:
            hits = {
                name: tensor for name, tensor in checkpoint.tensors.items() if called(name, wanted) and len(tensor.shape) == 2
            }
            if hits:
                matrices |= hits
                break
    return list(matrices.values())


def only(checkpoint: Checkpoint, candidates: Sequence[Tensor], role: str, *remedy: str) -> Tensor | None:
    """Return the only candidate, None if there is none; raises CheckpointError, with the remedy, if there are several."""
    if len(candidates) > 1:
        shown = ", ".join(_shown(tensor) for tensor in candidates[:5]) + (", ..." if len(candidates) > 5 else "")
        raise CheckpointError(f"{checkpoint.folder}: several tensors may be the {role} table", *remedy, f": {shown}")
    return candidates[0] if candidates else None


def _name_of_only(checkpoint: Checkpoint, candidates: Sequence[Tensor], role: str) -> str | None:
    found = only(checkpoint, candidates, role, "; name one by ", Field(f"{role}_table"))
    return None if found is None else found.name


def _shown(tensor: Tensor) -> str:
    return f"{tensor.name} {list(tensor.shape)}"


def _no_input(checkpoint: Checkpoint) -> CheckpointError:
    matrices = [tensor for tensor in checkpoint.tensors.values() if len(tensor.shape) == 2 and tensor.dtype in DTYPES]
    tall = sorted(matrices, key=lambda tensor: -max(tensor.shape))[:3]
    shown = f" (the longest matrices: {', '.join(map(_shown, tall))})" if tall else ""
    nowhere = f"{checkpoint.folder}: no tensor has a usual name of an input table; name it by "
    return CheckpointError(nowhere, INPUT, shown)


def bias_of(checkpoint: Checkpoint, heads: Sequence[str], rows: int) -> str | None:
    """Return the tensor that adds to the logits of each of so many tokens, None where there is none.

    heads: names of output tables, of which one is stored, or left out as it is tied.
    """
    own = [head.removesuffix("weight") + "bias" for head in heads]
    # BERT and its kin have one a level up as well, which the decoder's own is while tied: untied, its own is what counts.
    above = [name.removesuffix("decoder.bias") + "bias" for name in own if name.endswith(".decoder.bias")]
    for wanted in (*own, *above, BIAS_OF_BART):
        for name, tensor in checkpoint.tensors.items():
            if tensor.shape in ((rows,), (1, rows)) and called(name, wanted):
                return name
    return None


def predicts(config: dict[str, Any]) -> bool:
    """Whether the architecture, where it is named, predicts tokens."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names:
        return True
    return any(re.search("MaskedLM|CausalLM|LMHead|ConditionalGeneration|PreTraining", str(name)) for name in names)


def _scales(config: dict[str, Any]) -> tuple[str, ...]:
    text = text_part(config)
    scales = [f"{key} {text[key]}" for key in SCALES if isinstance(text.get(key), int | float) and text[key] != 1]
    return (f"config.json scales embeddings or logits ({', '.join(scales)}), which no table shows.",) if scales else ()
