"""The page of a run: one file, whole, in which the answer and one figure come first."""

import base64
import html.parser

from claim_rows import CLAIM
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


def render(folder, **more):
    figure = figures.plot_learning_curves({"loss": (STEPS, {"untied": VALUES}, 0.5)})
    pictures = [(caption, figures.save(figure, folder, caption)) for caption in ("first", "second")]
    parts = {
        "title": "T",
        "question": "Q?",
        "finding": ["The answer."],
        "setting": {"a": "b < c"},
        "notes": ["careful"],
        "claims": {"Claims": [CLAIM], "Others": []},
        "figures": pictures,
        "numbers": {"N": (["x", "y"], [["1", "2"]])},
        "reproduce": {"Run:": "python x.py --seeds [1,2]"},
    }
    return report.render(**parts | more), [png for _, png in pictures]


def read(page):
    links = Links()
    links.feed(page)
    assert links.open == []
    return links


def test_the_page_is_whole_and_needs_nothing_else(tmp_path):
    page, pictures = render(tmp_path)
    links = read(page)
    assert len(links.sources) == 2
    for source, picture in zip(links.sources, pictures, strict=True):
        assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == picture.read_bytes()
    for text in ("Zero <farther> than one.", "b < c", "careful", "python x.py --seeds [1,2]", "0.1 to 0.5", "None."):
        assert text in links.text


def test_the_answer_comes_first(tmp_path):
    text = read(render(tmp_path)[0]).text
    order = ["Q?", "The answer.", "first", "careful", "Claims", "Zero <", "More figures", "second", "N", "Setting", "How to"]
    place = 0
    for words in order:
        place = text.index(words, place)


def test_a_page_without_claims_or_figures_has_no_empty_headings(tmp_path):
    text = read(render(tmp_path, claims={}, figures=[], notes=[])[0]).text
    assert "Wilcoxon" not in text
    assert "More figures" not in text


def test_names_do_nothing_on_the_page(tmp_path):
    """Neither tags nor control characters, wherever a name can stand; lines of settings stay lines."""
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
