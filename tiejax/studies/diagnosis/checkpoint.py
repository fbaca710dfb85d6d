"""The diagnosis of a checkpoint in the hub's format: where its two tables stand, without loading it whole."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from tiejax.geometry import alignment as aligned
from tiejax.geometry import roles
from tiejax.geometry.roles import frequency_ranks
from tiejax.geometry.tables import Table, row_blocks
from tiejax.hub.families import Tables, find_tables
from tiejax.hub.tables import Checkpoint, HubTable, open_checkpoint
from tiejax.hub.tokens import Tokens, count_tokens, find_tokens, text_of
from tiejax.runs.console import Console
from tiejax.runs.run_directory import plain
from tiejax.settings.command_line import BadInput
from tiejax.studies.diagnosis.settings import Settings
from tiejax.text import corpus

SCORED = 65_536  # tokens on which alignments are scored; the maps are fitted to all


FREQUENT = 10_000  # among so many of the first ranks the tokens are looked for whose roles differ most


SHOWN = 20


Tell = Callable[[str, int, int | None], None]


class Watched:
    """A table that tells how many rows are read of it."""

    def __init__(self, table: "HubTable", seen: Callable[[int], None]) -> None:
        self.table, self.seen = table, seen

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and width."""
        return self.table.shape

    def __getitem__(self, rows: Any) -> np.ndarray:
        found = self.table[rows]
        self.seen(len(found))
        return found


def watch(tell: Tell, phase: str, total: int, *tables: "HubTable") -> "list[Table]":
    """Return tables that tell how far a phase is which reads `total` rows of them."""
    done = 0

    def seen(number: int) -> None:
        nonlocal done
        done = min(done + number, total)
        tell(phase, done, total)

    return [Watched(table, seen) for table in tables]


class Ranked(NamedTuple):
    """Tokens by rank of frequency. counted: those that a corpus holds, all where ranks are ids."""

    ranks: np.ndarray
    counts: np.ndarray | None
    counted: np.ndarray
    facts: dict[str, Any]


def open_tables(settings: Settings) -> "tuple[Checkpoint, Tables]":
    """Return the checkpoint and its tables; raises BadInput."""

    folder = Path(settings.checkpoint or "").expanduser()
    checkpoint = open_checkpoint(folder)
    tables = find_tables(checkpoint, settings.input_table, settings.output_table)
    if tables.input.shape[0] < 3:
        raise BadInput(f"--input_table {tables.input.name}: has {tables.input.shape[0]} rows; there is nothing to compare")
    return checkpoint, tables


def rank_tokens(settings: Settings, folder: Path, rows: int, console: Console, tell: Tell) -> "tuple[Tokens | None, Ranked]":
    """Return the tokenizer, where there is one, and the tokens' ranks, by the corpus or else by id; raises BadInput."""

    try:
        tokens = find_tokens(folder, settings.tokenizer)
    except ValueError as error:
        if settings.tokenizer is not None or settings.corpus is not None:
            raise BadInput(str(error)) from None
        console.warn(f"tokens have no texts: {error}")
        tokens = None
    if settings.corpus is None:
        everyone = np.ones(rows, bool)
        return tokens, Ranked(np.arange(1, rows + 1), None, everyone, {"by": "id", "tokenizer": _file(tokens)})
    if tokens is None:
        raise BadInput(f"--corpus: {folder} has no tokenizer.json, vocab.txt or vocab.json; name one by --tokenizer")
    if settings.corpus.startswith(corpus.TFDS):
        raise BadInput(f"--corpus {settings.corpus}: must be a text file or a folder of them")
    documents = corpus.read(corpus.sources([settings.corpus]))
    counts = count_tokens(tokens, documents, rows, lambda number: tell("tokens counted", number, None))
    facts = {
        "by": "corpus",
        "corpus": settings.corpus,
        "tokens": int(counts.sum()),
        "different": int((counts > 0).sum()),
        "tokenizer": _file(tokens),
    }
    return tokens, Ranked(frequency_ranks(counts), counts, counts > 0, facts)


def _file(tokens: "Tokens | None") -> str | None:
    return tokens.file.name if tokens else None


def facts_of(checkpoint: "Checkpoint", tables: "Tables") -> dict[str, Any]:
    """Return what the headers and the configuration say: the tables, the flag, the parameters."""

    def of(table: "HubTable | None") -> dict[str, Any] | None:
        names = ("name", "shape", "dtype", "transposed", "nbytes")
        return {"file": table.file.name} | {name: getattr(table, name) for name in names} if table else None

    architectures = checkpoint.config.get("architectures")
    return {
        "checkpoint": str(checkpoint.folder),
        "family": tables.family,
        "model_type": checkpoint.config.get("model_type"),
        "architectures": architectures if isinstance(architectures, list) else [],
        "parameters": sum(tensor.number for tensor in checkpoint.tensors.values()),
        "tables": {"input": of(tables.input), "output": of(tables.output)},
        "bias": tables.bias,
        "flag": tables.flag._asdict(),
        "head": tables.head,
        "notes": list(tables.notes),
    }


def memory_of(tables: "Tables", parameters: int) -> dict[str, Any]:
    """Return what tying would save, or untying add: parameters, bytes as stored, and share of the stored parameters."""
    table = tables.output or tables.input
    return {"parameters": table.tensor.number, "bytes": table.nbytes, "share": table.tensor.number / parameters}


def relate(tables: "Tables", settings: Settings, tell: Tell) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return how the input and output tables of an untied checkpoint relate; and cosines by token and correlations."""

    assert tables.output is not None
    rows, widths = tables.input.shape[0], (tables.input.shape[1], tables.output.shape[1])

    first, second = tables.input, tables.output
    watched = watch(tell, "products of the tables", 2 * rows, first, second)
    products = aligned.cross_products(watched[0], watched[1])
    backwards = roles.swapped(products)
    scored = np.arange(rows)
    if rows > SCORED:
        scored = np.sort(np.random.default_rng(settings.seed).choice(rows, SCORED, replace=False))
    # The widest tables spend minutes on these four.
    turned = roles.mapped_cosines(first, second, scored, products, orthogonal=True)
    tell("maps between the tables", 1, 4)
    cosines = {"from_input": roles.mapped_cosines(first, second, scored, products)}
    tell("maps between the tables", 2, 4)
    cosines["from_output"] = roles.mapped_cosines(second, first, scored, backwards)
    tell("maps between the tables", 3, 4)
    correlations = aligned.canonical_correlations(first, second, products)
    tell("maps between the tables", 4, 4)
    chance = {name: roles.least_squares_chance(rows, width) for name, width in zip(cosines, widths, strict=True)}
    least_squares = {name: _mean(values) for name, values in cosines.items()}
    k, queries = min(settings.neighbours, rows - 1), min(settings.sample, rows)
    reading = 2 * (queries + rows * len(list(row_blocks(queries, 4 * max(widths)))))
    watched = watch(tell, "neighbours", reading, first, second)
    overlap = aligned.neighbour_overlap(watched[0], watched[1], k, settings.sample, settings.seed)
    found: dict[str, Any] = {
        "alignment": {
            "identity": None,
            "procrustes": _mean(turned),
            "least_squares": least_squares,
            "chance": chance,
            "scored": len(scored),
        },
        "neighbours": overlap._asdict(),
        "canonical": {
            "mean": float(correlations.mean()),
            "number": len(correlations),
            "largest_by_chance": roles.largest_canonical_chance(rows, *widths),
        },
        "published": aligned.OLMO_1B,
        "standing": roles.standing(
            min((value for value in least_squares.values() if value is not None), default=None),
            overlap.estimate,
            aligned.OLMO_1B["least_squares"],
            aligned.OLMO_1B["neighbour_overlap"],
            max(chance.values()),
        ),
    }
    arrays = {f"cosine_{name}": values for name, values in cosines.items()} | {"cosine_procrustes": turned}
    arrays |= {"scored": scored, "canonical": correlations}
    if widths[0] == widths[1]:
        watched = watch(tell, "cosines", 2 * rows, first, second)
        arrays["cosine_as_is"] = aligned.token_cosines(watched[0], watched[1])
        found["alignment"]["identity"] = _mean(arrays["cosine_as_is"])
    return found, arrays


def _mean(values: np.ndarray) -> float | None:
    return float(np.nanmean(values, dtype=np.float64)) if not np.isnan(values).all() else None


def parting_tokens(arrays: dict[str, np.ndarray], ranked: Ranked, tokens: "Tokens | None") -> dict[str, list[dict[str, Any]]]:
    """Return, of the frequent tokens that were scored, those whose two roles are farthest apart and nearest.

    By the mean of the two least-squares cosines.
    """

    scored = arrays["scored"]
    cosines = (arrays["cosine_from_input"] + arrays["cosine_from_output"]) / 2
    candidates = (ranked.ranks[scored] <= FREQUENT) & ranked.counted[scored] & ~np.isnan(cosines)
    order = np.flatnonzero(candidates)[np.argsort(cosines[candidates], kind="stable")]
    shown = min(SHOWN, len(order) // 2)

    def row(place: int) -> dict[str, Any]:
        token = int(scored[place])
        as_is = arrays.get("cosine_as_is")
        return {
            "id": token,
            "text": text_of(tokens, token) if tokens else "",
            "rank": int(ranked.ranks[token]),
            "count": int(ranked.counts[token]) if ranked.counts is not None else None,
            "norm_input": float(arrays["norm_input"][token]),
            "norm_output": float(arrays["norm_output"][token]),
            "cosine": float(cosines[place]),
            "cosine_as_is": float(as_is[token]) if as_is is not None else None,
        }

    return {"apart": [row(one) for one in order[:shown]], "near": [row(one) for one in order[::-1][:shown]]}


def norm_facts(norms: np.ndarray, ranked: Ranked) -> dict[str, Any]:
    """Return what the norms of a table's rows are, and Spearman's correlation of them with the tokens' ranks."""

    low, median, high = (float(one) for one in np.quantile(norms, (0.1, 0.5, 0.9)))
    seen, ranks = norms[ranked.counted], ranked.ranks[ranked.counted]
    constant = len(seen) < 3 or np.ptp(seen) == 0
    unseen = norms[~ranked.counted]
    return {
        "low": low,
        "median": median,
        "high": high,
        "zero": int((norms == 0).sum()),
        "spearman": None if constant else float(stats.spearmanr(seen, ranks).statistic),
        "unseen_median": float(np.median(unseen)) if len(unseen) else None,
    }


def diagnose(settings: Settings, console: Console) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what results.json and metrics.npz say of a checkpoint; raises BadInput."""

    began = time.monotonic()
    checkpoint, tables = open_tables(settings)
    with console.preparing() as tell:
        rows = tables.input.shape[0]
        tokens, ranked = rank_tokens(settings, checkpoint.folder, rows, console, tell)
        stored = [table for table in (tables.input, tables.output) if table is not None]
        watched = watch(tell, "norms", rows * len(stored), *stored)
        norms = roles.norms_and_equality(watched[0], watched[1] if len(watched) > 1 else None)
        fact = "absent" if tables.output is None else "untied" if norms.differing else "equal"
        results = {"experiment": "diagnose", **facts_of(checkpoint, tables), "fact": fact, "rank": ranked.facts}
        results |= {"differing_rows": norms.differing, "largest_difference": norms.largest}
        results["memory"] = memory_of(tables, results["parameters"])
        results["norms"] = {"input": norm_facts(norms.first, ranked)}
        arrays = {"norm_input": norms.first, "rank": ranked.ranks, "counted": ranked.counted}
        if ranked.counts is not None:
            arrays["count"] = ranked.counts
        if fact == "untied":
            assert norms.second is not None
            results["norms"]["output"] = norm_facts(norms.second, ranked)
            arrays["norm_output"] = norms.second
            found, of_tokens = relate(tables, settings, tell)
            results |= found
            arrays |= of_tokens
            results["tokens"] = parting_tokens(arrays, ranked, tokens)
    results["seconds"] = time.monotonic() - began
    return plain(results), arrays


def curves_of(results: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the bands over token rank that the figures show."""

    ranks, counted = arrays["rank"], arrays["counted"]
    curves = {"norm_input": roles.bands_by_rank(arrays["norm_input"], ranks, counted)}
    if "norm_output" in arrays:
        scored = arrays["scored"]
        curves["norm_output"] = roles.bands_by_rank(arrays["norm_output"], ranks, counted)
        for name in ("cosine_from_input", "cosine_from_output"):
            curves[name] = roles.bands_by_rank(arrays[name], ranks[scored], counted[scored])
        if "cosine_as_is" in arrays:
            curves["cosine_as_is"] = roles.bands_by_rank(arrays["cosine_as_is"], ranks, counted)
    return curves
