"""The page of a run: one self-contained file that begins with the findings and one figure."""

import base64
import html.parser
import re

import pytest
from claim_rows import CLAIM, EXPLORATORY
from pictures import curves

from tiejax.lab.reporting import figures
from tiejax.lab.reporting import page as report

STEPS, VALUES = curves()


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


FACTS = {"command": "python y.py", "versions": {"jax": "1"}, "python": "3.13", "devices": ["cpu"], "git_commit": "abc"}


def render(folder, results=(), pictures=None, **more):
    figure = figures.plot_learning_curves({"loss": (STEPS, {"untied": VALUES}, 0.5)})
    if pictures is None:
        pictures = [(caption, figures.save(figure, folder, caption)) for caption in ("first", "second")]
    parts = {
        "title": "T",
        "question": "Q?",
        "finding": ["The answer."],
        "setting": {"a": "b < c"},
        "notes": ["careful"],
        "claims": {"Claims": [CLAIM], "Others": []},
        "numbers": {"N": (["x", "y"], [["1", "2"]])},
        "reproduce": {"Run:": "python x.py --seeds [1,2]"},
    }
    run = report.RunOnPage(dict(results), {}, "steps: 4", FACTS, pictures)
    return report.render(run, **parts | more), [png for _, png in pictures]


def read(page):
    links = Links()
    links.feed(page)
    assert links.open == []
    return links


def test_page_is_self_contained(tmp_path):
    page, pictures = render(tmp_path)
    links = read(page)
    assert len(links.sources) == 2
    for source, picture in zip(links.sources, pictures, strict=True):
        assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == picture.read_bytes()
    for text in ("Zero <farther> than one.", "b < c", "careful", "python x.py --seeds [1,2]", "0.1 to 0.5", "None."):
        assert text in links.text


def test_findings_come_first(tmp_path):
    text = read(render(tmp_path)[0]).text
    order = ["Q?", "The answer.", "first", "careful", "Claims", "Zero <", "More figures", "second", "N", "Setting", "How to"]
    place = 0
    for words in order:
        place = text.index(words, place)


def test_what_all_runs_have_is_on_every_page(tmp_path):
    """How to reproduce the run, its looks and its time; none of them for a run without."""
    looks = {"planned": [2, 5], "done": [2]}
    timing = {"train_s": 60.0, "compile_s": 2.0, "model_steps_per_s": 1000.0}
    claim = CLAIM | {"family": "registered", "look": 2}
    text = read(render(tmp_path, {"looks": looks, "claims": [claim], "timing": timing})[0]).text
    parts = ("decided at", "planned at 2, 5 seeds", "1 min 00 s of training", "python y.py", "steps: 4", "commit abc")
    assert all(part in text for part in parts)
    assert [part for part in parts if part in read(render(tmp_path)[0]).text] == list(parts[3:])


def test_page_without_claims_or_figures_has_no_empty_headings(tmp_path):
    text = read(render(tmp_path, claims={}, pictures=[], notes=[])[0]).text
    assert "sign-flip" not in text
    assert "More figures" not in text


def test_page_escapes_tags_and_control_characters(tmp_path):
    """Wherever a name can occur; line breaks in settings are preserved."""
    hostile = "<script>alert(1)</script>\x1b]0;gone\x07\0\u202e\udcff"
    seen = "<script>alert(1)</script>" + r"\x1b]0;gone\x07\x00\u202e\udcff"
    row = CLAIM | {"id": hostile, "statement": hostile}
    names = {"title": hostile, "question": hostile, "finding": [hostile], "notes": [hostile], "claims": {hostile: [row]}}
    tables = {"setting": {hostile: hostile}, "numbers": {hostile: ([hostile], [[hostile]])}}
    page, _ = render(tmp_path, **names, **tables, reproduce={hostile: f"a: {hostile}\nb: 2"})
    assert page.encode().decode() == page
    assert all(letter.isprintable() or letter == "\n" for letter in page)
    assert "<script" not in page
    text = read(page).text
    assert text.count(seen) >= 12
    assert f"a: {seen}\nb: 2" in text


def test_backticks_become_code_elements(tmp_path):
    """Everywhere except in commands, which readers copy; in attributes and the title they are removed."""
    text = "run `tiejax tie` on <it>"
    row = CLAIM | {"statement": text, "estimand": text}
    parts = {"title": text, "question": text, "finding": [text], "notes": [text], "claims": {text: [row]}}
    parts |= {"setting": {text: text}, "numbers": {text: ([text], [[text]])}, "reproduce": {text: "echo `date`"}}
    _, pictures = render(tmp_path, **parts)
    page, _ = render(tmp_path, pictures=[(text, pictures[0])], **parts)
    assert page.count("`") == 2
    assert "<pre>echo `date`</pre>" in page
    assert "<title>run tiejax tie on &lt;it&gt;</title>" in page
    assert 'alt="run tiejax tie on &lt;it&gt;"' in page
    assert page.count("run <code>tiejax tie</code> on &lt;it&gt;") == 14


def test_each_claim_begins_with_its_verdict(tmp_path):
    """So that verdicts are visible on narrow screens; the other cells carry the names shown on a card."""
    page, _ = render(tmp_path, claims={"Claims": [CLAIM, CLAIM | {"verdict": "undecided"}]})
    table = page[page.index('<table class="claims">') :]
    table = table[: table.index("</table>")]
    heading, *rows = table.split("<tr>")[1:]
    assert heading.startswith("<th>verdict</th>")
    for row, word in zip(rows, ("supported", "undecided"), strict=True):
        assert row.startswith(f'<td class="{word}">{word}</td>')
    for row in rows:
        named = dict(re.findall(r'<td data-name="([^"]+)">([^<]*)</td>', row))
        assert named == {
            "estimate": "0.333",
            "95 % interval": "0.1 to 0.5",
            "adjusted interval": "0.05 to 0.55",
            "adjusted p": "0.0123",
            "n": "8",
        }


def test_exploratory_claims_have_a_separate_table_without_p(tmp_path):
    page, _ = render(tmp_path, claims={"Claims": [CLAIM, EXPLORATORY]})
    registered, exploratory = page.split('<table class="claims">')[1:]
    assert "adjusted p" in registered
    assert "first-look" not in registered
    exploratory = exploratory[: exploratory.index("</table>")]
    assert "first-look" in exploratory
    assert "adjusted" not in exploratory


def test_undecided_claims_say_what_they_would_take(tmp_path):
    undecided = CLAIM | {"verdict": "undecided", "unit": "nats"}
    few = undecided | {"seeds_needed": 8, "note": "3 seeds cannot"}
    early = CLAIM | {"n": 16, "last_look": 16}
    text = read(render(tmp_path, claims={"Claims": [undecided, few, early]})[0]).text
    assert "Decided with 8; estimate and intervals are those of all 16." in text
    words = "Not decided with 8 seeds, which would have shown 0.12 nats in four of five studies; the margin, 0.05 nats, "
    assert f"(nats). {words}needs 40 seeds." in text
    assert "(nats). Not decided with 8 seeds. 3 seeds cannot." in text


def variables(style):
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", style))


def luminance(colour):
    """Relative luminance of WCAG 2.2."""
    channels = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_in_both_schemes(tmp_path, scheme):
    """At least 4.5, as required by WCAG level AA: text on the background, in findings, in notes and in code."""
    style = re.search(r"<style>(.*?)</style>", render(tmp_path)[0], re.DOTALL)[1]
    light, dark = style.split("@media screen and (prefers-color-scheme: dark)", 1)
    dark = dark[: dark.index("}")]
    assert variables(light).keys() == variables(dark).keys()
    colours = variables({"light": light, "dark": dark}[scheme])
    pairs = [("text", ground) for ground in ("ground", "answer", "note", "code")]
    pairs += [(text, "ground") for text in ("soft", "supported", "contradicted")]
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    measured = {pair: contrast(*(colours[name] for name in pair)) for pair in pairs}
    assert {pair: ratio for pair, ratio in measured.items() if ratio < 4.5} == {}
    bare = style.replace(light.split("}")[0], "").replace(dark, "")
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", bare)) == {"#ffffff"}, "all colours but the white of figures are variables"


def test_cells_wrap_on_paper_and_boxes_do_not_scroll(tmp_path):
    """Otherwise a wide table loses columns on paper; only narrow screens keep cells on one line, in boxes that scroll."""
    style = re.search(r"<style>(.*?)</style>", render(tmp_path)[0], re.DOTALL)[1]
    wide, narrow = style.split("@media screen and (max-width: 44rem)")
    narrow, paper = narrow.split("@media print")
    assert ["nowrap" in part for part in (wide, narrow, paper)] == [False, True, False]
    assert re.search(r"\.scroll\b[^{}]*{ overflow: visible; }", paper)


@pytest.mark.slow
def test_panels_are_stacked_on_narrow_screens(tmp_path, drawn):
    """Every panel is the same image, seen through its box; a figure of one panel stays an image."""
    boxes = {}
    for name in ("losses", "distances"):
        figure, axes = figures.grid(2, 2, 3.0, 2.5)
        for panel in axes:
            panel.plot([0, 1], [0, 1])
        png = figures.save(figure, tmp_path, name)
        boxes[name] = figures.panel_boxes(figure)
        found = report.picture("a caption", png, name)
        assert found.panels == boxes[name]
        assert found.size == figure.canvas.get_width_height()
        assert base64.b64decode(found.data.partition(",")[2]) == png.read_bytes()
    page, _ = render(tmp_path, pictures=[(name, tmp_path / f"{name}.png") for name in boxes])
    assert page.count("data:image/png") == 2  # once per figure
    for number, name in enumerate(boxes, 1):
        assert page.count(f'<image id="figure-{number}"') == 1
        assert page.count(f'href="#figure-{number}"') == 2
        for box in boxes[name]:
            assert f'viewBox="{" ".join(map(str, box))}"' in page


def test_the_checksum_of_a_picture_is_not_read_as_a_part_of_its_panels(tmp_path):
    """It can be any four bytes, such as a closing bracket and three others."""
    text = b"Panels\0[[0, 0, 560, 445], [1, -2, 3, 4]]"
    head = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4) + b"IHDR" + (600).to_bytes(4) + (400).to_bytes(4) + bytes(9)
    (tmp_path / "figure.png").write_bytes(head + len(text).to_bytes(4) + b"tEXt" + text + b"]]7]")
    found = report.picture("caption", tmp_path / "figure.png", "figure-1")
    assert found.size == (600, 400)
    assert found.panels == [[0, 0, 560, 445], [1, -2, 3, 4]]
