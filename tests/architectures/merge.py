"""The map of tied tables from the rows of several versions of the library."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
EMBEDDING = "embed_tokens"
BEGIN, END = "<!-- architectures -->", "<!-- end of architectures -->"


def merged(versions: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Return the content of architectures.json; versions: the rows of each version, the newest first."""
    heads: dict[str, dict[str, Any]] = {}
    headless: dict[str, dict[str, list[str]]] = {}
    unsure: set[str] = set()
    for rows in versions:
        for row in rows:
            if row.get("head") and not _doubtful(row):
                _add(heads.setdefault(row["class"], _empty(row)), row)
            elif row.get("head") and row["class"] in heads:  # known from a newer version: which flags tie it in this one
                _add_flag(heads[row["class"]], row)
            elif row.get("head"):  # its head is another model's, or not there in a newer version
                unsure.add(row["class"])
            elif row.get("head") is False:
                inputs = headless.setdefault(row["type"], {}).setdefault(row["class"], [])
                # A base model is also loaded from a file whose names begin with its prefix, as those of a model with a head.
                names = [*row["input"], *(f"{row['prefix']}.{name}" for name in row["input"] if row["prefix"])]
                inputs += [name for name in names if name not in inputs]
    for classes in headless.values():
        for name in (heads.keys() | unsure) & classes.keys():  # a version of the library without the head
            del classes[name]
    found = {name: {field: value for field, value in row.items() if value} for name, row in heads.items()}
    for row in found.values():
        for field in ("separate", "more", "blocks"):
            if known := {major: names for major, names in row.pop(field, {}).items() if names}:
                row[field] = known
    return {"versions": [rows[0]["version"] for rows in versions], "heads": found, "headless": headless}


def described(content: Mapping[str, Any]) -> str:
    """Return the section of docs/checkpoints_details.md about the classes that are known."""
    heads, headless = content["heads"], content["headless"]
    without = sum(len(classes) for classes in headless.values())
    types = {row["type"] for row in heads.values()}
    differing = [name for name, row in heads.items() if len(set(row["ties"].values())) > 1]
    never = [name for name, row in heads.items() if set(row["ties"].values()) == {"never"}]
    return (
        f"Known are {len(heads):,} classes that predict tokens, of {len(types):,} model types, and {without:,} that do not, "
        f"from the versions {', '.join(content['versions'])} of the transformers library.\n\n"
        f"* Never tied: {', '.join(f'`{name}`' for name in sorted(never))}.\n"
        f"* Not the same in versions 4 and 5: {', '.join(f'`{name}`' for name in sorted(differing))}.\n"
    )


def in_page(page: str, section: str) -> str:
    """Return a page with the section between its two marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{section}{END}{rest.split(END)[1]}"


def _empty(row: Row) -> dict[str, Any]:
    lists: dict[str, Any] = {field: [] for field in ("input", "output", "inner", "kept")}
    maps: dict[str, Any] = {field: {} for field in ("ties", "flag", "separate", "more", "blocks", "settings")}
    return {"type": row["type"], "prefix": row["prefix"], "scaled": False, "unlike": False, **maps, **lists}


def _add(found: dict[str, Any], row: Row) -> None:
    """Add what one version does. Names in its files come before names in its memory, which other versions may write."""
    major = row["version"].split(".")[0]
    tied, untied = row["true"], row["false"]
    outputs = [*([] if row["tied"]["false"] else untied["output_in_file"]), *untied["output"]]
    kept = tied["output_in_file"] if row["tied"]["true"] else []
    # Names in memory that the file spells in another way say nothing about further tables in the file.
    known = bool(kept) and set(kept) <= set(tied["shared"])
    inner = [name for name in tied["shared"] if name not in {*outputs, *kept}] if known else []
    own = [*untied["input_in_file"], *untied["input"], *tied["input_in_file"]]
    if row["tied"]["true"] and not set(tied["input"]) & set(tied["shared"]):
        own = [*kept, *tied["shared"]]  # the head reads another table than the first one, such as the decoder's
    inputs = [name for name in [*own, *inner] if name not in outputs]
    found["output"] = _distinct([*found["output"], *outputs])
    found["inner"] = _distinct([*found["inner"], *inner])
    found["input"] = _distinct([*found["input"], *inputs])
    found["kept"] = _distinct([*found["kept"], *kept])
    found["more"].setdefault(major, row.get("more", []))
    found["blocks"].setdefault(major, row.get("blocks", ""))
    found["scaled"], found["unlike"] = found["scaled"] or row["scaled"], found["unlike"] or row["unlike"]
    found["settings"] |= row["settings"]
    one = {*row["one_if_untied"], *untied["input"], *outputs}
    found["separate"].setdefault(major, [name for name in tied["shared"] if name not in one])
    _add_flag(found, row)


def _add_flag(found: dict[str, Any], row: Row) -> None:
    major = row["version"].split(".")[0]
    found["ties"].setdefault(major, {(True, False): "by flag", (True, True): "always"}.get(_flags(row), "never"))
    found["flag"].setdefault(major, row["flag"])


def _doubtful(row: Row) -> bool:
    """Return whether what the class says about its tables holds for one of its configurations only, or not at all.

    If the flag of a part decides that is a configuration of another model, the class joins any two models, whose names follow.
    FSMT names a table of embeddings as its output table, and multiplies by another one. Of several copies of an input table
    whose names differ in the file (T5Gemma2), those in the file are unknown.
    """
    shared = row["true"]["shared"]
    if row["tied"]["true"] and len(shared) > 2 and not set(row["true"]["output_in_file"]) <= set(shared):
        return True
    own = row["levels"][0].removesuffix("Config")
    others = _by_part(row) and not all(name.startswith(own) for name in _deciding(row))
    return others or any(EMBEDDING in name for name in row["false"]["output"])


def _by_part(row: Row) -> bool:
    """Return whether the flag of a part of the configuration ties the tables, and not that at the top."""
    return _flags(row) == (True, False) and not row.get("decides", [True])[0]


def _deciding(row: Row) -> list[str]:
    return [name for name, decides in zip(row["levels"], row["decides"], strict=True) if decides]


def _flags(row: Row) -> tuple[bool, bool]:
    return row["tied"]["true"], row["tied"]["false"]


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
