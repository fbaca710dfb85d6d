"""Text of unknown origin, escaped so that a terminal or a page cannot interpret it."""

import unicodedata

# Control, format (bidirectional overrides among them), surrogate, line and paragraph separators.
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The spelling of several languages, and joined emoji, need them.
JOINERS = "\u200c\u200d"
LONGEST = 4000  # characters of a line


def visible(text: str) -> str:
    r"""Replace every invisible character, line ends included, by its escape (`\n`, `\x1b`, `\u202e`)."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(letter) if _is_hidden(letter) else letter for letter in text)


def visible_lines(text: str) -> str:
    r"""Replace every invisible character but line ends (`\n`) by its escape."""
    return "\n".join(map(visible, text.split("\n")))


def visible_line(line: str) -> str:
    """Escape the invisible characters of a line, and replace the middle of a line of more than 4,000 characters by a count."""
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... ({len(line) - LONGEST:,} characters) ... {line[-LONGEST // 2 :]}"
    return visible(line)


def _is_hidden(letter: str) -> bool:
    return unicodedata.category(letter) in HIDDEN and letter not in JOINERS


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def cut(value: object, longest: int = 80) -> str:
    """Shorten a value for an error message: more than `longest` characters are cut and end in "..."."""
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
