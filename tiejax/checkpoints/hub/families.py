"""Families of models, and the tying flag in their configurations."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tiejax.checkpoints.hub.architectures import Architecture, architecture_of, default_of
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.system.visible import cut

FLAG, TEXT = "tie_word_embeddings", "text_config."
ALIAS, ALIASED = "tie_embedding", "lfm2"  # another name of the flag, in configurations whose `model_type` begins so
# `model_type` of models whose text part, if a configuration has none, takes the settings at the top.
FLAT = ("qwen2_vl", "qwen2_5_vl")
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
# Keys of a configuration that scale embeddings or logits, in any family.
SCALES = ("embedding_multiplier", "scale_emb", "logits_scaling", "logit_scale", "lm_head_multiplier", "final_logit_softcapping")


class Family(NamedTuple):
    """A family of models.

    title: its name in prose. types: `model_type` of its configurations. notes: properties that the tables do not show.
    """

    title: str
    types: tuple[str, ...]
    notes: tuple[str, ...] = ()


FAMILIES = (
    Family("BERT", ("bert",), (NORMED, TRANSFORMED)),
    Family("DeBERTa", ("deberta-v2",), (NORMED, TRANSFORMED)),
    Family("RemBERT", ("rembert",), (NORMED, TRANSFORMED)),
    Family("ALBERT", ("albert",), (NORMED, TRANSFORMED)),
    Family("DistilBERT", ("distilbert",), (NORMED, TRANSFORMED)),
    Family("ELECTRA", ("electra",), (NORMED, TRANSFORMED)),
    Family("RoBERTa", ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert"), (NORMED, TRANSFORMED)),
    Family("ModernBERT", ("modernbert",), (NORMED, TRANSFORMED)),
    Family("GPT-2", ("gpt2",)),
    Family("GPT-Neo", ("gpt_neo",)),
    Family("GPT-J", ("gptj",)),
    Family("NeoX (Pythia)", ("gpt_neox",)),
    Family("Llama", ("llama", "mistral", "mixtral", "phi", "phi3")),
    Family("Qwen", ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")),
    Family("Gemma", ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"), (SCALED_INPUT,)),
    Family("SmolLM3", ("smollm3",)),
    Family("Cohere", ("cohere", "cohere2")),
    Family("Mamba", ("mamba",)),
    Family("OLMo", ("olmo", "olmo2", "olmo3", "olmoe")),
    Family("OPT", ("opt",)),
    Family("BLOOM", ("bloom",), (NORMED,)),
    Family("Falcon", ("falcon",)),
    Family("T5", ("t5",), (SCALED_LOGITS,)),
    Family("mT5", ("mt5", "umt5"), (SCALED_LOGITS,)),
    Family("BART", ("bart", "mbart"), (NORMED,)),
)


class Flag(NamedTuple):
    """The tying flag of a configuration. tied: None if unknown. where: the source of the value, in words."""

    tied: bool | None
    where: str


def title_of(config: Mapping[str, Any]) -> str | None:
    """Return the title of the family of a configuration, or else its known `model_type`; None if it is unknown."""
    architecture = architecture_of(config)
    if architecture is None:
        return None
    family = family_of(config)
    return family.title if family else architecture.type


def family_of(config: Mapping[str, Any]) -> Family | None:
    """Return the family for the `model_type` of a configuration or of its text model, None if it has no entry here."""
    types = [part.get("model_type") for part in (config, text_part(config))]
    return next((family for kind in types for family in FAMILIES if kind in family.types), None)


def predicts(config: Mapping[str, Any]) -> bool | None:
    """Return whether the architecture predicts tokens, None if it is unknown; True if the configuration names none."""
    if not config.get("architectures"):
        return True
    architecture = architecture_of(config)
    return None if architecture is None else bool(architecture.output)


def flag_of(config: Mapping[str, Any]) -> Flag:
    """Return the tying flag of a configuration as the transformers library reads it, or the default of its architecture.

    None if versions of the library differ, or if that is unknown.
    """
    architecture, states = architecture_of(config), states_of(config)
    given = {where: state for where, state in zip(("", TEXT), states, strict=True) if state is not None}
    if architecture is None or not architecture.flag:
        where, tied = next(iter(given.items()), ("", None))
        return Flag(tied, f"no {FLAG}, and no known default for this model" if tied is None else _said(where, tied))
    found = {version: tied_by(config, architecture, version) for version in sorted(architecture.flag)}
    if len(set(found.values())) > 1:
        words = {None: "unknown", True: "tied", False: "untied"}
        by_version = ", ".join(f"{words[tied]} in version {major}" for major, tied in found.items())
        said = "; ".join(_said(where, tied) for where, tied in given.items()) or f"no {FLAG}"
        return Flag(None, f"{said}, which versions of the transformers library take differently: {by_version}")
    (tied,) = set(found.values())
    deciding = next((where for where, state in given.items() if state == tied), None)
    if tied is None:
        return Flag(None, "no known default for this model")
    if deciding is not None:
        return Flag(tied, _said(deciding, tied))
    kind = text_part(config).get("model_type") if len(levels(config)) > 1 and states[1] is None else None
    default = f"the default of {kind or title_of(config)} is {word_of(tied)}"
    unread = " and ".join(_said(where, state) for where, state in given.items())
    return Flag(tied, f"{unread} is not read; {default}" if unread else f"no {FLAG}; {default}")


def states_of(config: Mapping[str, Any]) -> tuple[bool | None, bool | None]:
    """Return the flag at the top of a configuration and in its text part, None where it is absent."""
    found = [stated(part) for part in levels(config).values()]
    return found[0], found[1] if len(found) > 1 else None


def stated(part: Mapping[str, Any]) -> bool | None:
    """Return the flag in one part of a configuration, None if it is absent; raises CheckpointError for another value.

    Some configurations have another name for it, which counts if both are present.
    """
    name = _name_in(part)
    value = part.get(name)
    if name in part and not isinstance(value, bool):
        raise CheckpointError(
            f"{name}: expected true or false, got {cut(json.dumps(value))}, which versions of the transformers "
            "library take differently"
        )
    return value


def _name_in(part: Mapping[str, Any]) -> str:
    """Return the name of the flag in a part of a configuration."""
    return ALIAS if ALIAS in part and str(part.get("model_type")).startswith(ALIASED) else FLAG


def tied_by(config: Mapping[str, Any], architecture: Architecture, version: str) -> bool | None:
    """Return whether the flag ties the tables in a major version of the library, None if that is unknown.

    Without a flag in the text part, the default of that part's `model_type` counts.
    """
    top, inner = states_of(config)
    if len(levels(config)) == 1 and config.get("model_type") in FLAT:
        inner = top
    if inner is None and len(levels(config)) > 1:
        both = {architecture.tied(version, (top, state)) for state in (True, False)}
        kind = text_part(config).get("model_type")
        if len(both) > 1 and isinstance(kind, str):
            default = default_of(kind, version)
            return None if default is None else architecture.tied(version, (top, default))
    return architecture.tied(version, (top, inner))


def _said(where: str, tied: bool) -> str:
    return f"{where}{FLAG}: {word_of(tied)}"


def word_of(tied: bool) -> str:
    """Return a flag as JSON spells it."""
    return str(tied).lower()


def levels(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the parts of a configuration that may contain the flag, outermost first, by prefix ("" or "text_config.")."""
    part = config.get("text_config")
    return {"": config} | ({TEXT: part} if isinstance(part, dict) else {})


def with_flag(config: Mapping[str, Any], tied: bool) -> dict[str, Any]:
    """Return a configuration whose flag is `tied` at the top, in every part with a vocabulary, and wherever else it is set."""
    parts = {name: part for name, part in config.items() if isinstance(part, dict)}
    flagged = {name for name, part in parts.items() if {FLAG, ALIAS, "vocab_size"} & part.keys() or f"{name}." == TEXT}
    inner = {name: with_flag(parts[name], tied) for name in parts if name in flagged}
    return {**config, **inner, FLAG: tied} | ({ALIAS: tied} if _name_in(config) == ALIAS else {})


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a configuration that describes the text model."""
    return levels(config).get(TEXT, config)


def notes_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what tables do not show: properties of the family, and scales of embeddings or logits in the configuration."""
    family, text = family_of(config), text_part(config)
    scales = [f"{key} {text[key]}" for key in SCALES if isinstance(text.get(key), int | float) and text[key] != 1]
    scaled = f"config.json scales embeddings or logits ({', '.join(scales)}), which the tables do not show."
    return (*(family.notes if family else ()), *([scaled] if scales else []))
