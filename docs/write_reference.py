"""Write signatures and docstrings below the headings of docs/reference.md: python docs/write_reference.py.

A heading of the third level names a public object; the text below it, up to the next heading, is replaced. A test checks that
the page is current.
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

PAGE = Path(__file__).with_name("reference.md")
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


def described(docstring: str) -> str:
    """Return a docstring in the Google style as Markdown."""
    text, *sections = SECTION.split(inspect.cleandoc(docstring))
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
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "128", "-"]
    formatted = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    code = dict(zip(things, map(str.strip, formatted.split(mark)), strict=True))

    def entry(match: re.Match[str]) -> str:
        name = match[1]
        return f"### {name}\n\n```python\n{code[name]}\n```\n\n{described(things[name].__doc__ or '')}\n\n"

    return ENTRY.sub(entry, page).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
