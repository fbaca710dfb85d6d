"""Checkpoints named by their id on the Hugging Face hub, as ORGANISATION/NAME or ORGANISATION/NAME@REVISION.

Files are kept in the hub's cache, and a repeated download costs nothing. The variables of huggingface_hub apply (`HF_HOME`,
`HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiejax.checkpoints.hub.architectures import Architecture, architecture_of
from tiejax.checkpoints.hub.checkpoint import CONFIG, INDEX, WEIGHTS, one_line, read_json
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.text.network import reachable

ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
SMALL = ("*.json", "*.txt", "*.model", "*.md", "*.jinja")  # configuration, index, tokenizer, model card
# Weights in other formats, and those that an original repository has beside them.
OTHER = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "original/*", "onnx/*")


def is_id(name: str) -> bool:
    """Return whether a name is an id of the hub and no existing path."""
    return ID.fullmatch(name) is not None and not Path(name).exists()


def whole_folder(name: str) -> Path:
    """Return the folder of a checkpoint by its path or its id, with all its files but weights in other formats.

    Raises CheckpointError if it cannot be downloaded.
    """
    return _snapshot(name, None) if is_id(name) else Path(name).expanduser()


def folder_of_tables(name: str) -> Path:
    """Return the folder of a checkpoint by its id, with those of its shards only that hold a table.

    Raises CheckpointError if it cannot be downloaded.
    """
    folder = _snapshot(name, SMALL)
    if not (folder / INDEX).exists():
        return _snapshot(name, (*SMALL, WEIGHTS))
    config, index = (read_json(folder / file) for file in (CONFIG, INDEX))
    architecture, places = architecture_of(config), index.get("weight_map")
    if architecture is None or not isinstance(places, dict):
        raise CheckpointError(f"{name}: its architecture is not known; download the whole checkpoint and name its folder")
    return _snapshot(name, (*SMALL, *shards_of_tables(architecture, places)))


def shards_of_tables(architecture: Architecture, places: Mapping[str, Any]) -> list[str]:
    """Return the files that hold a table, in whatever form; places: tensor -> file."""
    stems = {name.removesuffix("weight") for name in (*architecture.input, *architecture.output, *architecture.inner)}
    stems |= {stem.removeprefix(f"{architecture.prefix}.") for stem in stems}
    return sorted({str(file) for tensor, file in places.items() if any(stem in tensor for stem in stems)})


def _snapshot(name: str, patterns: Sequence[str] | None) -> Path:
    """Return the folder in the hub's cache with the files that match, after downloading what it lacks."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    matched = ID.fullmatch(name)
    assert matched is not None
    unreachable = f"{name}: is not a folder, and no checkpoint of that name could be downloaded"
    offline = constants.HF_HUB_OFFLINE or not reachable(constants.ENDPOINT)
    try:
        return Path(
            snapshot_download(
                matched["id"],
                revision=matched["revision"],
                allow_patterns=None if patterns is None else list(patterns),
                ignore_patterns=list(OTHER),
                local_files_only=offline,
            )
        )
    except HfHubHTTPError as error:
        raise CheckpointError(f"{unreachable}: {one_line(error)}") from None
    except (OSError, ValueError) as error:  # no network and not in the cache, or an invalid id
        why = f"{constants.ENDPOINT} cannot be reached" if offline else one_line(error)
        raise CheckpointError(f"{unreachable}: {why}") from None
