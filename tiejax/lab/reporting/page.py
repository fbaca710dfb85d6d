"""One self-contained HTML page about a run: the answer first, then the claims, then everything else."""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from tiejax.lab.reporting.figures import RC
from tiejax.lab.reporting.words import cells, number
from tiejax.system.visible import visible_lines

CODE = re.compile("`([^`\n]+)`")
TEMPLATE = Path(__file__).with_name("page.html.j2")
CSS_PIXELS_PER_INCH = 112  # a little over the 96 of print, so that the text of plots is read beside that of the page


def render(
    title: str,
    question: str,
    finding: Sequence[str],
    setting: Mapping[str, Any],
    notes: Sequence[str],
    claims: Mapping[str, Sequence[Mapping[str, Any]]],
    figures: Sequence[tuple[str, Path]],
    numbers: Mapping[str, Sequence[Any]],
    reproduce: Mapping[str, str],
    template: Path = TEMPLATE,
    **more: Any,
) -> str:
    """Return the page.

    finding: what was found, a sentence or two made from the verdicts. setting: what was run, in words, by name. claims:
    heading -> rows as `statistics.claims.assess` gives them. figures: (caption, PNG file); the first stands beside the
    finding. numbers: heading -> (columns, rows). reproduce: what to run, where and with what, by name.
    template: a file that extends `page.html.j2` and may ask for `more`.
    """
    return _template(template).render(
        title=title,
        question=question,
        finding=finding,
        setting=setting,
        notes=notes,
        claims=claims,
        figures=[(caption, embed(png), _width(png)) for caption, png in figures],
        numbers=numbers,
        reproduce=reproduce,
        **more,
    )


class RunOnPage(NamedTuple):
    """What a page says of a run.

    results: the body of results.json. settings: resolved, and settings_text: their YAML. facts: environment.json. pictures:
    captions and PNG files.
    """

    results: Mapping[str, Any]
    settings: Mapping[str, Any]
    settings_text: str
    facts: Mapping[str, Any]
    pictures: Sequence[tuple[str, Path]]


def embed(png: Path) -> str:
    """Return a PNG file as a data address, so that the page needs no other file."""
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode()


def _width(png: Path) -> int:
    """Return how wide a PNG file is to be shown, in CSS's pixels: as many inches as it was plotted for."""
    # Of a PNG file, bytes 16 to 19 are its width.
    return round(int.from_bytes(png.read_bytes()[16:20]) * CSS_PIXELS_PER_INCH / RC["savefig.dpi"])


def _template(file: Path) -> jinja2.Template:
    """Return a template, which escapes what it is given, control characters too, and raises where something is missing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([file.parent, TEMPLATE.parent]),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(cells=cells, number=number)
    environment.filters.update(prose=_prose, plain=_plain)
    return environment.get_template(file.name)


def _visible(value: Any) -> Any:
    # What a macro made of values, Markup, has been through here.
    return visible_lines(value) if type(value) is str else value


def _prose(text: Any) -> Markup:
    """Return text for an HTML element, escaped, with each `name` in backticks as a code element."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(visible_lines(str(text))))))


def _plain(text: Any) -> str:
    """Return text for an attribute or the page's title, where there are no elements, without backticks."""
    return CODE.sub(r"\1", str(text))
