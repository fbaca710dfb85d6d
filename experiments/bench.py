"""How fast this machine trains what the studies train, and how far that is from the limit of its arithmetic."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the benchmarks are not part of the installed package

from experiments.bench.command import main
from tiejax.lab.settings.command_line import run_main

if __name__ == "__main__":
    run_main(main)
