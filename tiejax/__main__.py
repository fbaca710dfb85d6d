"""`python -m tiejax`: the command, where it is not on the path."""

from tiejax.lab.command import main

if __name__ == "__main__":
    main()
