"""Repair of a checkpoint: a copy whose names, index and flag are those of the tables that it stores."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tiejax.checkpoints.check import Judgement, as_untied, check, contradiction, foreign_prefix, judged
from tiejax.checkpoints.hub.architectures import unsafe
from tiejax.checkpoints.hub.checkpoint import INDEX, Checkpoint, Tensor, named, open_checkpoint
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.checkpoints.hub.families import FLAG, flag_of, title_of, with_flag, word_of
from tiejax.checkpoints.hub.locate import plain, stored_under, wrapped
from tiejax.checkpoints.hub.stored import Stored, further_copies, stored_tables
from tiejax.checkpoints.rewrite.rewrite import Part, check_new, copy_of, rewrite, section


class Repair(NamedTuple):
    """What a repaired copy stores.

    names: new name of each tensor that is kept under another one. copies: name of each tensor that is added, with the one that
    it is a copy of. left_out: names of tensors to leave out. config: the content of config.json. changes: what that changes,
    one sentence each; none if the checkpoint is sound.
    """

    names: dict[str, str]
    copies: dict[str, Tensor]
    left_out: tuple[str, ...]
    config: dict[str, Any]
    changes: tuple[str, ...]


def fix(folder: Path, out: Path) -> tuple[str, ...]:
    """Write a repaired copy of a checkpoint, if anything is to be repaired.

    The flag is set at every level, a table that is stored under the name of the output table alone is renamed, copies of a
    shared table are left out, prefixes of wrappers are removed, and the index is made of what the shards contain. Values do not
    change, and every other tensor and file is copied.

    Args:
        folder: a checkpoint in the hub's format
        out: the folder to write, which must not exist

    Returns:
        The changes, one sentence each; none for a sound checkpoint, of which no copy is written.

    Raises:
        CheckpointError: if the checkpoint cannot be judged, or a repair needs a decision
        OSError: if `out` cannot be written
    """
    checkpoint = open_checkpoint(folder)
    check_new(checkpoint, out)
    repair = plan(checkpoint)
    if repair.changes:
        added: dict[Path, list[Part]] = {}
        parts = {new: checkpoint.tensors[old] for old, new in repair.names.items()} | repair.copies
        for name, tensor in parts.items():
            added.setdefault(tensor.file, []).append(copy_of(tensor, name))
        left_out = (*repair.left_out, *repair.names)
        rewrite(checkpoint, out, repair.config, added, left_out, section(folder, "check --fix", " ".join(repair.changes)))
    return repair.changes


def plan(checkpoint: Checkpoint) -> Repair:
    """Return the repair of a checkpoint; raises CheckpointError if it cannot be judged, or if it needs a decision."""
    tables = stored_tables(checkpoint)
    judgement = judged(checkpoint, tables)
    tied = _flag(checkpoint, tables, judgement)
    config = checkpoint.config if tied is None else with_flag(checkpoint.config, tied)
    changes = [] if tied is None else [f"`{FLAG}` is {word_of(tied)} at every level."]
    alone = tables.output if tables.relation == "head" else None
    left_out = _copies(checkpoint._replace(config=config), tables) if judgement.answer == "agrees" or tied else ()
    copies = as_untied(checkpoint, tables)[1] if tied is False else {}
    if copies:
        changes.append(f"Copies were added of tensors that an untied model stores separately: {named(list(copies))}.")
    if left_out:
        changes.append(f"Copies of shared tensors are no longer stored: {named(left_out)}.")
    prefix = foreign_prefix(checkpoint)
    names_of = {name: plain(name).removeprefix(prefix) for name in checkpoint.tensors if name not in left_out}
    renamed = {old: new for old, new in names_of.items() if old != new}
    if renamed:
        changes.append(f"Prefixes of wrappers were removed from the names of {len(renamed):,} tensors.")
    if alone is not None:
        assert tables.architecture is not None
        renamed[alone.name] = plain(
            stored_under(checkpoint, tables.architecture, alone, tables.architecture.shared)
        ).removeprefix(prefix)
        changes.append(f"The shared table `{alone.name}` was renamed to `{renamed[alone.name]}`.")
    names = Counter(renamed.get(name, name) for name in checkpoint.tensors if name not in left_out)
    copies = {plain(name).removeprefix(prefix): tensor for name, tensor in copies.items()}
    if twice := [name for name, number in names.items() if number > 1]:
        raise _refusal(checkpoint, f"which of several tensors is to be called {twice[0]}; remove the others")
    if checkpoint.stale:
        changes.append(f"`{INDEX}` lists what the shards contain; that of the original {' and '.join(checkpoint.stale)}.")
    repair = Repair(renamed, copies, left_out, config, tuple(changes))
    after = check(_repaired(checkpoint, repair), tables.relation == "equal") if changes else judgement
    only_index = config == checkpoint.config and not (copies or left_out or renamed)  # it changes nothing that is judged
    if after.answer != "agrees" and not only_index:
        said = f'of the copy, `tiejax check` would say "{after.answer}": {after.reason}'
        raise CheckpointError(f"{checkpoint.folder}: cannot be repaired: {said}")
    return repair


def _repaired(checkpoint: Checkpoint, repair: Repair) -> Checkpoint:
    """Return the checkpoint that a repair writes, whose tensors still are in the files of the original."""
    kept = {repair.names.get(name, name): one for name, one in checkpoint.tensors.items() if name not in repair.left_out}
    tensors = {name: tensor.called(name) for name, tensor in (kept | repair.copies).items()}
    return checkpoint._replace(config=repair.config, tensors=tensors, stale=())


def _flag(checkpoint: Checkpoint, tables: Stored, judgement: Judgement) -> bool | None:
    """Return the flag to set, None if it stays; raises CheckpointError if the file does not determine it."""
    if judgement.answer == "agrees":
        return None
    contradicts = contradiction(checkpoint.config)
    if judgement.answer == "cannot say" and not (contradicts == judgement.reason and tables.relation != "rounded"):
        if wrapped(checkpoint) or foreign_prefix(checkpoint) or checkpoint.stale:
            return None  # names and index can be repaired whatever the tables are
        raise CheckpointError(f"{checkpoint.folder}: cannot be repaired: {judgement.reason}")
    says_untied = flag_of(checkpoint.config).tied is False and not contradicts
    if tables.output is not None and tables.relation not in ("head", "equal", "rounded") and not says_untied:
        if tables.architecture is not None and tables.architecture.scaled:
            raise _refusal(checkpoint, f"{judgement.reason}; {unsafe(tables.architecture, title_of(checkpoint.config))}")
        after = judged(as_untied(checkpoint, tables)[0], tables)  # two tables that differ
        if after.answer == "disagrees":
            raise _refusal(checkpoint, f"{judgement.reason}; with a flag that says untied, {after.reason}")
        return False
    if contradicts:
        return True
    if tables.relation == "head" and flag_of(checkpoint.config).tied:
        return None
    raise _refusal(checkpoint, f"{judgement.reason}; {judgement.edit or 'restore it from the original model'}")


def _copies(checkpoint: Checkpoint, tables: Stored) -> tuple[str, ...]:
    """Return the names of equal copies that a checkpoint stores although its flag ties the tables."""
    architecture, flag = tables.architecture, flag_of(checkpoint.config)
    if architecture is None or tables.input is None or not (flag.tied and architecture.only("by flag")):
        return ()
    output = [tables.output.name] if tables.output and tables.relation == "equal" and not tables.padding else []
    return (*output, *further_copies(checkpoint, architecture, tables.input, tables.output))


def _refusal(checkpoint: Checkpoint, decision: str) -> CheckpointError:
    return CheckpointError(f"{checkpoint.folder}: needs a decision: {decision}")
