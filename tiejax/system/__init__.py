"""Operating system helpers: checked files, memory limits, temporary files, and text that is safe to display."""
