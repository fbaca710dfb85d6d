"""Errors about checkpoints."""


class Field(str):
    """The name of a setting within a message, which a command line may spell as a flag."""

    __slots__ = ()


class CheckpointError(ValueError):
    """Raised for a checkpoint or a setting that cannot be used; the message is one line that starts with the file or setting.

    Args:
        parts: the pieces of the message, in which names of settings are `Field`s
    """

    def __init__(self, *parts: str) -> None:
        super().__init__("".join(parts))
        self.parts = parts

    def as_options(self) -> str:
        """Return the message with its settings spelled as flags, `--name`."""
        return "".join(f"--{part}" if isinstance(part, Field) else part for part in self.parts)
