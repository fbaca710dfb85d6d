"""Text: files, folders, TFDS data sets, or the prose that every CPython carries; and the sentences in it.

Reading files or the default needs neither a network nor TensorFlow.
"""

# TFDS carries no types.

import abc
import ast
import contextlib
import difflib
import gzip
import hashlib
import importlib.util
import io
import os
import re
import sysconfig
import threading
import urllib.error
import urllib.request
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nupunkt

SUFFIXES = (".txt", ".text", ".md")
TFDS = "tfds:"
HUB = "huggingface:"  # how TFDS names the data sets of the hub
SECONDS_TO_ANSWER = 3.0
RECORDS_AT_ONCE = 16_384

# Of the standard library: no tests, no data of tests, nothing that is not part of the library on every machine.
SKIPPED_FOLDERS = {
    "__phello__",
    "__pycache__",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "idle_test",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}


class CorpusError(ValueError):
    """A corpus, tokenizer or prepared set that cannot be used: one line that begins with the option to blame."""


class Document(NamedTuple):
    """A text, and how many bytes on disk it took, for a progress bar."""

    text: str
    taken: int


class Source(abc.ABC):
    """Somewhere that documents come from."""

    name: str

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Bytes on disk."""

    @abc.abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield its documents, always in the same order."""

    @abc.abstractmethod
    def raw(self) -> Iterator[bytes]:
        """Yield bytes that are the same only if the documents are: cheaper to hash than the documents."""


def documents(corpus: Sequence[str], text_feature: str | None = None, tfds_dir: str | None = None) -> Iterator[str]:
    """Yield the texts of `corpus` in order: one a file, or one an example of a data set.

    corpus: files, folders (every .txt, .text, .md of them and .gz of these, by path), .gz files, `tfds:NAME[/CONFIG]`;
    empty for the documentation inside the standard library. text_feature: the feature to read where a data set has
    several. tfds_dir: where TFDS keeps its data sets. Raises CorpusError.
    """
    yield from read(sources(corpus, text_feature, tfds_dir))


def sources(
    corpus: Sequence[str],
    text_feature: str | None = None,
    tfds_dir: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Source]:
    """Return where the documents of `corpus` come from, every one of them known to exist.

    A data set that TFDS has not prepared yet is downloaded and prepared, after `say` has said so.
    """
    if text_feature is not None and not any(name.startswith(TFDS) for name in corpus):
        raise CorpusError(f"--text_feature {text_feature}: only a corpus {TFDS}NAME has features")
    if not corpus:
        return [_StandardLibrary()]
    found: list[Source] = []
    for name in corpus:
        if name.startswith(TFDS):
            found.append(_tfds(name, text_feature, tfds_dir, say))
        else:
            found.extend(_TextFile(path) for path in _files(name))
    return found


def read(found: Sequence[Source], seen: Callable[[int], None] = lambda taken: None) -> Iterator[str]:
    """Yield the documents of these sources; `seen` is told the bytes on disk that were read so far.

    Raises CorpusError if there is no text in any of them.
    """
    empty, taken = True, 0
    for source in found:
        for document in source.documents():
            taken += document.taken
            seen(taken)
            if document.text and not document.text.isspace():
                empty = False
                yield document.text
    if empty:
        names = [source.name for source in found]
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise CorpusError(f"--corpus {shown}: there is no text in it")


def fingerprint(found: Iterable[Source], seen: Callable[[int], None] = lambda taken: None) -> str:
    """Return the SHA-256 (hex) of what these sources hold, in order, whatever they are called."""
    digest, taken = hashlib.sha256(), 0
    for source in found:
        digest.update(type(source).__name__.encode())
        for raw in source.raw():
            taken += len(raw)
            seen(taken)
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
    return digest.hexdigest()


def sentences(document: str) -> list[str]:
    """Return the sentences of a text, white space normalised; blank lines end a sentence, other line ends do not."""
    # Punkt alone would join a heading to the paragraph below it.
    tokenize = nupunkt.load("default").tokenize
    lines = document.replace("\r\n", "\n").replace("\r", "\n")
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", lines))
    found = (sentence.strip() for paragraph in paragraphs if paragraph for sentence in tokenize(paragraph))
    return [sentence for sentence in found if sentence]


def reachable(url: str) -> bool:
    """Return whether the host of `url` answers within 3 s; any answer counts."""
    answered: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=SECONDS_TO_ANSWER).close()
        except urllib.error.HTTPError as error:
            error.close()
        except (OSError, ValueError):
            return
        answered.append(True)

    # The look-up of a name knows no time limit, so it is left behind in a thread that does not keep the process alive.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS_TO_ANSWER)
    return bool(answered)


def first_line(error: Exception) -> str:
    """Return the first line of what an exception says, or else its name."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def is_text(file: str) -> bool:
    """Return whether a file of this name is read where its folder is a corpus."""
    return file.lower().removesuffix(".gz").endswith(SUFFIXES)


# Files.


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # whoever reads it says what is wrong


def _files(name: str) -> list[Path]:
    path = Path(name)
    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise CorpusError(f"--corpus {name}: {'is no file' if path.exists() else 'there is no such file or folder'}")
        found = [Path(folder, file) for folder, _, files in os.walk(path, onerror=_raise) for file in files if is_text(file)]
    except OSError as error:
        raise CorpusError(f"--corpus {error.filename or name}: cannot be read: {error.strerror}") from None
    if not found:
        wanted = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise CorpusError(f"--corpus {name}: the folder holds no {wanted} nor any .gz of these")
    return sorted(found, key=lambda file: file.relative_to(path).parts)


def _raise(error: OSError) -> None:
    raise error


class _TextFile(Source):
    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    @property
    def size(self) -> int:
        return _size(self.path)

    def documents(self) -> Iterator[Document]:
        (raw,) = self.raw()
        content, where = raw, "byte"
        if self.path.name.lower().endswith(".gz"):
            where = "unpacked byte"
            try:
                content = gzip.decompress(raw)
            except (OSError, EOFError, zlib.error) as error:
                raise CorpusError(f"--corpus {self.path}: is no whole .gz file: {error}") from None
        if (at := content.find(b"\0")) >= 0:
            raise CorpusError(f"--corpus {self.path}: {where} {at} is NUL: a binary file, or text that is not UTF-8")
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            value = content[error.start]
            raise CorpusError(
                f"--corpus {self.path}: {where} {error.start} is not UTF-8 (0x{value:02x}: {error.reason})"
            ) from None
        yield Document(text.removeprefix("\ufeff"), len(raw))

    def raw(self) -> Iterator[bytes]:
        try:
            yield self.path.read_bytes()
        except OSError as error:
            raise CorpusError(f"--corpus {self.path}: cannot be read: {error.strerror}") from None


# The standard library's own documentation.


class _StandardLibrary(Source):
    name = "(the standard library)"

    def __init__(self) -> None:
        root = Path(sysconfig.get_path("stdlib"))
        modules = []
        for folder, below, files in os.walk(root):
            below[:] = [name for name in below if name not in SKIPPED_FOLDERS and not name.startswith("config-")]
            modules += [Path(folder, file) for file in files if file.endswith(".py")]
        modules.sort(key=lambda file: file.relative_to(root).parts)
        topics = root / "pydoc_data" / "topics.py"
        self.files = [*([topics] if topics.is_file() else []), *modules]
        if not self.files:
            raise CorpusError(
                f"--corpus: not given, and this Python carries no source of its library in {root}; name a text file"
            )

    @property
    def size(self) -> int:
        return sum(map(_size, self.files))

    def documents(self) -> Iterator[Document]:
        # Some modules repeat one another, and what is in the training split should not come again in the test split.
        seen: set[str] = set()
        for file, raw in zip(self.files, self.raw(), strict=True):
            new = []
            for text in _topics(raw) if file.parent.name == "pydoc_data" else _docstrings(raw):
                for paragraph in prose(text):
                    if paragraph not in seen:
                        seen.add(paragraph)
                        new.append(paragraph)
            yield Document("\n\n".join(new), len(raw))

    def raw(self) -> Iterator[bytes]:
        for file in self.files:
            try:
                yield file.read_bytes()
            except OSError as error:
                raise CorpusError(f"--corpus: not given, and {file} cannot be read: {error.strerror}") from None


def _topics(source: bytes) -> list[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            return list(ast.literal_eval(node.value).values())
    return []


def _docstrings(source: bytes) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SyntaxWarning and DeprecationWarning: how the library is written is not our matter
        tree = ast.parse(source)
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    documented = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    documented.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for node in documented if (text := ast.get_docstring(node))]


def prose(documentation: str) -> list[str]:
    """Return the paragraphs of reStructuredText or of a docstring that are sentences: no code, signatures, tables, headings."""
    plain = re.sub(r"``?|\*\*|(?<!\w)\*(?=\w[^*\n]*\*)|(?<=\w)\*(?!\w)|:[a-z:]+:(?=`)|`_*", "", documentation)
    # A bullet or a number begins a paragraph.
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[*+-]|\d+[.)]|\(\d+\))\s)", plain)
    paragraphs = (re.sub(r"^(?:[*+-]|\d+[.)]|\(\d+\))\s+", "", " ".join(block.split())) for block in blocks)
    return [paragraph for paragraph in paragraphs if _is_prose(paragraph)]


def _is_prose(paragraph: str) -> bool:
    words = re.findall(r"(?<!\S)[\"'(]*[A-Za-z][a-z'-]*[.,;:!?)\"']*(?!\S)", paragraph)
    return (
        len(words) >= 4
        and len(words) >= 0.75 * len(paragraph.split())
        and paragraph[0].isupper()
        and paragraph.rstrip("\"')")[-1:] in (".", "!", "?")
        and not re.search(r">>>|::=|->|==|--{2,}|[{}|\\]|\w\(\w*=", paragraph)
    )


# TFDS.


class _TFDS(Source):
    def __init__(self, name: str, builder: Any, feature: str) -> None:
        self.name, self.builder, self.feature = name, builder, feature

    @property
    def shards(self) -> list[Path]:
        return [Path(path) for split in self.builder.info.splits.values() for path in split.filepaths]

    @property
    def size(self) -> int:
        return sum(map(_size, self.shards))

    def documents(self) -> Iterator[Document]:
        number = sum(split.num_examples for split in self.builder.info.splits.values())
        share = self.size // max(number, 1)
        for split in self.builder.info.splits:
            for index, values in enumerate(byte_values(self.builder, split, self.feature)):
                try:
                    text = "\n\n".join(value.decode("utf-8") for value in values)
                except UnicodeDecodeError as error:
                    where = f"example {index} of split {split}, byte {error.start}"
                    raise CorpusError(f"--corpus {self.name}: {where} is not UTF-8 ({error.reason})") from None
                yield Document(text, share)

    def raw(self) -> Iterator[bytes]:
        yield self.feature.encode()
        for shard in self.shards:
            try:
                with shard.open("rb") as file:
                    while block := file.read(1 << 24):
                        yield block
            except OSError as error:
                raise CorpusError(f"--corpus {self.name}: {shard} cannot be read: {error.strerror}") from None


def byte_values(builder: Any, split: str, feature: str) -> Iterator[Sequence[bytes]]:
    """Yield the byte strings of a feature of each example of an array_record split, without decoding the others.

    builder: a tensorflow_datasets builder. Raises CorpusError where the records cannot be read.
    """
    from array_record.python.array_record_module import ArrayRecordReader
    from tensorflow_datasets.proto import tf_example_pb2

    parse = tf_example_pb2.Example.FromString
    try:
        for shard in builder.info.splits[split].filepaths:
            # The data source of TFDS reads the same ranges, at half the speed.
            with contextlib.closing(ArrayRecordReader(str(shard))) as reader:
                number = reader.num_records()
                for start in range(0, number, RECORDS_AT_ONCE):
                    for record in reader.read(start, min(start + RECORDS_AT_ONCE, number)):
                        yield parse(record).features.feature[feature].bytes_list.value
    # The readers are C++ and raise what they like.
    except Exception as error:
        raise CorpusError(f"--corpus {TFDS}{builder.info.name}: split {split} cannot be read: {first_line(error)}") from None


def _tfds(name: str, text_feature: str | None, tfds_dir: str | None, say: Callable[[str], None]) -> _TFDS:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import read_only_builder, registered

    wanted = name.removeprefix(TFDS)
    directory = os.path.expanduser(tfds_dir) if tfds_dir is not None else None
    try:
        builder = read_only_builder.builder_from_files(wanted, data_dir=directory)
    except registered.DatasetNotFoundError:
        unprepared = _unprepared(name, wanted, directory)
        feature = _text_feature(name, unprepared, text_feature)
        return _TFDS(name, _download_and_prepare(name, unprepared, say), feature)
    except Exception as error:
        raise CorpusError(f"--corpus {name}: cannot be opened: {first_line(error)}") from None
    if tfds.core.FileFormat.ARRAY_RECORD not in builder.info.available_file_formats():
        form = builder.info.file_format.value
        raise CorpusError(
            f"--corpus {name}: is prepared in {builder.data_dir} as {form}, which only TensorFlow reads; "
            "prepare it with file_format array_record in another --tfds_dir"
        )
    return _TFDS(name, builder, _text_feature(name, builder, text_feature))


def _text_feature(name: str, builder: Any, wanted: str | None) -> str:
    from tensorflow_datasets.core import utils
    from tensorflow_datasets.core.utils import dtype_utils

    infos = utils.flatten_nest_dict(builder.info.features.get_tensor_info())
    features = sorted(path for path, info in infos.items() if dtype_utils.is_string(info.np_dtype) and len(info.shape) <= 1)
    if not features:
        raise CorpusError(f"--corpus {name}: none of its features is text ({', '.join(sorted(infos))})")
    if wanted is not None and wanted not in features:
        raise CorpusError(f"--text_feature {wanted}: {name} has the text features {', '.join(features)}")
    if wanted is None and len(features) > 1:
        raise CorpusError(f"--text_feature: needed, since {name} has the text features {', '.join(features)}")
    return wanted or features[0]


def _unprepared(name: str, wanted: str, directory: str | None) -> Any:
    """The builder of a data set of the catalogue that is not on this disk yet."""
    import tensorflow_datasets as tfds

    if wanted.startswith(HUB):
        if importlib.util.find_spec("datasets") is None:
            raise CorpusError(f"--corpus {name}: needs the package datasets, which is not installed (pip install datasets)")
        if not reachable(_hub()):
            raise CorpusError(f"--corpus {name}: is not prepared, and {_hub()}, where it is downloaded, does not answer")
        with _preparing(name):
            return tfds.builder(wanted, data_dir=directory, file_format="array_record")
    base, _, config = wanted.partition("/")
    cls = _catalogued(name, base.partition(":")[0], directory)
    config = config.partition(":")[0]
    if config and config not in cls.builder_configs:
        raise CorpusError(f"--corpus {name}: {base} has no configuration {config}{_nearest(config, cls.builder_configs)}")
    with _preparing(name):
        return tfds.builder(wanted, data_dir=directory, file_format="array_record")


def _hub() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _download_and_prepare(name: str, builder: Any, say: Callable[[str], None]) -> Any:
    import tensorflow_datasets as tfds

    urls = [_hub()] if name.startswith(f"{TFDS}{HUB}") else [*(builder.url_infos or ()), "https://storage.googleapis.com"]
    url = next(url for url in urls if url.startswith("http"))
    host, where = url.split("/")[2], builder.data_dir_root
    # TFDS itself would try again for minutes and not say so.
    if not reachable(url):
        raise CorpusError(f"--corpus {name}: is not prepared in {where}, and {host}, where it is downloaded, does not answer")
    say(f"TFDS downloads {name.removeprefix(TFDS)} from {host} and prepares it in {where}")
    tfds.disable_progress_bar()
    with _preparing(name):
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
        raise CorpusError(f"--corpus {name}: preparing it needs {missing}, which is not installed") from None
    # Data sets are downloaded and read by code of many authors.
    except Exception as error:
        raise CorpusError(f"--corpus {name}: cannot be prepared: {first_line(error)}") from None


def _catalogued(name: str, base: str, directory: str | None) -> Any:
    import tensorflow_datasets as tfds

    # The older half of the catalogue is known only once the module that holds it has been imported.
    import tensorflow_datasets.question_answering
    import tensorflow_datasets.summarization
    import tensorflow_datasets.text
    import tensorflow_datasets.text_simplification
    import tensorflow_datasets.translate

    known = set(tfds.list_builders(with_community_datasets=False))
    if base in known:
        return tfds.builder_cls(base)
    folders = [Path(folder) for folder in tfds.core.utils.file_utils.list_data_dirs(given_data_dir=directory)]
    known |= {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir() if entry.is_dir()}
    if base in known:
        there = sorted({entry.name for folder in folders for entry in folder.glob(f"{base}/*") if entry.is_dir()})
        raise CorpusError(f"--corpus {name}: is prepared there only as {', '.join(f'{base}/{config}' for config in there)}")
    raise CorpusError(f"--corpus {name}: TFDS knows no data set of this name{_nearest(base, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f"; the nearest is {near[0]}"
    return f"; there are {', '.join(known)}" if 0 < len(known) <= 10 else ""
