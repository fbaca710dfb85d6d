"""The site as it is built: files, links and the boxes around tables. How it looks is not tested."""

import os
import re
import subprocess
import sys
import tomllib
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


def test_the_header_links_the_repository_that_pyproject_names(site):
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {}).get("Repository")
    links = re.findall(r'<a href="([^"]+)" title="[^"]*" class="md-source"', (site / "index.html").read_text())
    assert set(links) == ({address} if address else set())
