"""What is said of task data that cannot be used."""


class TaskError(ValueError):
    """A task, or a file of one, that cannot be used: one line that begins with the field to blame."""
