"""What is raised where ties do not fit; imports no jax."""


class TieError(ValueError):
    """A tie that names no leaf, joins leaves that do not fit, or closes a cycle."""
