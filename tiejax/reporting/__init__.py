"""What a run shows and leaves behind: command line, run directory, console, figures, HTML report. No jax, no model."""

from tiejax.runs.console import Console as Console
from tiejax.runs.run_directory import RunDirectory as RunDirectory
from tiejax.runs.run_directory import stop_flag as stop_flag
from tiejax.settings.command_line import BadInput as BadInput
from tiejax.settings.command_line import parse as parse
from tiejax.settings.command_line import run_main as run_main
