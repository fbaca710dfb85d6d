"""Checks of figures, and curves to plot."""

import numpy as np
from PIL import Image


def curves(seeds=4, records=30):
    generator = np.random.default_rng(0)
    return np.arange(records) * 500, np.abs(generator.normal(2, 0.5, (seeds, records)))


def is_a_picture(png):
    """Whether this is a PNG file that is not blank, next to a PDF file."""
    with Image.open(png) as picture:
        pixels = np.asarray(picture.convert("L"))
    return min(pixels.shape) > 300 and pixels.std() > 5 and png.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
