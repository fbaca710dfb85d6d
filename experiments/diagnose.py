"""Should these embeddings be tied? Where the input and output tables of a checkpoint stand, without loading it whole."""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

# As a script this file finds its own folder alone, and it needs a neighbour for runs of ours.
sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments import diagnose_run
from tiejax import launch
from tiejax.reporting import checks, command_line
from tiejax.reporting.command_line import BadInput, CommandLine
from tiejax.reporting.console import Console
from tiejax.reporting.run_directory import CONFIG, RunDirectory, plain

if TYPE_CHECKING:
    from tiejax.analysis.tables import Table
    from tiejax.data.hub_families import Tables
    from tiejax.data.hub_tables import Checkpoint, HubTable
    from tiejax.data.hub_tokens import Tokens
    from tiejax.reporting.exor import Drawn

# What reads checkpoints and tables is imported inside functions: the command line is checked before it loads.

SCORED = 65_536  # tokens on which alignments are scored; the maps are fitted to all
FREQUENT = 10_000  # among so many of the first ranks the tokens are looked for whose roles differ most
SHOWN = 20

Tell = Callable[[str, int, int | None], None]


@dataclasses.dataclass(frozen=True)
class Config:
    """Where the input and output tables of a checkpoint stand.

    Args:
        checkpoint: folder of a checkpoint in the hub's format, or directory of a run of ours
        corpus: a text file, a folder of them, or .gz, in which the checkpoint's tokenizer counts tokens, for their ranks of
            frequency (default: tokens rank by their ids)
        input_table: tensor of the input embeddings (default: found by the usual names of the model's family)
        output_table: tensor of the output embeddings (default: found by the usual names of the model's family)
        tokenizer: a tokenizer.json, a vocab.txt, or a name on the hub (default: the checkpoint's own)
        neighbours: how many nearest neighbours of a token are compared
        sample: of how many tokens; neighbours are looked for among all
        seed: of what is drawn
        out: directory of the diagnosis (default: runs/diagnose/NAME, by the folder's name)
    """

    checkpoint: str | None = None
    corpus: str | None = None
    input_table: str | None = None
    output_table: str | None = None
    tokenizer: str | None = None
    neighbours: int = 10
    sample: int = 2000
    seed: int = 0
    out: str | None = None

    def resolved(self) -> "Config":
        """Return the configuration with every default written out; raises BadInput if it makes no sense."""
        if not self.checkpoint:
            raise BadInput(
                "needs a checkpoint: python experiments/diagnose.py FOLDER, with config.json and *.safetensors in it"
            )
        checks.check_counts(self, ("neighbours",))
        checks.check_not_negative(self, ("seed",))
        if self.sample < 2:
            raise BadInput(f"--sample: must be at least 2, got {self.sample}")
        if self.out == "":
            raise BadInput("--out: must name a directory, got nothing")
        name = Path(self.checkpoint).expanduser().absolute().resolve().name or "checkpoint"
        return dataclasses.replace(self, out=self.out or str(Path("runs", "diagnose", name)))


COMMAND = CommandLine(
    description="Say where the input and output embedding tables of a checkpoint stand: tied in fact or not, whether "
    "config.json agrees, norms by token rank, alignment, shared neighbours, tokens whose roles differ most, the memory that "
    "tying would save. Leaves a report with figures.",
    example="Example: python experiments/diagnose.py checkpoints/pythia-160m --corpus novels/. Tables are read by rows, so "
    "that a checkpoint may be larger than the memory; pickles are never opened.",
    switches={
        "overwrite": "remove the diagnosis that is in the directory and start anew",
        "quiet": "print nothing but warnings and the path of the report",
    },
    positional={
        "checkpoint": "folder of a checkpoint in the hub's format (config.json and *.safetensors, also sharded), or the "
        "directory of a run of ours"
    },
)


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


def directory_of(config: Config, overwrite: bool) -> Path:
    """Return the directory of a diagnosis, fit to be written to; raises BadInput, having written nothing."""
    out = Path(config.out or "")
    if RunDirectory.state(out) == "unfinished" and not overwrite:
        raise BadInput(f"--out {out}: holds an unfinished run; name another directory, or --overwrite it")
    RunDirectory.check(out, False, overwrite)
    if (out / CONFIG).exists():
        try:
            command_line.parse(Config, COMMAND, [], base=out / CONFIG)
        except BadInput as error:
            raise BadInput(f"--overwrite: {out} holds no diagnosis ({error}); name another directory") from None
    RunDirectory.probe(out)
    return out


def open_tables(config: Config) -> "tuple[Checkpoint, Tables]":
    """Return the checkpoint and its tables; raises BadInput."""
    from tiejax.data.hub_families import find_tables
    from tiejax.data.hub_tables import open_checkpoint

    folder = Path(config.checkpoint or "").expanduser()
    checkpoint = open_checkpoint(folder)
    tables = find_tables(checkpoint, config.input_table, config.output_table)
    if tables.input.shape[0] < 3:
        raise BadInput(f"--input_table {tables.input.name}: has {tables.input.shape[0]} rows; there is nothing to compare")
    return checkpoint, tables


def rank_tokens(config: Config, folder: Path, rows: int, console: Console, tell: Tell) -> "tuple[Tokens | None, Ranked]":
    """Return the tokenizer, where there is one, and the tokens' ranks, by the corpus or else by id; raises BadInput."""
    from tiejax.analysis.roles import frequency_ranks
    from tiejax.data import corpus
    from tiejax.data.hub_tokens import count_tokens, find_tokens

    try:
        tokens = find_tokens(folder, config.tokenizer)
    except ValueError as error:
        if config.tokenizer is not None or config.corpus is not None:
            raise BadInput(str(error)) from None
        console.warn(f"tokens have no texts: {error}")
        tokens = None
    if config.corpus is None:
        everyone = np.ones(rows, bool)
        return tokens, Ranked(np.arange(1, rows + 1), None, everyone, {"by": "id", "tokenizer": _file(tokens)})
    if tokens is None:
        raise BadInput(f"--corpus: {folder} has no tokenizer.json, vocab.txt or vocab.json; name one by --tokenizer")
    if config.corpus.startswith(corpus.TFDS):
        raise BadInput(f"--corpus {config.corpus}: must be a text file or a folder of them")
    documents = corpus.read(corpus.sources([config.corpus]))
    counts = count_tokens(tokens, documents, rows, lambda number: tell("tokens counted", number, None))
    facts = {
        "by": "corpus",
        "corpus": config.corpus,
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


def relate(tables: "Tables", config: Config, tell: Tell) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return how the input and output tables of an untied checkpoint relate; and cosines by token and correlations."""
    from tiejax.analysis import alignment as aligned
    from tiejax.analysis import roles
    from tiejax.analysis.tables import row_blocks

    assert tables.output is not None
    rows, widths = tables.input.shape[0], (tables.input.shape[1], tables.output.shape[1])

    first, second = tables.input, tables.output
    watched = watch(tell, "products of the tables", 2 * rows, first, second)
    products = aligned.cross_products(watched[0], watched[1])
    backwards = roles.swapped(products)
    scored = np.arange(rows)
    if rows > SCORED:
        scored = np.sort(np.random.default_rng(config.seed).choice(rows, SCORED, replace=False))
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
    k, queries = min(config.neighbours, rows - 1), min(config.sample, rows)
    reading = 2 * (queries + rows * len(list(row_blocks(queries, 4 * max(widths)))))
    watched = watch(tell, "neighbours", reading, first, second)
    overlap = aligned.neighbour_overlap(watched[0], watched[1], k, config.sample, config.seed)
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
    from tiejax.data.hub_tokens import text_of

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
    from scipy import stats

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


def diagnose(config: Config, console: Console) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what results.json and metrics.npz say of a checkpoint; raises BadInput."""
    from tiejax.analysis import roles

    began = time.monotonic()
    checkpoint, tables = open_tables(config)
    with console.preparing() as tell:
        rows = tables.input.shape[0]
        tokens, ranked = rank_tokens(config, checkpoint.folder, rows, console, tell)
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
            found, of_tokens = relate(tables, config, tell)
            results |= found
            arrays |= of_tokens
            results["tokens"] = parting_tokens(arrays, ranked, tokens)
    results["seconds"] = time.monotonic() - began
    return plain(results), arrays


def curves_of(results: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the bands over token rank that the figures show."""
    from tiejax.analysis import roles

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


class Diagnosis(NamedTuple):
    """All that is known of a model. pages: the module that writes its page and verdict."""

    results: dict[str, Any]
    arrays: dict[str, np.ndarray]
    drawn: "list[Drawn]"
    pages: Any


def of_run(config: Config, console: Console) -> Diagnosis:
    """Diagnose a run of ours; raises BadInput."""
    for name in ("corpus", "input_table", "output_table", "tokenizer"):
        if getattr(config, name) is not None:
            raise BadInput(f"--{name}: is for checkpoints of the hub; a run of ours has its own")
    assert config.checkpoint is not None
    opened = diagnose_run.open_run(Path(config.checkpoint).expanduser(), console)
    with console.preparing() as tell:
        found = diagnose_run.diagnose(opened, tell)
    results = plain({"experiment": "diagnose", "checkpoint": config.checkpoint, **found})

    from tiejax.analysis.equivalence import THRESHOLD
    from tiejax.reporting import diagnose_run as pages

    return Diagnosis(results, {}, pages.drawn(results, THRESHOLD), pages)


def of_checkpoint(config: Config, console: Console) -> Diagnosis:
    """Diagnose a checkpoint in the hub's format; raises BadInput."""
    from tiejax.data.corpus import CorpusError
    from tiejax.data.hub_tables import CheckpointError

    try:
        results, arrays = diagnose(config, console)
    except (CheckpointError, CorpusError) as error:
        raise BadInput(str(error)) from None

    from tiejax.reporting import diagnose as pages

    return Diagnosis(results, arrays, pages.drawn(results, curves_of(results, arrays), arrays), pages)


def main(argv: Sequence[str]) -> int:
    """Diagnose a model; return the exit status."""
    given, switches = command_line.parse(Config, COMMAND, argv)
    config = given.resolved()
    out = directory_of(config, switches["overwrite"])
    console = Console(switches["quiet"])
    is_run = diagnose_run.is_run(Path(config.checkpoint or "").expanduser())
    found = of_run(config, console) if is_run else of_checkpoint(config, console)

    from tiejax.reporting import figures

    # All is known now, so that a diagnosis that fails leaves nothing behind.
    run = RunDirectory.claim(out, False, switches["overwrite"], config)
    facts = run.write_environment({"devices": []}, launch.command_of(argv))
    if found.arrays:
        run.write_metrics(found.arrays)
    pictures = [(item.caption, figures.save(item.figure, run.figures, item.name)) for item in found.drawn]
    report = run.write_report(found.pages.page(found.results, facts, (run.path / CONFIG).read_text(), pictures))
    run.write_results(found.results)
    run.release()
    for line in found.pages.verdict(found.results):
        console.say(line)
    console.result(f"report: {report}")
    return 0


if __name__ == "__main__":
    command_line.run_main(main)
