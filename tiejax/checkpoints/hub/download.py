"""Checkpoints named by their id on the Hugging Face hub, as ORGANISATION/NAME or ORGANISATION/NAME@REVISION.

Files are kept in the hub's cache, and a repeated download costs nothing. The variables of huggingface_hub apply (`HF_HOME`,
`HF_TOKEN`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`).
"""

import concurrent.futures
import contextlib
import errno
import glob
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tiejax.checkpoints.hub import checkpoint as hub
from tiejax.checkpoints.hub.architectures import Architecture, architecture_of
from tiejax.checkpoints.hub.errors import CheckpointError
from tiejax.system.files import is_name, naming_file
from tiejax.text.hub_answers import checked_answers
from tiejax.text.network import reachable

ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?!.*\.\.)(?P<revision>\w[\w./-]*))?")
SMALL = ("*.json", "*.txt", "*.model", "*.md", "*.jinja")  # configuration, index, tokenizer, model card
AT_ONCE = 8  # headers asked for at the same time
# Errors of the file system that holds the cache, not of the hub.
CACHE_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE}
# Weights in other formats, and those that an original repository has beside them.
OTHER = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.gguf", "original/*", "onnx/*")


def is_id(name: str) -> bool:
    """Return whether a name is an id of the hub and no existing path."""
    return ID.fullmatch(name) is not None and not Path(name).exists()


def whole_folder(name: str) -> Path:
    """Return the folder of a checkpoint by its path or its id, with all its files but weights in other formats.

    Raises CheckpointError if it cannot be downloaded.
    """
    return _snapshot(name, None) if is_id(name) else _folder(name)


def open_with_tables(name: str | Path, tables: Sequence[str] = ()) -> hub.Checkpoint:
    """Open a checkpoint by its path or its id, of which only those shards are downloaded that hold a table.

    Of the other shards only the headers are read; their tensors are left out if the hub cannot be reached. name: an id may end
    in its revision. tables: names of tensors to read, in addition to the tables of a known architecture. Raises CheckpointError
    if it cannot be downloaded or used.
    """
    if isinstance(name, Path) or not is_id(name):
        return hub.open_checkpoint(_folder(name))
    folder = _folder_of_tables(name, tables)
    checkpoint = hub.open_checkpoint(folder, lambda files: _headers(name, folder, files))
    architecture = architecture_of(checkpoint.config)
    places = {tensor.name: tensor.file.name for tensor in checkpoint.tensors.values() if not tensor.file.exists()}
    if architecture and (unlisted := shards_of_tables(architecture, places)):  # tables that the index omits
        _download(name, unlisted)
    return checkpoint


def _folder(name: str | Path) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise CheckpointError(f"{name}: not found; the home directory of that user is not known") from None


def _folder_of_tables(name: str, tables: Sequence[str]) -> Path:
    folder = _snapshot(name, (*SMALL, hub.WEIGHTS))
    if (folder / hub.WEIGHTS).exists() or not (folder / hub.INDEX).exists():  # loaders prefer the single file
        return folder
    config, index = (hub.read_json(folder / file) for file in (hub.CONFIG, hub.INDEX))
    architecture, places = architecture_of(config), index.get("weight_map")
    if not isinstance(places, dict):
        return folder  # an error when it is opened
    wanted = set(shards_of_tables(architecture, places) if architecture else ())
    wanted |= {str(places[table]) for table in tables if table in places}
    return _download(name, set(filter(is_name, wanted)))  # other entries are an error when it is opened


def _download(name: str, wanted: Collection[str]) -> Path:
    """Download files that hold a table; return the snapshot's folder. Raises CheckpointError."""
    folder = _snapshot(name, (*SMALL, *sorted(map(glob.escape, wanted))))
    if lacking := sorted(file for file in wanted if not (folder / file).exists()):
        raise CheckpointError(f"{name}: {lacking[0]}, which holds a table, is neither in the cache nor could be downloaded")
    return folder


def shards_of_tables(architecture: Architecture, places: Mapping[str, Any]) -> list[str]:
    """Return the files that hold a table, or a tensor that is one with another if the tables are one.

    Tables may be stored in whatever form. places: tensor -> file.
    """
    stems = {name.removesuffix("weight") for name in architecture.tables}
    stems |= {stem.removeprefix(f"{architecture.prefix}.") for stem in stems}
    return sorted(
        {
            str(file)
            for tensor, file in places.items()
            if any(stem in tensor and not tensor.endswith(f"{stem}bias") for stem in stems)
        }
    )


def _headers(name: str, folder: Path, files: Sequence[str]) -> hub.Headers:
    """Return the headers of shards on the hub, by requests for ranges of bytes; none if one of them cannot be read.

    folder: the snapshot, whose name is the commit.
    """
    from huggingface_hub import HfApi, constants

    matched, api = ID.fullmatch(name), HfApi()
    assert matched is not None
    if constants.HF_HUB_OFFLINE or not reachable(constants.ENDPOINT):
        return {}

    def header(file: str) -> dict[str, hub.Tensor]:
        found = api.parse_safetensors_file_metadata(matched["id"], file, revision=folder.name).tensors
        return {key: hub.Tensor(key, folder / file, tuple(tensor.shape), str(tensor.dtype)) for key, tensor in found.items()}

    try:
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip(files, pool.map(header, files), strict=True))
    except Exception:  # of whichever HTTP client the library uses; a diagnosis goes on without the count
        return {}


def _snapshot(name: str, patterns: Sequence[str] | None) -> Path:
    """Return the folder in the hub's cache with the files that match, after downloading what it lacks.

    Raises CheckpointError, or OSError if the cache cannot be read or written.
    """
    from huggingface_hub import constants, snapshot_download

    matched = ID.fullmatch(name)
    assert matched is not None
    offline = constants.HF_HUB_OFFLINE or not reachable(constants.ENDPOINT)
    try:
        with naming_file(Path(constants.HF_HUB_CACHE)), checked_answers(), _bars() as bar:
            return Path(
                snapshot_download(
                    matched["id"],
                    revision=matched["revision"],
                    allow_patterns=None if patterns is None else list(patterns),
                    ignore_patterns=list(OTHER),
                    local_files_only=offline,
                    tqdm_class=bar,
                )
            )
    except (OSError, ValueError) as error:  # no network and not in the cache, an invalid id, or an invalid answer
        if isinstance(error, OSError) and error.errno in CACHE_ERRORS:
            raise
        why = f"{constants.ENDPOINT} cannot be reached" if offline else hub.one_line(error)
        raise CheckpointError(f"{name}: is not a folder, and no checkpoint of that name could be downloaded: {why}") from None


@contextlib.contextmanager
def _bars() -> Iterator[Any]:
    """Yield a class of progress bars that are shown on a terminal only, and removed at the end, also after an error."""
    from huggingface_hub.utils import tqdm

    opened: list[Any] = []

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            # disable=None hides a bar where there is no terminal.
            super().__init__(*args, **{"disable": None, **options, "leave": False})
            opened.append(self)

    try:
        yield Bar
    finally:
        for bar in opened:
            bar.close()
