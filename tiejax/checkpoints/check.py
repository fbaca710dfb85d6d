"""Whether a checkpoint's configuration agrees with the tables it stores, the consequences for loaders, and the fix."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tiejax.checkpoints.hub.checkpoint import Checkpoint, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import FLAG, Flag, flag_of, levels, predicts
from tiejax.checkpoints.rewrite.stored import WORDS, Stored, stored_tables

Answer = Literal["agrees", "disagrees", "cannot say"]
STATUS: Mapping[Answer, int] = {"agrees": 0, "disagrees": 1, "cannot say": 2}

T5 = (
    "Version 5 of the transformers library ties every T5, and uses the flag only to decide whether to divide logits by the "
    "square root of the width."
)


class Checked(NamedTuple):
    """The result for one checkpoint.

    stored: description of the stored tables. says: the flag and where it comes from. reason: the reason for the answer,
    one clause. follows: consequences for loaders, one sentence each. edit: the fix, None if nothing needs fixing or no edit
    fixes it.
    """

    folder: str
    family: str | None
    answer: Answer
    stored: str
    says: str
    reason: str
    follows: tuple[str, ...] = ()
    edit: str | None = None


def check_folder(folder: Path) -> Checked:
    """Check the checkpoint in a folder as `check` does; if it cannot be read, the answer is "cannot say"."""
    try:
        return check(open_checkpoint(folder))
    except CheckpointError as error:
        return Checked(str(folder), None, "cannot say", "", "", str(error))


def check(checkpoint: Checkpoint) -> Checked:
    """Return whether a checkpoint's configuration agrees with the tables it stores; raises CheckpointError.

    Reads headers, and table bytes only where two tables are stored.
    """
    tables, flag = stored_tables(checkpoint), flag_of(checkpoint.config)
    answer, reason, edit = _judged(checkpoint, tables, flag)
    words = WORDS[tables.relation]
    if tables.scale is not None:
        words += f" ({tables.scale:.4g} times the input)"
    if tables.padding:
        words += f", the output {tables.padding:,} rows longer"
    family = tables.family.title if tables.family else None
    return Checked(str(checkpoint.folder), family, answer, words, flag.where, reason, _consequences(tables, flag), edit)


def _judged(checkpoint: Checkpoint, tables: Stored, flag: Flag) -> tuple[Answer, str, str | None]:
    relation, tied = tables.relation, flag.tied
    if relation == "nothing":
        return "cannot say", "no tensor has one of the usual names of an embedding table", None
    if not predicts(checkpoint.config) and relation == "one":
        return "agrees", "the architecture predicts no tokens, so there is nothing to tie", None
    if levels := _contradiction(checkpoint.config):
        return "disagrees", levels, f"set {FLAG} to {_value(relation in ('one', 'equal', 'head'))} at both levels"
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
            return (
                "disagrees",
                "the output table is missing, so that loaders initialise one at random",
                f"{set_true}, if the model was trained tied",
            )
        case "equal", False:
            return (
                "agrees",
                "stored as the configuration says, but equal: either just untied, or saved under the wrong flag",
                None,
            )
        case "head", True:
            return "disagrees", "the shared table is stored under the name of the output table", _rename(tables)
        case "head", False:
            return "disagrees", "the input table is missing", None
        case _:
            return "disagrees", "loaders that trust the flag drop the stored output table", set_false


def _rename(tables: Stored) -> str:
    assert tables.output is not None
    to = f" to that of the input table ({tables.family.input[0]})" if tables.family else ""
    return f"rename {tables.output.name}{to}"


def _consequences(tables: Stored, flag: Flag) -> tuple[str, ...]:
    """Return the consequences for loaders and tools, one sentence each."""
    relation, tied, lines = tables.relation, flag.tied, []
    two = relation in ("differ", "scaled", "shapes", "quantised")
    if tied and two:
        lines.append("transformers 4 replaces the output table by the input table; transformers 5 keeps both, with a warning.")
        lines.append("Inference engines that read only the flag load one table.")
    if tied is False and relation == "one":
        lines.append(
            "transformers initialises a new output table at random, with a warning; inference engines do the same or fail."
        )
    if relation == "head" and tied:
        lines.append("transformers 5 uses it for both roles; transformers 4 ties it to an input table initialised at random.")
    if relation in ("one", "equal") and tied:
        lines.append("Quantising the head quantises the input table too, unless the tables are untied first.")
        lines.append(
            "Merging an adapter of one of the two uses into the shared table would change both uses: untie the tables first."
        )
    if relation == "equal" and tied is False:
        lines.append("Loaded as two tables with the same values; merging or adapting one of them makes them differ.")
    if tables.family is not None and tables.family.always:
        lines.append(T5)
    if tables.padding:
        lines.append("The padding rows of the output table have no token; engines that count its rows take them for tokens.")
    return tuple(lines)


def _contradiction(config: dict[str, Any]) -> str | None:
    """Describe the contradiction between the flags at two levels of a configuration; return None if there is none."""
    values = [part[FLAG] for part in levels(config).values() if isinstance(part.get(FLAG), bool)]
    if len(set(values)) < 2:
        return None
    top, inner = map(_value, values)
    return f"{FLAG} is {top} at the top level and {inner} in text_config, and loaders read one or the other"


def _level(config: dict[str, Any]) -> str:
    """Return the prefix of the level at which to set the flag: the first that has the flag, or else the innermost."""
    found = levels(config)
    return next((where for where, part in found.items() if FLAG in part), list(found)[-1])


def _value(flag: object) -> str:
    return str(bool(flag)).lower()
