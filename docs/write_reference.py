"""Write signatures and docstrings below the headings of the pages in docs/reference: python docs/write_reference.py.

A heading of the third level names a public object; the text below it, up to the next heading, is replaced. The list of names in
docs/reference.md follows. A test checks that the pages are current.
"""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("reference")
INDEX = FOLDER.with_suffix(".md")
PAGES = ("ties", "special_ties", "laboratory", "training", "statistics", "checkpoints")
WIDTH = 90  # of code on a page, which a window of 1,280 px shows without scrolling
NAMES = re.compile(r"(<!-- names -->\n).*?(<!-- end of names -->)", re.DOTALL)
ENTRY = re.compile(r"^### (\S+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Examples):\n", re.MULTILINE)
ITEM = re.compile(r"^(?=\S)([^:\n]+):\s", re.MULTILINE)
TITLES = {"Args": "Arguments"}


def public(name: str) -> Any:
    """Return the object of a public name, as `tiejax.lab.Ensemble`."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def signature(thing: Any) -> str:
    """Return a function without its body, or a class with its fields and the signature of its constructor, as Python."""
    if not callable(thing):
        return repr(thing)
    node: Any = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body[0]
    empty: list[ast.stmt] = [ast.Expr(ast.Constant(...))]
    functions = [node]
    if isinstance(node, ast.ClassDef):
        functions = [line for line in node.body if getattr(line, "name", None) in ("__init__", "__new__")]
        node.body = [line for line in node.body if _is_field(line) or line in functions] or empty
    for function in functions:
        function.body = empty
    node.decorator_list = []
    return ast.unparse(node)


def _is_field(line: ast.stmt) -> bool:
    return isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and not line.target.id.startswith("_")


def docstring(thing: Any) -> str:
    """Return the docstring of a function or class, or what kind of object a constant is."""
    return thing.__doc__ or "" if callable(thing) else f"An instance of `{type(thing).__name__}`."


def described(text: str) -> str:
    """Return a docstring in the Google style as Markdown."""
    text, *sections = SECTION.split(inspect.cleandoc(text))
    parts = [text.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        body = textwrap.dedent(body).strip()
        if title == "Examples":
            body = f"```pycon\n{body}\n```"
        elif title not in ("Returns", "Yields"):
            body = ITEM.sub(r"* `\1`: ", body)
        parts += [f"**{TITLES.get(title, title)}**", body]
    return "\n\n".join(parts)


def written(page: str) -> str:
    """Return the page with the present signatures and docstrings."""
    things = {name: public(name) for name, _ in ENTRY.findall(page)}
    mark = "# next"
    source = f"\n{mark}\n".join(map(signature, things.values()))
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(WIDTH), "-"]
    formatted = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    code = dict(zip(things, map(str.strip, formatted.split(mark)), strict=True))

    def entry(match: re.Match[str]) -> str:
        name = match[1]
        return f"### {name}\n\n```python\n{code[name]}\n```\n\n{described(docstring(things[name]))}\n\n"

    return ENTRY.sub(entry, page).rstrip() + "\n"


def listed(name: str, page: str) -> str:
    """Return the section of the index about a page: its names with the first sentences of their docstrings."""
    title = page.splitlines()[0].partition(": ")[2]
    lines = [f"## {title[:1].upper()}{title[1:]}", ""]
    for entry, _ in ENTRY.findall(page):
        paragraph = inspect.cleandoc(docstring(public(entry))).partition("\n\n")[0]
        sentence = re.split(r"(?<=[.:]) ", " ".join(paragraph.split()))[0].rstrip(":.")
        anchor = re.sub(r"[^\w-]", "", entry.lower())
        lines.append(f"* [`{entry}`](reference/{name}.md#{anchor}): {sentence}.")
    return "\n".join([*lines, "", ""])


def pages() -> dict[Path, str]:
    """Return the pages of the reference and its index, as they should be."""
    found = {name: written((FOLDER / f"{name}.md").read_text()) for name in PAGES}
    names = "\n" + "".join(listed(name, page) for name, page in found.items())
    index = NAMES.sub(lambda block: f"{block[1]}{names}{block[2]}", INDEX.read_text())
    return {INDEX: index} | {FOLDER / f"{name}.md": page for name, page in found.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
