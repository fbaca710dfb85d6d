"""The command `tiejax`, also as `python -m tiejax`."""

import sys
from typing import NoReturn

from tiejax._lazy import needs


def main() -> NoReturn:
    """Run the command that the arguments name, and exit with its status; 2 if the extra `lab` is not installed."""
    try:
        from tiejax.lab import command
    except ModuleNotFoundError as error:
        print(f"tiejax: error: the command {needs(error)}", file=sys.stderr)
        sys.exit(2)
    command.main()


if __name__ == "__main__":
    main()
