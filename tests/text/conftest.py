"""Fixture of a text to prepare."""

import random
from pathlib import Path

import pytest


@pytest.fixture
def text(tmp_path) -> Path:
    """A file of 300 sentences of 1 to 20 made-up words, in paragraphs of five."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(1, 7))) for _ in range(60)]
    sentences = [" ".join(generator.choices(words, k=generator.randint(1, 20))).capitalize() + "." for _ in range(300)]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(" ".join(sentences[start : start + 5]) for start in range(0, 300, 5)))
    return path
