"""The prose shipped with CPython as a corpus: its documentation topics and the docstrings of its standard library."""

import ast
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from tiejax.text.errors import CorpusError
from tiejax.text.sources import Document, Source, file_size

# Tests, and folders that not every installation has.
SKIPPED_FOLDERS = {
    *("__phello__", "__pycache__", "dist-packages", "ensurepip", "idlelib", "idle_test", "lib2to3", "pydoc_data"),
    *("site-packages", "test", "tests", "turtledemo"),
}


class StandardLibrary(Source):
    """The default corpus: one document per module and one for all documentation topics, without repeated paragraphs."""

    kind, name = "_StandardLibrary", "(the standard library)"

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
                f"corpus: required, since {root} contains no source files of the standard library; name a text file"
            )

    @property
    def size(self) -> int:
        return sum(map(file_size, self.files))

    def documents(self) -> Iterator[Document]:
        # Modules repeat paragraphs of one another, which must not be in both the training and the test split.
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
                raise CorpusError(f"corpus: the standard library cannot be read: {file}: {error.strerror}") from None


def _topics(source: bytes) -> list[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            return list(ast.literal_eval(node.value).values())
    return []


def _docstrings(source: bytes) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SyntaxWarning and DeprecationWarning about the code of the library
        tree = ast.parse(source)
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    documented = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    documented.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for node in documented if (text := ast.get_docstring(node))]


def prose(documentation: str) -> list[str]:
    """Return the paragraphs of prose in reStructuredText or a docstring, without code, signatures, tables and headings."""
    plain = re.sub(r"``?|\*\*|(?<!\w)\*(?=\w[^*\n]*\*)|(?<=\w)\*(?!\w)|:[a-z:]+:(?=`)|`_*", "", documentation)
    # A bullet or a number starts a new paragraph.
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
