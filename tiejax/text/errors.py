"""What is said of text that cannot be used."""


class CorpusError(ValueError):
    """A corpus, tokenizer or prepared set that cannot be used: one line that begins with the field to blame."""


def first_line(error: Exception) -> str:
    """Return the first line of what an exception says, or else its name."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
