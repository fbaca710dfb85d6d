"""The layout of the built site: styles, the boxes around tables, the link to the repository. How it looks is not tested."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def pages(site):
    return {path.relative_to(site).as_posix(): path.read_text() for path in sorted(site.rglob("*.html"))}


def test_every_page_has_the_styles(site):
    assert "@media print" in (site / "extra.css").read_text()
    assert [
        name for name, page in pages(site).items() if not re.search(r'<link rel="stylesheet" href="[./]*extra.css">', page)
    ] == []


def test_every_table_is_in_the_scrolling_box_of_the_theme(site):
    """The theme gives one to tables without a class, and its scripts and extra.css find them by that."""
    tables = {name: re.findall(r"<table[^>]*>", page) for name, page in pages(site).items()}
    assert sum(map(len, tables.values())) > 50
    assert {name: found for name, found in tables.items() if set(found) - {"<table>"}} == {}
    (style,) = (site / "assets" / "stylesheets").glob("main.*.css")
    (box,) = re.findall(r"}\.md-typeset table:not\(\[class\]\)\{([^}]*overflow[^}]*)}", style.read_text())
    assert {"display:inline-block", "max-width:100%", "overflow:auto"} <= set(box.split(";"))


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
