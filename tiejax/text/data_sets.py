"""Data sets of TFDS with a text feature as documents, one an example.

One that is not on disk yet is downloaded and prepared.
"""

import contextlib
import difflib
import importlib
import importlib.util
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from huggingface_hub import constants
from tensorflow_datasets.core import read_only_builder, registered
from tensorflow_datasets.core.utils import dtype_utils, flatten_nest_dict

from tiejax.system.files import check_file
from tiejax.text.array_records import byte_values, without_progress_bar
from tiejax.text.errors import CorpusError, first_line
from tiejax.text.network import reachable
from tiejax.text.sources import TFDS, Document, Source, file_size

HUB = "huggingface:"  # how TFDS names the data sets of the hub
# The older half of the catalogue is known only once the module that holds it has been imported.
CATALOGUE = ("question_answering", "summarization", "text", "text_simplification", "translate")


class DataSet(Source):
    """Every example of every split, in the order in which they are on disk. feature: the one that is read."""

    kind = "_TFDS"

    def __init__(self, name: str, builder: Any, feature: str) -> None:
        self.name, self.builder, self.feature = name, builder, feature

    @property
    def shards(self) -> list[Path]:
        return [Path(path) for split in self.builder.info.splits.values() for path in split.filepaths]

    @property
    def size(self) -> int:
        return sum(map(file_size, self.shards))

    def documents(self) -> Iterator[Document]:
        number = sum(split.num_examples for split in self.builder.info.splits.values())
        share = self.size // max(number, 1)
        for split in self.builder.info.splits:
            for index, values in enumerate(byte_values(self.builder, split, self.feature)):
                try:
                    text = "\n\n".join(value.decode("utf-8") for value in values)
                except UnicodeDecodeError as error:
                    where = f"example {index} of split {split}, byte {error.start}"
                    raise CorpusError(f"corpus {self.name}: {where} is not UTF-8 ({error.reason})") from None
                yield Document(text, share)

    def rows(self, text: str) -> Iterator[str]:
        yield text

    def raw(self) -> Iterator[bytes]:
        yield self.feature.encode()
        for shard in self.shards:
            try:
                check_file(shard)
                with shard.open("rb") as file:
                    while block := file.read(1 << 24):
                        yield block
            except OSError as error:
                raise CorpusError(f"corpus {self.name}: {shard} cannot be read: {error.strerror}") from None


def open_data_set(name: str, text_feature: str | None, tfds_dir: str | None, say: Callable[[str], None]) -> DataSet:
    """Return the data set `tfds:NAME[/CONFIG]`, prepared if need be, after `say` has said so; raises CorpusError."""
    builder = open_builder(name, tfds_dir, say, lambda builder: _text_feature(name, builder, text_feature))
    return DataSet(name, builder, _text_feature(name, builder, text_feature))


def open_builder(
    name: str, tfds_dir: str | None, say: Callable[[str], None], check: Callable[[Any], object] = lambda builder: None
) -> Any:
    """Return the TFDS builder of `tfds:NAME[/CONFIG]`, prepared if need be, after `say` has said so; raises CorpusError.

    check: raises CorpusError for a data set that will not do, before it is downloaded.
    """
    wanted = name.removeprefix(TFDS)
    directory = os.path.expanduser(tfds_dir) if tfds_dir is not None else None
    try:
        builder = read_only_builder.builder_from_files(wanted, data_dir=directory)
    except registered.DatasetNotFoundError:
        unprepared = _unprepared(name, wanted, directory)
        check(unprepared)
        return _download_and_prepare(name, unprepared, say)
    except Exception as error:
        raise CorpusError(f"corpus {name}: cannot be opened: {first_line(error)}") from None
    if tfds.core.FileFormat.ARRAY_RECORD not in builder.info.available_file_formats():
        form = builder.info.file_format.value
        raise CorpusError(
            f"corpus {name}: is prepared in {builder.data_dir} as {form}, which only TensorFlow reads; "
            "prepare it with file_format array_record in another tfds_dir"
        )
    return builder


def _text_feature(name: str, builder: Any, wanted: str | None) -> str:
    infos = flatten_nest_dict(builder.info.features.get_tensor_info())
    features = sorted(path for path, info in infos.items() if dtype_utils.is_string(info.np_dtype) and len(info.shape) <= 1)
    if not features:
        raise CorpusError(f"corpus {name}: none of its features is text ({', '.join(sorted(infos))})")
    if wanted is not None and wanted not in features:
        raise CorpusError(f"text_feature {wanted}: {name} has the text features {', '.join(features)}")
    if wanted is None and len(features) > 1:
        raise CorpusError(f"text_feature: needed, since {name} has the text features {', '.join(features)}")
    return wanted or features[0]


def _unprepared(name: str, wanted: str, directory: str | None) -> Any:
    """Return the builder of a data set of the catalogue that is not on this disk yet."""
    if wanted.startswith(HUB):
        if importlib.util.find_spec("datasets") is None:
            raise CorpusError(f"corpus {name}: needs the package datasets, which is not installed (pip install datasets)")
        if not reachable(constants.ENDPOINT):
            where = f"{constants.ENDPOINT}, where it is downloaded, does not answer"
            raise CorpusError(f"corpus {name}: is not prepared, and {where}")
        with _preparing(name):
            return tfds.builder(wanted, data_dir=directory, file_format="array_record")
    base, _, config = wanted.partition("/")
    cls = _catalogued(name, base.partition(":")[0], directory)
    config = config.partition(":")[0]
    if config and config not in cls.builder_configs:
        raise CorpusError(f"corpus {name}: {base} has no configuration {config}{_nearest(config, cls.builder_configs)}")
    with _preparing(name):
        return tfds.builder(wanted, data_dir=directory, file_format="array_record")


def _download_and_prepare(name: str, builder: Any, say: Callable[[str], None]) -> Any:
    of_hub = name.startswith(f"{TFDS}{HUB}")
    urls = [constants.ENDPOINT] if of_hub else [*(builder.url_infos or ()), "https://storage.googleapis.com"]
    url = next(url for url in urls if url.startswith("http"))
    host, where = url.split("/")[2], builder.data_dir_root
    # TFDS itself would try again for minutes and not say so.
    if not reachable(url):
        raise CorpusError(f"corpus {name}: is not prepared in {where}, and {host}, where it is downloaded, does not answer")
    say(f"TFDS downloads {name.removeprefix(TFDS)} from {host} and prepares it in {where}")
    with _preparing(name), without_progress_bar():
        builder.download_and_prepare(
            file_format="array_record", download_config=tfds.download.DownloadConfig(try_download_gcs=False)
        )
    # Opened anew, since what is read from disk may come in another order.
    return tfds.builder_from_directory(builder.data_dir)


@contextlib.contextmanager
def _preparing(name: str) -> Iterator[None]:
    try:
        # Where TensorFlow is missing, TFDS prints a box about it.
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except ImportError as error:
        missing = "TensorFlow" if "tensorflow" in str(error) else error.name
        raise CorpusError(f"corpus {name}: preparing it needs {missing}, which is not installed") from None
    # Data sets are downloaded and read by code of many authors.
    except Exception as error:
        raise CorpusError(f"corpus {name}: cannot be prepared: {first_line(error)}") from None


def _catalogued(name: str, base: str, directory: str | None) -> Any:
    for module in CATALOGUE:
        importlib.import_module(f"tensorflow_datasets.{module}")
    known = set(tfds.list_builders(with_community_datasets=False))
    if base in known:
        return tfds.builder_cls(base)
    folders = [Path(folder) for folder in tfds.core.utils.file_utils.list_data_dirs(given_data_dir=directory)]
    known |= {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir() if entry.is_dir()}
    if base in known:
        there = sorted({entry.name for folder in folders for entry in folder.glob(f"{base}/*") if entry.is_dir()})
        raise CorpusError(f"corpus {name}: is prepared there only as {', '.join(f'{base}/{config}' for config in there)}")
    raise CorpusError(f"corpus {name}: TFDS knows no data set of this name{_nearest(base, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"; the nearest is {near[0]}"
    return f"; there are {', '.join(known)}" if 0 < len(known) <= 10 else ""
