"""Whether a configuration agrees with what its checkpoint stores, what follows for whoever loads it, and what mends it."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from tiejax.checkpoints.hub.checkpoint import Checkpoint
from tiejax.checkpoints.hub.families import FLAG, Flag, flag_of, levels, predicts
from tiejax.checkpoints.rewrite.stored import WORDS, Stored, stored_tables

Answer = Literal["agrees", "disagrees", "cannot say"]
STATUS: Mapping[Answer, int] = {"agrees": 0, "disagrees": 1, "cannot say": 2}

T5 = (
    "Version 5 of the transformers library ties every T5, and reads the flag as whether logits are divided by the root of the "
    "width."
)


class Checked(NamedTuple):
    """What is said of one checkpoint. reason: one clause. follows: what happens where, a sentence each. edit: what mends it."""

    folder: str
    family: str | None
    answer: Answer
    stored: str
    says: str
    reason: str
    follows: tuple[str, ...] = ()
    edit: str | None = None


def check(checkpoint: Checkpoint) -> Checked:
    """Return whether a checkpoint's configuration agrees with what it stores; raises CheckpointError."""
    tables, flag = stored_tables(checkpoint), flag_of(checkpoint.config)
    answer, reason, edit = _judged(checkpoint, tables, flag)
    words = WORDS[tables.relation]
    if tables.scale is not None:
        words += f" ({tables.scale:.4g} times the input)"
    if tables.padding:
        words += f", the output {tables.padding:,} rows longer"
    family = tables.family.title if tables.family else None
    return Checked(str(checkpoint.folder), family, answer, words, flag.where, reason, _follows(tables, flag), edit)


def _judged(checkpoint: Checkpoint, tables: Stored, flag: Flag) -> tuple[Answer, str, str | None]:
    relation, tied = tables.relation, flag.tied
    if relation == "nothing":
        return "cannot say", "no tensor has a usual name of an embedding", None
    if not predicts(checkpoint.config) and relation == "one":
        return "agrees", "the architecture predicts no tokens, so there is nothing to tie", None
    if levels := _contradiction(checkpoint.config):
        return "disagrees", levels, f"give both levels the value {_value(relation in ('one', 'equal', 'head'))}"
    if tied is None:
        return "cannot say", "the configuration does not say whether they are tied", None
    if tables.family is not None and tables.family.never:
        tied = False
    return _by_relation(tables, tied, _level(checkpoint.config))


def _by_relation(tables: Stored, tied: bool, level: str) -> tuple[Answer, str, str | None]:
    set_true, set_false = (f"set {level}{FLAG} to {value} in config.json" for value in ("true", "false"))
    match tables.relation, tied:
        case ("one", True) | ("equal", True) | ("differ" | "scaled" | "shapes" | "quantised", False):
            return "agrees", "stored as the configuration says", None
        case "one", False:
            return "disagrees", "the output table is missing: who loads it makes one up", f"{set_true}, if it was trained tied"
        case "equal", False:
            return "agrees", "stored as the configuration says, and equal: just untied, or saved under the wrong flag", None
        case "head", True:
            return "disagrees", "the shared table is stored under the output's name", _rename(tables)
        case "head", False:
            return "disagrees", "the input table is missing", None
        case _:
            return "disagrees", "who trusts the flag loses the stored output table", set_false


def _rename(tables: Stored) -> str:
    assert tables.output is not None
    to = f" to that of the input table ({tables.family.input[0]})" if tables.family else ""
    return f"rename {tables.output.name}{to}"


def _follows(tables: Stored, flag: Flag) -> tuple[str, ...]:
    """Return what becomes of the checkpoint where it is loaded."""
    relation, tied, lines = tables.relation, flag.tied, []
    two = relation in ("differ", "scaled", "shapes", "quantised")
    if tied and two:
        lines.append("transformers 4 replaces the output table by the input table; transformers 5 keeps both, with a warning.")
        lines.append("Engines that read the flag alone load one table.")
    if tied is False and relation == "one":
        lines.append("transformers makes a new output table at random, with a warning; engines make one, or stop.")
    if relation == "head" and tied:
        lines.append("transformers 5 takes it for both; transformers 4 ties it to an input table made at random.")
    if relation in ("one", "equal") and tied:
        lines.append("Quantising the head quantises the input as well, unless it is untied first.")
        lines.append("An adapter on one of the two uses is part of one alone once merged: untie first, or both change.")
    if relation == "equal" and tied is False:
        lines.append("Loaded as two tables of the same values; merges and adapters on one of them part the two.")
    if tables.family is not None and tables.family.always:
        lines.append(T5)
    if tables.padding:
        lines.append("The rows that pad the output table have no token; engines that read its height take them for tokens.")
    return tuple(lines)


def _contradiction(config: dict[str, Any]) -> str | None:
    """Say what two levels of a configuration contradict each other in, None where they do not."""
    values = [part[FLAG] for part in levels(config).values() if isinstance(part.get(FLAG), bool)]
    if len(set(values)) < 2:
        return None
    return f"{FLAG} is {_value(values[0])} at the top and {_value(values[1])} in text_config, and loaders read one or the other"


def _level(config: dict[str, Any]) -> str:
    """Return what stands before the flag that is to be set: the level at which it stands, or else the innermost."""
    found = levels(config)
    return next((where for where, part in found.items() if FLAG in part), list(found)[-1])


def _value(flag: object) -> str:
    return str(bool(flag)).lower()
