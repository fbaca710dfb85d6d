"""MkDocs hooks that add files outside docs/ to the site, under `source/`, if a page links to them, and remove marks.

The pages are written for readers of the repository, whose links also lead to code, configurations and figures. MkDocs by itself
publishes only the files in docs/.
"""

import posixpath
import re
import runpy
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Comments between which docs/results/publish.py and others write, and the element that keeps them inside a paragraph.
MARK = re.compile(
    r"<!-- (?:(?:table|value|cell): .+?|(?:end of )?(?:counts|architectures)|end|end of table) -->|<span></span>", re.DOTALL
)
IS_PLACEHOLDER = runpy.run_path(str(ROOT / ".ci" / "release.py"))["is_placeholder"]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link the repository in the header of every page, if pyproject.toml has its address and not a placeholder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    address = project.get("urls", {}).get("Repository")
    if address and not IS_PLACEHOLDER(address):
        config.repo_url, config.repo_name = address, "Repository"
    return config


def in_repository(uri: str) -> str:
    """Return the path in the repository of a file in the site."""
    return uri.removeprefix("source/") if uri.startswith("source/") else f"docs/{uri}"


def in_site(path: str) -> str:
    """Return the path in the site of a file in the repository, or of the list of files for a folder."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}"


def target(uri: str, link: str) -> str:
    """Return the path in the repository of a link on a page."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(in_repository(uri)), link))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to, including links on the added pages."""
    waiting = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while waiting:
        uri, text = waiting.pop()
        for link in LINK.findall(text):
            path = target(uri, link)
            if path.startswith("docs/") or files.get_file_from_path(in_site(path)) or not (ROOT / path).exists():
                continue
            added = _added(path, config)
            files.append(added)
            if added.is_documentation_page():
                waiting.append((added.src_uri, added.content_string))
    return files


def _added(path: str, config: MkDocsConfig) -> File:
    file = ROOT / path
    if file.is_dir():
        inside = sorted(entry.relative_to(file).as_posix() for entry in file.rglob("*") if entry.suffix in (".yaml", ".py"))
        return File.generated(config, in_site(path), content="\n".join([f"# {path}", "", *(f"* [{x}]({x})" for x in inside)]))
    if file.suffix == ".md":
        return File.generated(config, in_site(path), content=file.read_text())
    return File.generated(config, in_site(path), abs_src_path=str(file))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the marks of a page, and rewrite its links to paths in the site."""
    uri = page.file.src_uri

    def written(link: re.Match[str]) -> str:
        base = posixpath.dirname(uri)
        # Links in the list of a folder are already relative to the site.
        path = posixpath.normpath(posixpath.join(base, link[1])) if uri.endswith("/index.md") else in_site(target(uri, link[1]))
        return posixpath.relpath(path, base or ".")

    return LINK.sub(written, MARK.sub("", markdown))
