"""Whether a checkpoint's configuration agrees with the tables it stores, the consequences for loaders, and the fix."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tiejax.checkpoints.hub import families, locate
from tiejax.checkpoints.hub.architectures import Architecture, architecture_of
from tiejax.checkpoints.hub.checkpoint import INDEX, Checkpoint, Tensor, named
from tiejax.checkpoints.hub.download import is_id, open_with_tables
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.stored import Stored, copies_of_untied, further_groups, odd_one, stored_of, stored_tables

Answer = Literal["agrees", "disagrees", "cannot say"]
SHARED = "shared.weight"  # the one table of a tied T5
TWO = "is_encoder_decoder"  # in configurations
UNTIE = "write an untied copy with `tiejax untie`"
STATUS: Mapping[Answer, int] = {"agrees": 0, "disagrees": 1, "cannot say": 2}


class Judgement(NamedTuple):
    """An answer, its reason, and the edit that fixes the checkpoint, if one does."""

    answer: Answer
    reason: str
    edit: str | None


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


def check_folder(folder: Path | str) -> Checked:
    """Check a checkpoint as `check` does; if it cannot be read, the answer is "cannot say".

    Args:
        folder: Its folder, or its id on the Hugging Face hub, of which only the shards with tables and the headers of the
            others are downloaded.
    """
    name = str(folder)
    try:
        checked = check(open_with_tables(folder))
        return checked._replace(folder=name) if isinstance(folder, str) and is_id(folder) else checked
    except CheckpointError as error:
        return Checked(name, None, "cannot say", "", "", str(error))


def check(checkpoint: Checkpoint, equal: bool = False) -> Checked:
    """Return whether a checkpoint's configuration agrees with the tables it stores; raises CheckpointError.

    Reads headers, and table bytes only where two tables are stored. equal: whether these are known to be bitwise equal, so that
    they are not read.
    """
    tables, flag = stored_tables(checkpoint, equal), families.flag_of(checkpoint.config)
    answer, reason, edit = _with_faults(checkpoint, judged(checkpoint, tables))
    sets = (f"{checkpoint.twice}; `untie`, `tie` and `factorise` refuse this folder.",) if checkpoint.twice else ()
    follows = (*sets, *_consequences(tables, flag))
    return Checked(
        str(checkpoint.folder), families.title_of(checkpoint.config), answer, tables.words, flag.where, reason, follows, edit
    )


def _with_faults(checkpoint: Checkpoint, judgement: Judgement) -> Judgement:
    """Add the faults of names and index to a judgement of the tables."""
    faults = [(reason, "remove that prefix from all names") for reason in unread_prefixes(checkpoint)]
    if checkpoint.stale:
        faults.append((f"{INDEX} {' and '.join(checkpoint.stale)}", "rebuild the index from the headers of the shards"))
    if not faults:
        return judgement
    reasons, edits = (list(part) for part in zip(*faults, strict=True))
    if judgement.answer != "agrees":
        reasons.append(judgement.reason)
    answer: Answer = "disagrees" if judgement.answer == "agrees" else judgement.answer
    return Judgement(answer, "; ".join(reasons), " and ".join([*edits, *([judgement.edit] if judgement.edit else [])]))


def unread_prefixes(checkpoint: Checkpoint) -> list[str]:
    """Return the prefixes of names under which loaders find no tensor, one clause each."""
    found = []
    if names := locate.wrapped(checkpoint):
        found.append(f"loaders find no tensor under the prefix {locate.wrapper_of(names[0])} ({named(names)})")
    if prefix := foreign_prefix(checkpoint):
        found.append(f"loaders find no tensor under the prefix {prefix}, with which all names begin")
    return found


def judged(checkpoint: Checkpoint, tables: Stored) -> Judgement:
    """Judge the tables by their names and the flag, whatever prefix the names have and whatever the index lists."""
    judgement = _judged(checkpoint, tables)
    if judgement.edit != _set(checkpoint.config, False):
        return judgement
    untied, copies = as_untied(checkpoint, tables)
    scaled = tables.architecture is not None and tables.architecture.scaled  # the flag would change logits
    if scaled or _judged(untied, tables).answer == "disagrees":
        return judgement._replace(edit=None)
    if not copies:
        return judgement
    edit = f"write a copy with `tiejax check --fix`, which says untied and stores {named(list(copies))} separately"
    return judgement._replace(edit=UNTIE if tables.relation == "equal" else edit)


def as_untied(checkpoint: Checkpoint, tables: Stored) -> tuple[Checkpoint, dict[str, Tensor]]:
    """Return a checkpoint of two tables with a flag that says untied, and the copies that it has to store in addition."""
    copies = dict[str, Tensor]()
    if tables.architecture is not None and tables.input is not None:
        copies = copies_of_untied(checkpoint, tables.architecture, tables.input)
    config = families.with_flag(checkpoint.config, False)
    return checkpoint._replace(config=config, tensors={**checkpoint.tensors, **copies}), copies


def _judged(checkpoint: Checkpoint, tables: Stored) -> Judgement:
    relation, architecture = tables.relation, tables.architecture
    if architecture is None:
        return _cannot_say(locate.unknown(checkpoint))
    if relation == "nothing":
        may_be = locate.candidates(checkpoint)
        found = f"; tensors that may be: {may_be}" if may_be else ""
        return _cannot_say(f"no tensor has the name of a table of {architecture.name}{found}")
    if relation == "headless":
        return _headless(checkpoint, tables)
    if relation == "encoded":
        return _cannot_say("whether its values are those of the other table cannot be read from the file")
    judgement = _by_version(checkpoint, tables, architecture)
    both = [table for table in (tables.input, tables.output) if table is not None]
    if judgement.answer == "agrees" and (reason := locate.read_by_all(checkpoint, architecture, both)):
        return _cannot_say(reason)
    if levels := contradiction(checkpoint.config):
        # The transformers library reads one of the levels; other loaders may read the other.
        answer: Answer = "cannot say" if judgement.answer == "agrees" else judgement.answer
        edit = None if relation == "rounded" else _set(checkpoint.config, relation in ("one", "equal", "head"))
        return Judgement(answer, levels, edit)
    return judgement


def _headless(checkpoint: Checkpoint, tables: Stored) -> Judgement:
    """Judge a model without an output table, whose flag can make the tables of an encoder and a decoder one."""
    agrees = Judgement("agrees", "the architecture predicts no tokens, so there is nothing to tie", None)
    assert tables.architecture is not None
    alike = architecture_of({"model_type": tables.architecture.type})  # its classes with a head, with the same tables
    # Of a class that is one of the two, no table of the other can be missing.
    alone = tables.architecture.name.endswith(("Encoder", "EncoderModel", "Decoder")) or not checkpoint.config.get(TWO, True)
    if alike is None or tables.input is None or alone:
        return agrees
    if not any(locate.called(locate.plain(tables.input.name), name) for name in alike.input):
        alike = alike.bare
    found = dict[str, Judgement | None]()
    for version in sorted(alike.separate):
        tied = families.tied_by(checkpoint.config, alike, version)
        found[version] = None if tied else _by_separate(checkpoint, alike, tables.input, version, tied is None)
    missing = {version: judgement for version, judgement in found.items() if judgement is not None}
    if not missing:
        return agrees
    said = "; ".join(f"in version {version}: {judgement.reason}" for version, judgement in missing.items())
    return Judgement("disagrees", said, None)


def _by_version(checkpoint: Checkpoint, tables: Stored, architecture: Architecture) -> Judgement:
    """Judge by what each major version of the transformers library does; "cannot say" where they differ."""
    states, found = families.states_of(checkpoint.config), dict[str, Judgement]()  # by version
    for version, ties in sorted(architecture.ties.items()):
        tied = families.tied_by(checkpoint.config, architecture, version)
        if tied is None and ties == "by flag":
            return _cannot_say("the configuration does not say whether they are tied")
        # A class whose tables are always one keeps a second one if it is stored and the flag says untied.
        effective = (
            bool(tied)
            if ties == "by flag"
            else ties == "always" and (tables.relation in ("one", "head") or states[0] is not False)
        )
        found[version] = _by_relation(checkpoint, tables, architecture, effective)
        if found[version].answer == "agrees" and (table := tables.input) is not None:
            # The flag may make other tensors one in a class whose two tables it never makes one.
            one = effective or (ties == "never" and states[0] is not False)
            further = _by_further_tensors(checkpoint, architecture, table, tables.output) if one else None
            separate = None if effective else _by_separate(checkpoint, architecture, table, version, one)
            dropped = None if effective else _by_dropped(checkpoint, architecture, table, version)
            kept = _by_kept_name(checkpoint, architecture, table, version) if effective else None
            found[version] = further or separate or dropped or kept or found[version]
    last, answers = list(found.values())[-1], {judgement.answer for judgement in found.values()}
    said = "; ".join(f"in version {version}: {judgement.reason}" for version, judgement in found.items())
    if len(answers) > 1:
        return _cannot_say(f"versions of the transformers library differ: {said}")
    if last.answer == "disagrees" and len({judgement.reason for judgement in found.values()}) > 1:
        return last._replace(reason=said)
    return last


def _by_relation(checkpoint: Checkpoint, tables: Stored, architecture: Architecture, tied: bool) -> Judgement:
    set_true, set_false = (_set(checkpoint.config, value) for value in (True, False))
    rename = f"rename {tables.output.name} to that of the input table ({architecture.shared})" if tables.output else None
    match tables.relation, tied:
        case "rounded", True:
            found = "version 4 of the transformers library reads one table, and version 5 two"
            return _cannot_say(f"equal only after rounding, so that {found}")
        case "equal", True if tables.padding:
            found = f"the output table has {tables.padding:,} rows more than the input table, but the flag makes them one"
            return Judgement("disagrees", f"{found}: the transformers library does not load it", None)
        case ("one" | "equal", True) | ("differ" | "scaled" | "shapes", False):
            return Judgement("agrees", f"{'tied' if tied else 'untied'} as the configuration says", None)
        case "one", False if not architecture.by_flag:
            return Judgement("disagrees", "the output table is missing, and the transformers library never ties this one", None)
        case "one", False:
            reason = "the output table is missing, so that loaders initialise one at random"
            return Judgement("disagrees", reason, f"{set_true}, if the model was trained tied")
        case "equal" | "rounded", False:
            reason = "untied as the configuration says, but equal: either just untied, or saved under the wrong flag"
            return Judgement("agrees", reason, None)
        case "head", True:
            return Judgement("disagrees", "the shared table is stored under the name of the output table", rename)
        case "head", False:
            return Judgement("disagrees", "the input table is missing", None)
        case _:
            return Judgement("disagrees", "loaders that trust the flag drop the stored output table", set_false)


def _by_separate(
    checkpoint: Checkpoint, architecture: Architecture, table: Tensor, version: str, flag: bool
) -> Judgement | None:
    """Judge an untied model by the copies of tensors that it reads; return None if all are stored.

    flag: whether the flag makes one what is in `Architecture.more`, of a class whose two tables are never one.
    """
    separate = architecture.separate.get(version, ())
    own = [name for name in architecture.input if name not in separate]  # of the first table, in several versions
    for names in ([own] if separate and own else []) + [[name] for name in separate]:
        spelled = [locate.stored_under(checkpoint, architecture, table, name) for name in names]
        if not any(name in checkpoint.tensors for name in spelled):
            return Judgement("disagrees", f"{names[0]} is missing, so that loaders initialise it at random", None)
    block = architecture.blocks.get(version)
    if block and (lacking := locate.missing_block(checkpoint, block)):
        return Judgement("disagrees", f"{lacking} is missing, so that loaders initialise it at random", None)
    for group in () if flag else architecture.more.get(version, ()):
        spelled = [locate.stored_under(checkpoint, architecture, table, name) for name in group]
        missing = [name for name in spelled if name not in checkpoint.tensors]
        if 0 < len(missing) < len(spelled):
            why = "so that loaders initialise it, since the flag does not make it one with the others"
            return Judgement("disagrees", f"{missing[0]} is missing, {why}", None)
    return None


def _by_dropped(checkpoint: Checkpoint, architecture: Architecture, table: Tensor, version: str) -> Judgement | None:
    """Judge an untied model by stored copies of a tensor that are one in this version; return None if none of them differ."""
    separate = architecture.separate.get(version, ())
    inner = [name for name in architecture.inner if name not in (*separate, *architecture.output)]
    by_flag = architecture.more.get(version, ())
    own = [names for names in architecture.groups if names not in by_flag]
    tables_of = [table, *stored_of(checkpoint, architecture, table, inner)]
    for tensors in (tables_of, *(stored_of(checkpoint, architecture, table, names) for names in own)):
        if odd := odd_one(list(dict.fromkeys(tensors))):
            return Judgement("disagrees", f"{tensors[0].name} and {odd.name} differ, but are one tensor in this version", None)
    return None


def _by_kept_name(checkpoint: Checkpoint, architecture: Architecture, table: Tensor, version: str) -> Judgement | None:
    """Judge a tied model by the name of its table: version 4 finds no other one than that under which it stores the table.

    All names of a file may lack the prefix of the base model.
    """
    cut = f"{architecture.prefix}." if locate.lacks_prefix(checkpoint, architecture, table) else ""
    kept = [name.removeprefix(cut) for name in architecture.kept]
    if version != "4" or not kept or stored_of(checkpoint, architecture, table, kept):
        return None
    reason = f"the table is stored as {table.name}, where this version expects {kept[0]}"
    return Judgement("disagrees", reason, None)


def foreign_prefix(checkpoint: Checkpoint) -> str:
    """Return the prefix of all names under which no version of the library finds a tensor, "" if there is none."""
    tables = stored_tables(checkpoint, equal=True)
    architecture, table = tables.architecture, tables.input or tables.output
    if architecture is None or table is None:
        return ""
    prefix = locate.extra_prefix(architecture, table)
    return "" if prefix == f"{architecture.prefix}." or not architecture.output else prefix


def _by_further_tensors(
    checkpoint: Checkpoint, architecture: Architecture, table: Tensor, output: Tensor | None
) -> Judgement | None:
    """Judge a tied model by the other tensors that its flag makes one; return None if none of them differ."""
    for group in further_groups(checkpoint, architecture, table):
        if odd := odd_one(group):
            reason = (
                f"the flag makes {group[0].name} and {odd.name} one tensor, but both are stored and differ: loaders "
                "that trust it drop one of them"
            )
            edit: str | None = _set(checkpoint.config, False)
            if output is None:
                edit = UNTIE if architecture.only("by flag") and not architecture.scaled else None
            return Judgement("disagrees", reason, edit)
    return None


def _cannot_say(reason: str) -> Judgement:
    return Judgement("cannot say", reason, None)


def _consequences(tables: Stored, flag: families.Flag) -> tuple[str, ...]:
    """Return the consequences for loaders and tools, one sentence each."""
    relation, tied, lines = tables.relation, flag.tied, []
    if tables.architecture is None or not tables.architecture.output or relation == "nothing":
        return ()
    never = tables.architecture.only("never")
    if tied and relation in ("differ", "scaled", "shapes") and not never:
        lines.append("transformers 4 replaces the output table by the input table; transformers 5 keeps both, with a warning.")
        lines.append("Inference engines that read only the flag load one table.")
        if SHARED in tables.architecture.kept and tables.input is not None and not locate.called(tables.input.name, SHARED):
            lines.append(f"{SHARED} is not stored: transformers 4.50 uses the output table in its place, for the input too.")
    if relation == "one" and (tied is False or never):
        lines.append(
            "transformers initialises a new output table at random, with a warning; inference engines do the same or fail."
        )
    if relation == "head" and tied and not never:
        lines.append("transformers 5 uses it for both roles; transformers 4 ties it to an input table initialised at random.")
    if relation in ("one", "equal", "rounded") and tied and not never:
        lines.append("Quantising the head quantises the input table too, unless the tables are untied first.")
        lines.append(
            "Merging an adapter of one of the two uses into the shared table would change both uses: untie the tables first."
        )
    if relation in ("equal", "rounded") and tied is False:
        lines.append("Loaded as two tables with the same values; merging or adapting one of them makes them differ.")
    always = [version for version, ties in tables.architecture.ties.items() if ties == "always"]
    if always:
        versions = " and ".join(sorted(always))
        lines.append(f"Version {versions} of the transformers library ties these tables, whatever the flag says.")
    if never:
        lines.append("The transformers library never ties these tables, whatever the flag says.")
    if tables.padding:
        lines.append("The padding rows of the output table have no token; engines that count its rows take them for tokens.")
    return tuple(lines)


def contradiction(config: dict[str, Any]) -> str | None:
    """Describe the contradiction between the flags at two levels of a configuration; return None if there is none."""
    values = [value for part in families.levels(config).values() if (value := families.stated(part)) is not None]
    if len(set(values)) < 2:
        return None
    top, inner = map(families.word_of, values)
    return f"{families.FLAG} is {top} at the top level and {inner} in text_config, and loaders read one or the other"


def _set(config: dict[str, Any], tied: bool) -> str:
    """Return the edit that sets the flag wherever a loader may read it."""
    both = " at the top level and in text_config" if len(families.levels(config)) > 1 else ""
    return f"set {families.FLAG} to {families.word_of(tied)}{both} in config.json"
