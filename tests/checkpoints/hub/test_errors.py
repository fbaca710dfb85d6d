"""Messages of CheckpointError, with settings as plain names or as flags."""

from tiejax.checkpoints.hub.errors import CheckpointError, Field


def test_only_settings_become_flags():
    error = CheckpointError(Field("input_table"), " input_table.x: is odd; name ", Field("output_table"))
    assert str(error) == "input_table input_table.x: is odd; name output_table"
    assert error.as_options() == "--input_table input_table.x: is odd; name --output_table"
