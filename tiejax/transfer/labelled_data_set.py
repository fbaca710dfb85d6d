"""Labelled sentences from a TFDS data set."""

from typing import Any

from tiejax.system.visible import cut
from tiejax.text.errors import CorpusError
from tiejax.text.sources import data_sets_for
from tiejax.transfer.read import Labelled, TaskError


def read_splits(name: str, text: str, label: str, tfds_dir: str | None) -> dict[str, list[Labelled]]:
    """Return the labelled sentences of every split of `tfds:NAME`, labelled by class names. Raises TaskError.

    The split `validation` is renamed to `development`.
    """

    def check(builder: Any) -> None:
        if missing := [feature for feature in (text, label) if feature not in builder.info.features]:
            raise CorpusError(
                f"{name}: has no feature {cut(missing[0])!r}; expected one of {', '.join(sorted(builder.info.features))}"
            )

    try:
        builder = data_sets_for(name).open_builder(name, tfds_dir, lambda line: None, check)
        check(builder)
    except CorpusError as error:
        raise TaskError(str(error).removeprefix("corpus ")) from None
    classes = builder.info.features[label]
    has_names = hasattr(classes, "int2str")  # a ClassLabel of TFDS

    def named(value: Any) -> str:
        if has_names:
            return str(classes.int2str(int(value))) if int(value) >= 0 else ""
        return _as_text(value)

    found = {
        "development" if split == "validation" else split: [
            Labelled((_as_text(row[text]),), (named(row[label]),)) for row in builder.as_data_source(split)
        ]
        for split in builder.info.splits
    }
    if has_names:
        # Rows without a label, -1, are dropped, and with them splits that are published without labels.
        found = {split: kept for split, rows in found.items() if (kept := [row for row in rows if row.labels[0]])}
    return found


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
