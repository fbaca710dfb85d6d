"""What is raised where a checkpoint, or a setting that names a part of it, cannot be used."""


class Field(str):
    """The name of a setting within a message: whoever shows the message may spell it as an option."""

    __slots__ = ()


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: one line that begins with the file or the field to blame.

    parts: the line in pieces, of which those that name settings are `Field`s.
    """

    def __init__(self, *parts: str) -> None:
        super().__init__("".join(parts))
        self.parts = parts

    def as_options(self) -> str:
        """Return the line with its fields as a command line spells them, `--name`."""
        return "".join(f"--{part}" if isinstance(part, Field) else part for part in self.parts)
