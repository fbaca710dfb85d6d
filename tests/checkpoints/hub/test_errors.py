"""Messages of a checkpoint that cannot be used: fields without dashes, and with them on a command line."""

from tiejax.checkpoints.hub.errors import CheckpointError, Field


def test_only_fields_get_dashes():
    error = CheckpointError(Field("input_table"), " input_table.x: is odd; name ", Field("output_table"))
    assert str(error) == "input_table input_table.x: is odd; name output_table"
    assert error.as_options() == "--input_table input_table.x: is odd; name --output_table"
