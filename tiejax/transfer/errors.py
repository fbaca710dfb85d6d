"""Errors about task data that cannot be used."""


class TaskError(ValueError):
    """A task or one of its files cannot be used. The message is one line that begins with the setting or file at fault."""
