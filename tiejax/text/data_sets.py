"""TFDS data sets with a text feature as sources of documents; those not on disk yet are downloaded and prepared."""

import contextlib
import difflib
import functools
import importlib
import importlib.util
import io
import os
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader
from huggingface_hub import constants
from tensorflow_datasets.core import dataset_info, read_only_builder, registered
from tensorflow_datasets.core.utils import dtype_utils, flatten_nest_dict, temporary_assignment, tqdm_utils
from tensorflow_datasets.proto import tf_example_pb2

from tiejax.system.files import check_file
from tiejax.system.visible import cut
from tiejax.text.errors import CorpusError, first_line
from tiejax.text.network import reachable
from tiejax.text.sources import TFDS, Document, Source, file_size

HUB = "huggingface:"  # prefix of the TFDS names of Hugging Face data sets
# TFDS registers the older half of its catalogue only when these modules are imported.
CATALOGUE = ("question_answering", "summarization", "text", "text_simplification", "translate")
READ_AT_ONCE = 16_384


class DataSet(Source):
    """A TFDS data set as a source: one document per example of every split, in the order on disk. feature: the text to read."""

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


def byte_values(builder: Any, split: str, feature: str) -> Iterator[Sequence[bytes]]:
    """Yield the byte strings of one feature for each example of an array_record split; other features are not decoded.

    builder: a TFDS builder. Raises CorpusError if the records cannot be read.
    """
    parse = tf_example_pb2.Example.FromString
    try:
        for shard in builder.info.splits[split].filepaths:
            # Twice as fast as the data source of TFDS, which reads the same ranges.
            with contextlib.closing(ArrayRecordReader(str(shard))) as reader:
                number = reader.num_records()
                for start in range(0, number, READ_AT_ONCE):
                    for record in reader.read(start, min(start + READ_AT_ONCE, number)):
                        yield parse(record).features.feature[feature].bytes_list.value
    # The C++ readers raise exceptions of any type.
    except Exception as error:
        raise CorpusError(f"corpus {TFDS}{builder.info.name}: split {split} cannot be read: {first_line(error)}") from None


def open_data_set(name: str, text_feature: str | None, tfds_dir: str | None, say: Callable[[str], None]) -> DataSet:
    """Open the data set `tfds:NAME[/CONFIG]`, preparing it if necessary; arguments and errors as in `open_builder`."""
    builder = open_builder(name, tfds_dir, say, lambda builder: _text_feature(name, builder, text_feature))
    return DataSet(name, builder, _text_feature(name, builder, text_feature))


def open_builder(
    name: str, tfds_dir: str | None, say: Callable[[str], None], check: Callable[[Any], object] = lambda builder: None
) -> Any:
    """Return the TFDS builder of `tfds:NAME[/CONFIG]`, preparing the data set if necessary.

    say: called with a one-line message before a download. check: called with the builder before a download; raises
    CorpusError if the data set is unsuitable. Raises CorpusError if the data set is unknown or cannot be prepared.
    """
    wanted = name.removeprefix(TFDS)
    directory = os.path.expanduser(tfds_dir) if tfds_dir is not None else None
    try:
        builder = read_only_builder.builder_from_files(wanted, data_dir=directory)
    except registered.DatasetNotFoundError:
        with _temporary_folders_removed():
            unprepared = _unprepared(name, wanted, directory)
            check(unprepared)
            return _download_and_prepare(name, unprepared, say)
    except Exception as error:
        raise CorpusError(f"corpus {name}: cannot be opened: {first_line(error)}") from None
    if tfds.core.FileFormat.ARRAY_RECORD not in builder.info.available_file_formats():
        form = builder.info.file_format.value
        raise CorpusError(
            f"corpus {name}: is prepared in {builder.data_dir} as {form}, which only TensorFlow can read; "
            "prepare it with file_format array_record in another tfds_dir"
        )
    return builder


def _text_feature(name: str, builder: Any, wanted: str | None) -> str:
    infos = flatten_nest_dict(builder.info.features.get_tensor_info())
    features = sorted(path for path, info in infos.items() if dtype_utils.is_string(info.np_dtype) and len(info.shape) <= 1)
    if not features:
        raise CorpusError(f"corpus {name}: has no text feature; its features are {cut(', '.join(sorted(infos)))}")
    if wanted is not None and wanted not in features:
        raise CorpusError(f"text_feature {cut(wanted)}: unknown; {name} has the text features {', '.join(features)}")
    if wanted is None and len(features) > 1:
        raise CorpusError(f"text_feature: required, since {name} has the text features {', '.join(features)}")
    return wanted or features[0]


def _unprepared(name: str, wanted: str, directory: str | None) -> Any:
    """Return the builder of a data set that TFDS or Hugging Face lists and that is not on disk yet."""
    if wanted.startswith(HUB):
        if importlib.util.find_spec("datasets") is None:
            raise CorpusError(f"corpus {name}: needs the package datasets; run `pip install datasets`")
        if not reachable(constants.ENDPOINT):
            raise CorpusError(f"corpus {name}: not prepared yet, and {constants.ENDPOINT} does not answer; check the network")
    else:
        base, _, config = wanted.partition("/")
        cls = _catalogued(name, base.partition(":")[0], directory)
        config = config.partition(":")[0]
        if config and config not in cls.builder_configs:
            raise CorpusError(f"corpus {name}: {base} has no configuration {config!r}{_nearest(config, cls.builder_configs)}")
    with _preparing(name):
        return tfds.builder(wanted, data_dir=directory, file_format="array_record")


def _download_and_prepare(name: str, builder: Any, say: Callable[[str], None]) -> Any:
    on_hub = name.startswith(f"{TFDS}{HUB}")
    urls = [constants.ENDPOINT] if on_hub else [*(builder.url_infos or ()), "https://storage.googleapis.com"]
    url = next(url for url in urls if url.startswith("http"))
    host, where = url.split("/")[2], builder.data_dir_root
    # TFDS itself would retry silently for minutes.
    if not reachable(url):
        raise CorpusError(f"corpus {name}: not prepared in {where} yet, and {host} does not answer; check the network")
    say(f"downloading {name.removeprefix(TFDS)} from {host} and preparing it in {where}")
    with _preparing(name), temporary_assignment(tqdm_utils, "_active", False):  # without progress bars
        builder.download_and_prepare(
            file_format="array_record", download_config=tfds.download.DownloadConfig(try_download_gcs=False)
        )
    # Reopen it from disk, where the splits may be in another order, as later runs will do.
    return tfds.builder_from_directory(builder.data_dir)


@contextlib.contextmanager
def _temporary_folders_removed() -> Iterator[None]:
    """On exit, remove the temporary folders that TFDS creates for the metadata of each new builder and never deletes."""
    with tempfile.TemporaryDirectory() as folder:
        inside = types.SimpleNamespace(mkdtemp=functools.partial(tempfile.mkdtemp, dir=folder))
        with temporary_assignment(dataset_info, "tempfile", inside):
            yield


@contextlib.contextmanager
def _preparing(name: str) -> Iterator[None]:
    try:
        # TFDS prints a banner if TensorFlow is missing.
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except ImportError as error:
        missing = "TensorFlow" if "tensorflow" in str(error) else error.name
        raise CorpusError(f"corpus {name}: preparing it needs {missing}, which is not installed") from None
    # The code of data sets, by many authors, raises exceptions of any type.
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
        prepared = sorted({entry.name for folder in folders for entry in folder.glob(f"{base}/*") if entry.is_dir()})
        raise CorpusError(f"corpus {name}: only prepared as {', '.join(f'{base}/{config}' for config in prepared)}")
    raise CorpusError(f"corpus {name}: unknown TFDS data set{_nearest(base, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; expected one of {', '.join(known)}" if 0 < len(known) <= 10 else ""
