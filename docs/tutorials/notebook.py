"""Write the first tutorial as a notebook: python docs/tutorials/notebook.py. A test compares the two and runs the notebook."""

import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PAGE = Path(__file__).with_name("tie_a_model.md")
NOTEBOOK = PAGE.with_suffix(".ipynb")
BLOCK = re.compile(r"```python\n(.*?)```\n?", re.DOTALL)
LINK = re.compile(r" This page is also \[a notebook\]\([^)]*\)\.")


def notebook(page: str) -> nbformat.NotebookNode:
    """Return a Markdown page as a notebook: its blocks of Python are cells, and so is the text between them."""
    cells = []
    for place, part in enumerate(BLOCK.split(LINK.sub("", page))):
        if part.strip():
            new_cell = new_code_cell if place % 2 else new_markdown_cell
            cells.append(new_cell(part.strip(), id=f"cell-{place}"))
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return new_notebook(cells=cells, metadata=kernel)


if __name__ == "__main__":
    nbformat.write(notebook(PAGE.read_text()), NOTEBOOK)
