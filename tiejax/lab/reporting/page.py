"""Self-contained HTML page about a run: the findings, the claims, then everything else."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

from tiejax.lab.reporting import sections
from tiejax.lab.reporting.figures import BOXES, RC
from tiejax.lab.reporting.finding import about, cells, remarks
from tiejax.system.visible import visible_lines

CODE = re.compile("`([^`\n]+)`")
CSS_PIXELS_PER_INCH = 112  # more than the nominal 96, so that lettering in figures matches the size of the page's text


class RunOnPage(NamedTuple):
    """The contents of a run that pages show.

    results: the body of results.json. settings: resolved settings; settings_text: their YAML. facts: environment.json.
    pictures: captions and PNG files.
    """

    results: Mapping[str, Any]
    settings: Mapping[str, Any]
    settings_text: str
    facts: Mapping[str, Any]
    pictures: Sequence[tuple[str, Path]]


def render(
    run: RunOnPage,
    *,
    title: str,
    question: str,
    finding: Sequence[str],
    setting: Mapping[str, str],
    numbers: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]],
    notes: Sequence[str] = (),
    claims: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({}),
    reproduce: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the HTML page of a run. Text in backticks becomes code, except in `reproduce`.

    The first figure of the run follows the finding. Parts and time of the run are added to the setting, the table of looks to
    the numbers, and command, settings and environment to `reproduce`.

    finding: sentences that summarise the verdicts. setting: the description of the run, by name. numbers: heading -> (columns,
    rows). claims: heading -> rows returned by `statistics.claims.assess`. reproduce: more lines, by name.
    """
    results = run.results
    time = sections.timing_words(results["timing"], run.facts) if "timing" in results else {}
    return _template().render(
        title=title,
        question=question,
        finding=finding,
        figures=[picture(caption, png, f"figure-{number}") for number, (caption, png) in enumerate(run.pictures, 1)],
        setting={**setting, **sections.parts_words(results), **time},
        notes=notes,
        claims=claims,
        numbers={**sections.looks_table(results), **numbers},
        reproduce={**sections.reproduction(run.facts, run.settings_text), **reproduce},
    )


class Picture(NamedTuple):
    """A figure on a page.

    id: its name in the page. data: the PNG file as a data URL, so that the page needs no other file. size: width and height in
    pixels. panels: [left, top, width, height] of each panel in pixels, shown one below the other on narrow screens; empty if
    the figure is shown whole. scale: CSS pixels per pixel.
    """

    id: str
    caption: str
    data: str
    size: tuple[int, int]
    panels: list[list[int]]
    scale: float = CSS_PIXELS_PER_INCH / RC["savefig.dpi"]


def picture(caption: str, png: Path, name: str) -> Picture:
    """Return a PNG file, written by `figures.save`, as a picture called `name`."""
    content = png.read_bytes()
    # Bytes 16 to 23 of a PNG file are its width and height in pixels.
    size = int.from_bytes(content[16:20]), int.from_bytes(content[20:24])
    data = "data:image/png;base64," + base64.b64encode(content).decode()
    return Picture(name, caption, data, size, _panels(content))


def _panels(png: bytes) -> list[list[int]]:
    """Return the boxes of the panels in the metadata of a PNG file, [] if there are none."""
    # A chunk of metadata: the length of key, 0 and text; "tEXt"; key, 0, text; a checksum, which may look like text.
    found = re.search(rb"(.{4})tEXt(%s\0)" % BOXES.encode(), png, re.DOTALL)
    if found is None:
        return []
    boxes: list[list[int]] = json.loads(png[found.end() : found.start(2) + int.from_bytes(found[1])])
    return boxes


def _template() -> jinja2.Template:
    """Return the template, which escapes its values, including control characters, and raises if a variable is missing."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tiejax.lab.reporting", ""),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(about=about, cells=cells, remarks=remarks)
    environment.filters.update(prose=_prose, plain=_plain)
    return environment.get_template("page.html.j2")


def _visible(value: Any) -> Any:
    # Markup, returned by macros and filters, is escaped already.
    return visible_lines(value) if type(value) is str else value


def _prose(text: Any) -> Markup:
    """Return text for an HTML element, escaped, with each `name` in backticks as a code element."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(visible_lines(str(text))))))


def _plain(text: Any) -> str:
    """Return text without backticks, for an attribute or the page's title, which cannot contain elements."""
    return CODE.sub(r"\1", str(text))
