"""Benchmarks of the studies and tools on this machine: `bench.py NAME`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks are not part of the installed package

from experiments.bench.command import main
from tiejax.lab.settings.command_line import run_main

if __name__ == "__main__":
    run_main(main)
