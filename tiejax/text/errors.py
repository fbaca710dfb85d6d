"""Errors about text that cannot be used."""


class CorpusError(ValueError):
    """A corpus, tokenizer or prepared set cannot be used. The message is one line that begins with the setting at fault."""


def first_line(error: Exception) -> str:
    """Return the first line of the message of an exception, or the name of its type if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
