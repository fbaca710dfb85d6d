"""Checks of a hub's answers, before the client library huggingface_hub uses them as names of files.

The library joins commits and ETags to the path of its cache as they are received, so that a hub could otherwise choose where
files are written.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tiejax.system.files import is_name
from tiejax.system.visible import cut

COMMIT = re.compile(r"[0-9a-f]{40}")
MOST_TAG_LETTERS = 128  # a SHA-256 has 64; the library appends endings to an ETag


class InvalidAnswer(ValueError):
    """Raised for an answer of a hub that cannot be used; the message is one line that starts with the hub's address."""


@contextlib.contextmanager
def checked_answers() -> Iterator[None]:
    """Make downloads by huggingface_hub in this context raise InvalidAnswer before they write anything with an invalid name.

    Commits must have 40 hexadecimal digits; ETags and the parts of paths must be names of files. The library's warnings, which
    may quote the hub, are not printed. Its exceptions other than OSError and ValueError become InvalidAnswer, since it assumes
    that answers are well-formed.
    """
    from huggingface_hub import _snapshot_download, constants, file_download
    from huggingface_hub.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with (
            _replaced(file_download, "get_hf_file_metadata", _checked_metadata(file_download.get_hf_file_metadata)),
            _replaced(_snapshot_download, "HfApi", _checked_api()),
        ):
            yield
    except Exception as error:
        if isinstance(error, OSError | ValueError) and not isinstance(error, json.JSONDecodeError):
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidAnswer(f"{constants.ENDPOINT}: sent an answer that cannot be used ({cut(what)})") from None
    finally:
        logging.set_verbosity(verbosity)


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _checked_metadata(get: Callable[..., Any]) -> Callable[..., Any]:
    """Return the library's function for the headers of a file, with checks."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    def checked(*args: Any, **options: Any) -> Any:
        try:
            found = get(*args, **options)
        except HfHubHTTPError as error:  # the library records that a file is missing under the commit of this answer
            if (commit := error.response.headers.get(constants.HUGGINGFACE_HEADER_X_REPO_COMMIT)) is not None:
                _check_commit(commit)
            raise
        _check_commit(found.commit_hash)
        _check_tag(found.etag)
        return found

    return checked


def _checked_api() -> type:
    """Return the library's client, with checks of commits and of lists of files."""
    from huggingface_hub import HfApi

    class Checked(HfApi):
        def repo_info(self, *args: Any, **options: Any) -> Any:
            found = super().repo_info(*args, **options)
            _check_commit(found.sha)
            for file in getattr(found, "siblings", None) or ():
                _check_file(file.rfilename)
            return found

        def list_repo_tree(self, *args: Any, **options: Any) -> Any:
            for entry in super().list_repo_tree(*args, **options):
                _check_file(entry.path)
                if (large := getattr(entry, "lfs", None)) is not None:
                    _check_tag(large.sha256)
                yield entry

    return Checked


def _check_commit(commit: Any) -> None:
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise _invalid("commit", commit, "40 hexadecimal digits")


def _check_tag(tag: Any) -> None:
    if not isinstance(tag, str) or not is_name(tag) or len(tag) > MOST_TAG_LETTERS or not tag.isprintable():
        raise _invalid("ETag", tag, f"at most {MOST_TAG_LETTERS} letters, none of them a separator of paths")


def _check_file(file: Any) -> None:
    if not isinstance(file, str) or not all(map(is_name, file.split("/"))):
        raise _invalid("file name", file, "a relative path of names with at most 255 bytes, without '..' and backslashes")


def _invalid(what: str, got: Any, expected: str) -> InvalidAnswer:
    from huggingface_hub import constants

    found = f"the {what} {cut(repr(got))}" if got is not None else f"no {what}"
    return InvalidAnswer(f"{constants.ENDPOINT}: answered with {found}; expected {expected}")
