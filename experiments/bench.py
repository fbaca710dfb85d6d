"""How fast this machine trains what the studies train, and how far that is from what its arithmetic would allow."""

from tiejax.bench.command import main
from tiejax.settings.command_line import run_main

if __name__ == "__main__":
    run_main(main)
