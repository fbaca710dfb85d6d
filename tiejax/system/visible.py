"""Text of unknown origin as it may be shown on a terminal or a page: nothing in it can act."""

import unicodedata

# Control, format (bidirectional overrides among them), surrogate, line and paragraph separators.
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Words of several languages, and joined emoji, are spelled with them.
JOINERS = "\u200c\u200d"
LONGEST = 4000  # of a line that is shown


def visible(text: str) -> str:
    r"""Return a text with every character that is not seen, line ends among them, as its escape (`\n`, `\x1b`, `\u202e`)."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(letter) if _is_hidden(letter) else letter for letter in text)


def visible_lines(text: str) -> str:
    r"""Return a text as `visible` does, its line ends (`\n`) kept."""
    return "\n".join(map(visible, text.split("\n")))


def shown(line: str) -> str:
    """Return a line as `visible` does; of one that is longer than a few screens, its beginning and its end."""
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... ({len(line) - LONGEST:,} characters) ... {line[-LONGEST // 2 :]}"
    return visible(line)


def _is_hidden(letter: str) -> bool:
    return unicodedata.category(letter) in HIDDEN and letter not in JOINERS


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def cut(value: object, longest: int = 80) -> str:
    """Return a value as text for an error message: its first 77 characters and "..." if it has more than 80."""
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
