"""One self-contained HTML page about a run."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from tiejax.runs.console import cells, number


def embed(png: Path) -> str:
    """Return a PNG file as a data address, so that the page needs no other file."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()


def template(name: str) -> jinja2.Template:
    """Return a template of this folder, which escapes what it is given and raises where something is missing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(cells=cells, number=number)
    return environment.get_template(name)


def render(
    title: str,
    question: str,
    setting: Mapping[str, Any],
    notes: Sequence[str],
    claims: Mapping[str, Sequence[Mapping[str, Any]]],
    figures: Sequence[tuple[str, Path]],
    numbers: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]],
    reproduce: Mapping[str, str],
) -> str:
    """Return the page.

    claims: heading -> rows as `assess` gives them. figures: (caption, PNG file). numbers: heading -> (columns, rows).
    reproduce: what to run, where and with what, by name.
    """
    return template("report.html.j2").render(
        title=title,
        question=question,
        setting=setting,
        notes=notes,
        claims=claims,
        figures=[(caption, embed(png)) for caption, png in figures],
        numbers=numbers,
        reproduce=reproduce,
    )
