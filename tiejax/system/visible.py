"""Text of unknown origin, escaped so that a terminal or a page cannot interpret it."""

import unicodedata

# Unicode categories: control, format (bidirectional overrides, for example), surrogate, line and paragraph separators.
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Format characters that stay, because several languages and joined emoji need them.
JOINERS = "\u200c\u200d"
LONGEST = 4000  # characters in a line


def visible(text: str) -> str:
    r"""Replace every invisible character, including line ends, with its escape (`\n`, `\x1b`, `\u202e`)."""
    if text.isascii() and text.isprintable():
        return text
    hidden = {letter for letter in set(text) if unicodedata.category(letter) in HIDDEN and letter not in JOINERS}
    return "".join(letter.encode("unicode_escape").decode("ascii") if letter in hidden else letter for letter in text)


def visible_lines(text: str) -> str:
    r"""Replace every invisible character, except line ends (`\n`), with its escape."""
    return "\n".join(map(visible, text.split("\n")))


def visible_line(line: str) -> str:
    """Escape the invisible characters of a line, and replace the middle of a line over 4,000 characters with a count."""
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... ({len(line) - LONGEST:,} characters) ... {line[-LONGEST // 2 :]}"
    return visible(line)


def cut(value: object, longest: int = 80) -> str:
    """Shorten a value for an error message: text of more than `longest` characters is cut to end in "..."."""
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
