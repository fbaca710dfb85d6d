"""Pages as readers see them: on a host of repositories, which follows CommonMark, and in the site, as built HTML and styles.

A line that begins with an HTML comment ends the paragraph or the list that it stands in; the rest is then cut off, and bullets
show as a literal `*`.
"""

import html.parser
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
INLINE = re.compile(r"<!-- (?:(?:value|cell): |end -->)")
BLOCKS = {"p", "li", "td", "th", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "summary", "dt", "dd"}
HOLDERS = {"article", "ul", "ol", "blockquote", "table", "thead", "tbody", "tr", "div", "section", "main", "details", "dl"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
CONTINUED = re.compile("[a-z0-9,;.]")  # how the rest of a sentence begins
CLOSING = tuple(".:!?;)`\"'…")


def cut(page: str) -> list[int]:
    """Return the lines of a page of Markdown whose marks CommonMark takes out of the text, from 1."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        if token.type in ("html_block", "code_block") and INLINE.search(token.content):
            found.append(token.map[0] + 1)
    return found


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("Each has\n<!-- value: a.json b n -->8<!-- end --> seeds.", [2]),
        ("A list:\n\n* of\n  <!-- cell: a.json b -->8<!-- end --> seeds.", [4]),
        ("* <!-- cell: a.json b -->8<!-- end --> seeds.", [1]),
        ("<span></span><!-- value: a.json b n -->8<!-- end -->\nseeds.", []),
        ("Each has <!-- value: a.json b\nn -->8<!-- end --> seeds.", []),
        ("<!-- table: a.json claims -->\n| a |\n| --- |\n| <!-- cell: a.json b -->8<!-- end --> |\n<!-- end of table -->", []),
    ],
)
def test_marks_that_end_a_paragraph_are_found(page, lines):
    assert cut(page) == lines


def test_no_mark_ends_a_paragraph_or_a_list():
    """By a parser of CommonMark. `python docs/results/publish.py` moves marks."""
    found = [
        f"{page.relative_to(ROOT)}:{line}"
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        if INLINE.search(text := page.read_text())
        for line in cut(text)
    ]
    assert found == []


class Texts(html.parser.HTMLParser):
    """The article of a page: `blocks`, with tag and text, and `stray` texts, outside of blocks or after one in an item."""

    def __init__(self):
        super().__init__()
        self.open, self.blocks, self.stray = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag in VOID or not (self.open or tag == "article"):
            return
        element = SimpleNamespace(tag=tag, text="", full=False)  # full: it already has a block inside
        if tag in BLOCKS:
            self.blocks.append(element)
            for outer in self.open:
                outer.full = True
        self.open.append(element)

    def handle_endtag(self, tag):
        while any(element.tag == tag for element in self.open) and self.open.pop().tag != tag:
            pass

    def handle_data(self, data):
        tags = {element.tag for element in self.open}
        if not tags or tags & {"pre", "script", "style"}:
            return
        inner = next(element for element in reversed(self.open) if element.tag in BLOCKS | HOLDERS)
        if inner.tag in BLOCKS and not inner.full:
            inner.text += "`" if "code" in tags else data
        elif data.strip():
            self.stray.append(data.strip())


def broken(page: str) -> list[str]:
    """Return what is broken in a page of HTML: literal bullets, rows of tables and cut sentences."""
    read = Texts()
    read.feed(page)
    found = [f"text outside a paragraph: {text[:60]}" for text in read.stray]
    before = ""
    for tag, text in ((block.tag, block.text.strip()) for block in read.blocks):
        if tag in ("p", "li"):
            if re.search(r"^\s*[*+-] ", text, re.MULTILINE):
                found.append(f"literal bullet: {text[:60]}")
            if re.search(r"^\s*\| ", text, re.MULTILINE):
                found.append(f"literal row of a table: {text[:60]}")
            # One word is a heading.
            if tag == "p" and CONTINUED.match(text) and " " in before and not before.endswith(CLOSING):
                found.append(f"cut sentence: {before[-40:]} / {text[:40]}")
        before = text if tag in ("p", "li") else ""
    return found


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "<p>It has</p>\n<!-- value -->256<!-- end --> seeds.",
            ["text outside a paragraph: 256", "text outside a paragraph: seeds."],
        ),
        ("<ul><li><p>It has</p> two seeds.</li></ul>", ["text outside a paragraph: two seeds."]),
        ("<ul><li>One.</li></ul><p>* Two.</p>", ["literal bullet: * Two."]),
        ("<p>One.\n* Two <b>x</b>.</p>", ["literal bullet: One.\n* Two x."]),
        ("<p>| a | b |\n| --- | --- |</p>", ["literal row of a table: | a | b |\n| --- | --- |"]),
        ("<p>Each of them has</p><p>two seeds.</p>", ["cut sentence: Each of them has / two seeds."]),
        ("<p>Distances |e1 - e2| of <code>a</code>:</p><pre>* a\n- b</pre><p>as above.</p>", []),
        ("<ul><li>It has</li></ul><p>2 seeds.</p>", ["cut sentence: It has / 2 seeds."]),
        ("<ul><li>a short item</li><li>An item<ul><li>b</li></ul></li><li><p>One <em>b</em>.</p></li></ul>", []),
        ("<p>Returns</p><p>the mean.</p><table><tr><td>x</td></tr></table>", []),
    ],
)
def test_broken_html_is_found(body, expected):
    assert broken(f"<nav>- menu</nav><article>{body}</article>") == expected


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site. Building is strict: broken links and anchors are errors."""
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def pages(site):
    return {page.relative_to(site).as_posix(): page.read_text() for page in sorted(site.rglob("*.html"))}


@pytest.mark.slow
def test_no_page_of_the_site_is_broken(site):
    """Literal bullets, rows of tables, cut sentences; and no mark is left."""
    found = pages(site)
    assert {"index.html", "results/exor.html"} <= set(found)
    assert {name: parts for name, text in found.items() if (parts := broken(text))} == {}
    assert [name for name, text in found.items() if INLINE.search(text)] == []


@pytest.mark.slow
def test_every_page_has_the_styles(site):
    assert "@media print" in (site / "extra.css").read_text()
    assert [
        name for name, page in pages(site).items() if not re.search(r'<link rel="stylesheet" href="[./]*extra.css">', page)
    ] == []


@pytest.mark.slow
def test_every_table_is_in_the_scrolling_box_of_the_theme(site):
    """The theme gives one to tables without a class, and its scripts and extra.css find them by that."""
    tables = {name: re.findall(r"<table[^>]*>", page) for name, page in pages(site).items()}
    assert sum(map(len, tables.values())) > 50
    assert {name: found for name, found in tables.items() if set(found) - {"<table>"}} == {}
    (style,) = (site / "assets" / "stylesheets").glob("main.*.css")
    (box,) = re.findall(r"}\.md-typeset table:not\(\[class\]\)\{([^}]*overflow[^}]*)}", style.read_text())
    assert {"display:inline-block", "max-width:100%", "overflow:auto"} <= set(box.split(";"))


@pytest.mark.slow
@pytest.mark.parametrize("address", ["https://code.example.com/tiejax", "https://example.org/tiejax", None])
def test_the_header_links_the_repository_unless_its_address_is_a_placeholder(address, tmp_path, monkeypatch):
    config = pytest.importorskip("mkdocs.config.base").load_config(str(ROOT / "mkdocs.yml"))
    (tmp_path / "pyproject.toml").write_text("[project]\n" + (f'urls = {{Repository = "{address}"}}\n' if address else ""))
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    linked = hooks.on_config(config).repo_url
    assert linked == (address if address == "https://code.example.com/tiejax" else None)
