"""The three tables that two arms have, as panels of a figure."""

PANELS = {"untied, input": ("input", 0), "untied, output": ("output", 0), "tied": ("input", 1)}
