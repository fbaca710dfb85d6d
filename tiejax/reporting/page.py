"""One self-contained HTML page about a run: the answer first, then the claims, then everything else."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from tiejax.reporting.words import cells, number


def embed(png: Path) -> str:
    """Return a PNG file as a data address, so that the page needs no other file."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()


def template(name: str, folder: Path | None = None) -> jinja2.Template:
    """Return a template of `folder` (default: this one), which escapes what it is given and raises where something is missing."""
    own = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder or own, own]),
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
    finding: Sequence[str],
    setting: Mapping[str, Any],
    notes: Sequence[str],
    claims: Mapping[str, Sequence[Mapping[str, Any]]],
    figures: Sequence[tuple[str, Path]],
    numbers: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]],
    reproduce: Mapping[str, str],
) -> str:
    """Return the page.

    finding: what was found, a sentence or two made from the verdicts. claims: heading -> rows as `assess` gives them.
    figures: (caption, PNG file); the first stands beside the finding. numbers: heading -> (columns, rows). reproduce: what to
    run, where and with what, by name.
    """
    return template("page.html.j2").render(
        title=title,
        question=question,
        finding=finding,
        setting=setting,
        notes=notes,
        claims=claims,
        figures=[(caption, embed(png)) for caption, png in figures],
        numbers=numbers,
        reproduce=reproduce,
    )
