"""Operating system helpers: checked files, limits on memory and CPU time, temporary files, and text that is safe to display."""
