"""What a run shows and leaves behind: command line, run directory, console, figures, HTML report. No jax, no model."""

from tiejax.reporting.command_line import BadInput as BadInput
from tiejax.reporting.command_line import parse as parse
from tiejax.reporting.command_line import run_main as run_main
from tiejax.reporting.console import Console as Console
from tiejax.reporting.run_directory import RunDirectory as RunDirectory
from tiejax.reporting.run_directory import stop_flag as stop_flag
