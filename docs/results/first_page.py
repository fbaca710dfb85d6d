"""The figure of the first page: final losses above those of never tied models, drawn from a published run.

It is text (SVG), so that a test can compare it with the run, and its letters are those of a page.
"""

from collections.abc import Mapping
from typing import Any

from tiejax.lab.reporting.figures import GREEN, ORANGE
from tiejax.lab.reporting.words import number

FILE = "causal_untying_length.json"
# What a claim subtracts from is the never tied model of the seed.
ROWS = {"tied/never": "always tied", "late/never": "tied, untied at 2/3"}
AXIS = ("final validation loss above that of the", "never tied model of the seed (nats a token)")
TICKS = (0, 0.05, 0.1)
WIDTH, ROW, TOP = 440, 50, 30
LEFT, SCALE = 180, 2_300  # place of 0, and pixels a nat
HALO = ' stroke="#fff" stroke-width="4" paint-order="stroke"'  # of numbers, where a line passes behind them
COLOURS = ORANGE, GREEN


def figure(run: Mapping[str, Any]) -> str:
    """Return the figure as SVG: a dot for each seed, and a bar and a number for the mean."""
    rows = {row["id"]: row for row in run["claims"]}
    bottom = TOP + ROW * len(ROWS)
    parts = [_line(_x(tick), TOP, _x(tick), bottom, "#000" if tick == 0 else "#ccc") for tick in TICKS]
    parts += [_text(_x(tick), bottom + 20, f"{tick:g}", "middle") for tick in TICKS]
    parts += [_text(_x(0), TOP - 12, "never tied", "middle")]
    for place, ((claim, label), colour) in enumerate(zip(ROWS.items(), COLOURS, strict=True)):
        parts += _row(label, rows[claim], TOP + ROW * (place + 0.5), colour)
    parts += [_text(WIDTH / 2, bottom + 44 + 20 * place, line, "middle") for place, line in enumerate(AXIS)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 70}" font-family="sans-serif" font-size="17">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{bottom + 70}" fill="#fff"/>', *parts, "</svg>", ""])


def _row(label: str, row: Mapping[str, Any], y: float, colour: str) -> list[str]:
    mean, values = row["estimate"], row["differences"]
    dots = [f'<circle cx="{_x(value):.1f}" cy="{y:g}" r="5" fill="{colour}" fill-opacity=".4"/>' for value in values]
    bar = _line(_x(mean), y - 14, _x(mean), y + 14, colour, 4)
    return [_text(8, y + 6, label), *dots, bar, _text(_x(mean), y - 17, number(mean), "middle", HALO)]


def _x(value: float) -> float:
    return LEFT + SCALE * value


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return f'<path d="M{x1:.1f} {y1:g}L{x2:.1f} {y2:g}" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:g}" text-anchor="{anchor}"{style}>{words}</text>'
