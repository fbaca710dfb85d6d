"""Run directory, console, figures and page: real files, read back."""

import base64
import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tiejax.reporting import figures
from tiejax.reporting import page as report
from tiejax.runs import console
from tiejax.runs.run_directory import RunDirectory, plain
from tiejax.studies.exor import page as exor

ROOT = Path(__file__).parent.parent


def curves(seeds=4, records=30):
    generator = np.random.default_rng(0)
    return np.arange(records) * 500, np.abs(generator.normal(2, 0.5, (seeds, records)))


def test_plain_makes_json_of_numpy_and_what_is_not_finite():
    value = {"a": np.float32(0.5), "b": [np.nan, np.inf, np.int64(3)], "c": (np.bool_(True), None), 4: "x"}
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == {
        "a": 0.5,
        "b": [None, None, 3],
        "c": [True, None],
        "4": "x",
    }


def test_metrics_are_named_arrays_without_pickles(tmp_path):
    run = RunDirectory(tmp_path, lock=None)
    arrays = {"distance": np.arange(6.0).reshape(2, 3), "splits": np.array(["train", "test"])}
    run.write_metrics(arrays)
    with np.load(tmp_path / "metrics.npz", allow_pickle=False) as found:
        assert set(found) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)


def test_results_refuse_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        RunDirectory(tmp_path, lock=None).write_results({"x": float("nan")})
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.4, "4 s"), (59.4, "59 s"), (185, "3 min 05 s"), (7 * 3600 + 125, "7 h 02 min"), (3599.7, "1 h 00 min")],
)
def test_durations(seconds, text):
    assert console.duration(seconds) == text


def test_plain_output_where_stdout_is_no_terminal(capsys):
    shown = console.Console()
    with shown:
        shown.progress(50, 100, 50, 2.0, models=16)
        shown.progress(100, 100, 100, 4.0, models=16)
        shown.progress(100, 100, 100, 4.2, models=16)
    shown.claims([CLAIM])
    out = capsys.readouterr().out
    assert "step 50 of 100  25 steps/s  400 model-steps/s  2 s left" in out
    assert out.count("step 100 of 100") == 1
    assert "\x1b" not in out
    assert re.search(r"output-conditional +0\.333 +0\.1 to 0\.5 +0\.0123 +0\.778 +8 +supported", out)


def test_quiet_prints_the_result_and_warnings_alone(capsys):
    shown = console.Console(quiet=True)
    with shown:
        shown.say("hello")
        shown.progress(100, 100, 100, 4.0, models=16)
    shown.claims([CLAIM])
    shown.warn("seed 3")
    shown.result("report: x")
    assert capsys.readouterr().out == "warning: seed 3\nreport: x\n"


def test_a_terminal_gets_a_bar():
    """A real pseudo-terminal, so that the bar is what a person sees."""
    code = (
        "from tiejax.reporting.console import Console\n"
        "c = Console()\n"
        "with c:\n"
        "    for step in (0, 50, 100): c.progress(step, 100, step, step / 25 + .01, models=16)\n"
    )
    output = pty_output([sys.executable, "-c", code])
    assert "100/100" in output
    assert "model-steps/s" in output
    assert "\x1b[" in output


def pty_output(command):
    import os
    import pty

    main, other = pty.openpty()
    process = subprocess.Popen(
        command, stdout=other, stderr=other, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}, cwd=ROOT
    )
    os.close(other)
    output = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        output += part
    os.close(main)
    assert process.wait() == 0
    return output.decode()


CLAIM = {
    "id": "output-conditional",
    "statement": "Zero <farther> than one.",
    "statistic": "relative distance",
    "estimate": 1 / 3,
    "interval": [0.1, 0.5],
    "p": 0.0041,
    "p_adjusted": 0.0123,
    "effect_size": 0.778,
    "n": 8,
    "verdict": "supported",
}


def drawn():
    steps, values = curves()
    both = np.stack([values, values * 1.1])
    table = {"zero": both, "one": both * 0.5, "even_odd": both * 2}
    labels = {"zero": "zero pair (DH fails)", "one": "one pair (DH holds)"}
    tables = {name: np.repeat(both[..., None], 21, -1) for name in ("input", "output")}
    pairs = np.array([(i, j) for i in range(7) for j in range(i + 1, 7)])
    risk = {"cross_entropy": both, "accuracy": both / 4}
    best = {split: {"cross_entropy": 0.5, "accuracy": 0.7} for split in ("train", "validation")}
    final = {name: values[..., -1] for name, values in risk.items()}
    relative = {name: {pair: values[..., -1] for pair, values in table.items()} for name in ("input", "output")}
    both_tables = {"input": table, "output": table}
    return [
        *exor.distances(steps, both_tables, labels, published_first=False),
        exor.relative_distances(steps, both_tables, labels),
        exor.learning(steps, {name: np.stack([a] * 3, -1) for name, a in risk.items()}, steps, risk, best),
        exor.learning(steps, {}, steps, risk, best),
        exor.final_values(final, relative, labels),
        exor.final_values({}, relative, {}),
        exor.all_distances(steps, tables, pairs, exor.symbol_names(2, 2)),
    ]


def test_every_figure_becomes_a_picture_and_a_pdf(tmp_path):
    for number, item in enumerate(drawn()):
        png = figures.save(item.figure, tmp_path, f"{item.name}{number}")
        with Image.open(png) as picture:
            pixels = np.asarray(picture.convert("L"))
        assert min(pixels.shape) > 300
        assert pixels.std() > 5  # not blank
        assert png.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_figures_show_every_seed_and_the_median():
    steps, values = curves(seeds=5)
    figure = figures.three_panels(steps, {"tied": {"zero pair": values}}, "distance", {"zero pair": figures.BLUE})
    lines = figure.axes[0].lines
    assert len(lines) == 6
    for line, seed in zip(lines[:5], values, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), seed)
    np.testing.assert_array_equal(lines[5].get_ydata(), np.median(values, 0))


def test_published_style_is_mean_and_band_at_every_1000th_step():
    steps, values = curves(seeds=5)
    figure = figures.three_panels_published(steps, {"tied": {"zero pair": values}}, {"zero pair": figures.BLUE})
    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == [step for step in steps if step % 1000 == 0]
    np.testing.assert_allclose(line.get_ydata(), values[:, ::2].mean(0))
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    half = 1.96 * values[:, 0].std(ddof=1) / np.sqrt(5)
    assert np.isclose(band[:, 1][band[:, 0] == 0], values[:, 0].mean() + half).any()
    assert figure.axes[0].get_ylim() == (0, 4)


def test_symbols_are_named_by_their_bit():
    assert exor.symbol_names(2, 3) == ["0a", "0b", "1a", "1b", "1c", "even", "odd", "mask"]
    assert len(set(exor.symbol_names(40, 2))) == 45


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.sources, self.open, self.text = [], [], ""

    def handle_starttag(self, tag, attributes):
        self.sources += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_needs_nothing_else(tmp_path):
    picture = figures.save(drawn()[0].figure, tmp_path, "x")
    page = report.render(
        title="T", question="Q?", setting={"a": "b < c"}, notes=["careful"], claims={"Claims": [CLAIM], "Others": []},
        figures=[("caption", picture)], numbers={"N": (["x", "y"], [["1", "2"]])},
        reproduce={"Run:": "python x.py --seeds [1,2]"},
    )  # fmt: skip
    links = Links()
    links.feed(page)
    assert links.open == []
    assert len(links.sources) == 1
    assert base64.b64decode(links.sources[0].removeprefix("data:image/png;base64,")) == picture.read_bytes()
    for text in ("Zero <farther> than one.", "b < c", "careful", "python x.py --seeds [1,2]", "0.1 to 0.5", "None."):
        assert text in links.text


def test_importing_the_package_imports_no_jax():
    code = "import sys, tiejax, tiejax.data.exor, tiejax.reporting, experiments.exor; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
