"""The HTML report of a layer-tying run, and its tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tiejax.lab.reporting.finding import openings, tally
from tiejax.lab.reporting.page import RunOnPage, render
from tiejax.lab.reporting.sections import excluded_notes, few_seeds_notes, marked_as_reported, rates_table
from tiejax.lab.reporting.words import Table, counted, formatted, number, share
from tiejax.lab.studies.layer_tying.analysis import VALUES_TRAINED, mean_error
from tiejax.lab.studies.layer_tying.claims import LEARNS
from tiejax.lab.studies.layer_tying.figures import MIB, Rows
from tiejax.lab.studies.layer_tying.sizes import agent_parameters
from tiejax.statistics.power import fewest_seeds
from tiejax.system.visible import visible

QUESTION = (
    "Which layers of a transformer can share weights, at what cost, and with how much less memory: those of a fixed map, with "
    "or without a low-rank adaptation of each layer, or those that an agent chooses, which decides for each layer in turn, "
    "while the model trains, whether it has separate weights or copies an earlier layer?"
)
# The claims that answer the question.
LEADING = ("perplexity/agent", "replicated/agent", "memory/mean", "learns/random-agent", "static/sequence")
DEPARTURES = (
    "the paper has k = 15, epsilon at least .1, reward negative-ppl; its published code k = 4, epsilon at least .01, ties "
    "published, gradient owner, start frozen-random (for BERT: told-tied), reward clipped-ppl, details published, and the best "
    "step selected on the test split; the settings of this run are listed above"
)
TIME_OF_A_STEP = (
    "median over all steps of the method with as many distinct layers, in all seeds; includes the agent (for a random agent, "
    "without the reward's batch), excludes compilation and validation; about as many models train at once as there are "
    "devices. Other load on the machine is not controlled: bench.py layers measures the methods one after another"
)
SOURCE = "T. David Hay and L. Wolf, Dynamic Layer Tying for Parameter-Efficient Transformers, ICLR 2024 (arXiv:2401.12819)"
PERPLEXITIES = {
    "train_perplexity": "training",
    "test_perplexity": "test",
    "test_perplexity_per_word": "test, per word",
    "validation_perplexity": "validation",
    "equal_time_perplexity": "at equal time",
}
BYTES = {
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "stored_bytes": "together",
    "peak_bytes": "peak",
}

LAST_PART = 4  # the last quarter of the episodes
AGENTS_TITLE = (
    "Agents: means over the last quarter of the episodes (error / |reward|: 100 % for untrained values Q, 0 for values that "
    "solve their equation)"
)


def page(run: RunOnPage) -> str:
    """Return the HTML report of a run."""
    results, settings = run.results, run.settings
    return render(
        run,
        title=f"Dynamic layer tying: {settings['architecture']}, {settings['layers']} layers of width {settings['width']}",
        question=QUESTION,
        finding=finding(results),
        setting=_setting(results, settings),
        notes=_notes(results),
        claims={"Claims": marked_as_reported(results["claims"])},
        numbers=tables(results),
    )


def finding(results: Mapping[str, Any]) -> list[str]:
    """Return the answer to the question of the report as paragraphs, the first of which the report emphasises.

    They are the sentence of the gate, if it is not passed, the decided claims, the undecided ones, the bigram model, and the
    count of verdicts.
    """
    claims = results["claims"]
    of_values = _values_words(results.get("agents", {}))
    leading = [
        *(name for name in LEADING if not of_values or not name.startswith(LEARNS)),
        *(row["id"] for row in claims if row["id"].startswith(("better/", "not-worse/"))),
    ]
    undecided = [row for row in claims if row["verdict"] == "undecided"]
    decided = [row for row in claims if row["verdict"] != "undecided"]
    answers = [openings(rows, leading) for rows in (decided, undecided)]
    failed = results.get("gate", {}).get("failed", "")
    return [*filter(None, [failed, *answers, of_values, bigram_words(results)]), tally(claims)]


def _values_words(agents: Mapping[str, Mapping[str, Any]]) -> str:
    """Return that the agent's values do not predict its returns, or that this is not known; "" if they do."""
    if "agent" not in agents:
        return ""
    error = mean_error(agents["agent"].get("value_error", ()))
    if error is None:
        return "It is not known whether the agent's values predict its returns: nothing is said about an agent that learns."
    if error < VALUES_TRAINED:
        return ""
    return (
        f"The agent's values do not predict its returns: their error is {share(error)} of the returns, where less than "
        f"{share(VALUES_TRAINED)} is expected. Nothing is said about an agent that learns."
    )


def _setting(results: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of the run in words, by name."""

    def listed(*names: str) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {settings[name]}" for name in names)

    data, seconds = results["data"], ", ".join(f"{formatted(budget, ',.0f')} s" for budget in results["equal_time_s"])
    splits = [f"{part['tokens']:,} ({part['words']:,} words) for {name}" for name, part in data["splits"].items()]
    counts = [f", {name.replace('_', ' ')} {value:,}" for name, value in results["model"].items() if name not in settings]
    variants = [f"{name}: {', '.join(f'{field} {value}' for field, value in fields.items())}"
                for name, fields in (settings["variants"] or {}).items()]  # fmt: skip
    return {
        "corpus": ", ".join(map(str, settings["corpus"])) or "the prose that comes with CPython",
        "data": f"tokens: {', '.join(splits)}; fingerprint {data['fingerprint'][:16]}",
        "tokenizer": f"{settings['tokenizer'] or 'byte-level BPE trained on the corpus'}, vocabulary {data['vocabulary']:,}",
        "model": listed("architecture", "objective", "layers", "width", "heads", "context", "dropout") + "".join(counts),
        "training": f"{results['steps']:,} steps of {settings['batch_size']} blocks, {_rate_words(results, settings)}, "
        + listed("schedule", "warm_up", "weight_decay", "storage")
        + f", initial values from N(0, {settings['initial_std']:g}^2)",
        **({"variants": "; ".join(variants)} if variants else {}),
        "ties": listed("ties", "gradient", "moments", "start", "details"),
        "agent": f"{settings['layers'] - 1} actions per episode, {listed('k', 'reward', 'epsilon_floor')}",
        "departures": DEPARTURES,
        "seeds": f"{len(results['seeds'])}; all methods of a seed see the same batches",
        "equal steps": "validation blocks select the best step of each model; its losses are those of the whole splits",
        "equal time": "loss on validation blocks when the fastest method of the seed finished its steps"
        f"{f' ({seconds})' if seconds else ''}, interpolated in time between validations",
        "time of a step": TIME_OF_A_STEP,
        "claims": "the paper reports those marked as reported; the others are ours",
        "source": SOURCE,
    }


def _rate_words(results: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return the learning rate in words, or that of each class of methods with the seeds that chose it."""
    if not results["rates"]:
        return f"learning rate {settings['learning_rate']:g}{_factor_words(settings.get('table_rate', 1))}"
    factors = results.get("table_factors", {})
    rates = ", ".join(
        f"{name} {rate:g}{_factor_words(factors.get(name, 1))} (by {results['tuning'][name]['method']}"
        f"{', the last that was tried' if results['tuning'][name]['at_edge'] else ''})"
        for name, rate in results["rates"].items()
    )
    return f"learning rates {rates}, chosen on {counted(len(results['tuning_seeds']), 'seed')} that are not reported"


def _factor_words(factor: float) -> str:
    """Return the factor of the embedding tables' learning rate in words, "" if it is 1."""
    return "" if factor == 1 else f", times {factor:g} for the embedding tables"


def _notes(results: Mapping[str, Any]) -> list[str]:
    """Return notes on the limits of the conclusions."""
    names = [row["method"] for row in results["methods"]]
    notes = [*excluded_notes(results), *few_seeds_notes(results, fewest_seeds)]
    if "random-map" in names and "agent" in names:
        notes.append("A random map has as many distinct layers as the agent of the same seed at its best step.")
    if results["agents"]:
        number = agent_parameters(len(results["methods"][0]["final_owner"][0]))
        notes.append(
            f"The bytes of agents are without their networks, {number:,} parameters each, and without the gradients and "
            "moments of the network of the agent that learns."
        )
    return notes


def tables(results: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of the report by title: methods, agents, learning rates, seeds, maps, continuations."""
    if not results["seeds"]:
        return {}
    rows, seeds = results["methods"], results["seeds"]
    tuned = ", ".join(map(str, results.get("tuning_seeds", [])))
    return {
        "Methods: perplexity, mean [95 % interval] over seeds": perplexities(rows, _of_bigram(results)),
        "Methods: layers at the best step and in training, time": layers(rows),
        "Methods: memory (MiB), means over training, then maxima": memory(rows),
        **({AGENTS_TITLE: agents(results["agents"])} if results["agents"] else {}),
        **({f"Learning rates, chosen on seeds {tuned} only": rates_table(results["tuning"])} if tuned else {}),
        "Every seed": by_seed(rows, seeds),
        "Final maps: for each layer, the layer whose weights it uses": maps(rows, seeds),
        **(continuations(results["generated"]) if "generated" in results else {}),  # of causal models
    }


def perplexities(rows: Rows, bigram: Mapping[str, float] | None = None) -> Table:
    """Return the perplexities of every method, and those of a bigram model, if any."""
    names = _perplexities_of(rows)
    found = [[row["method"], *(_over_seeds(row[name]) for name in names)] for row in rows]
    if bigram is not None:
        found.append(["bigram", *(perplexity(bigram.get(name)) for name in names)])
    return ["method", *names.values()], found


def _perplexities_of(rows: Rows) -> dict[str, str]:
    """Return the perplexities of a run with their titles: those of masked models are not per word."""
    return {name: title for name, title in PERPLEXITIES.items() if name in rows[0]}


def _of_bigram(results: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the perplexities of the bigram model of a run, None if it has none."""
    if "bigram" not in results:
        return None
    losses, splits = results["bigram"]["losses"], results["data"]["splits"]
    per_word = losses["test"] * splits["test"]["tokens"] / splits["test"]["words"]
    of_name = {
        "test_perplexity": losses["test"],
        "test_perplexity_per_word": per_word,
        "validation_perplexity": losses["validation"],
    }
    return {name: math.exp(loss) for name, loss in of_name.items()}


def bigram_words(results: Mapping[str, Any]) -> str:
    """Return how untied models and those of agents compare with the bigram model of the tokens of one seed; "" without one."""
    if (of_bigram := _of_bigram(results)) is None:
        return ""
    means = {row["method"]: perplexity(row["test_perplexity"]["mean"]) for row in results["methods"]}
    ends = "".join(f", {name} models {means[name]}" for name in ("untied", "agent") if name in means)
    value = perplexity(of_bigram["test_perplexity"])
    return f"A bigram model of the tokens that one seed sees has a test perplexity of {value}{ends}."


def layers(rows: Rows) -> Table:
    """Return layers and time of every method, as means over seeds."""
    return ["method", "distinct layers", "in training", "copies", "parameters", "seconds per step"], [
        [
            row["method"],
            _mean(row["distinct"], ".1f"),
            _mean(row["distinct_in_training"], ".1f"),
            _mean(row["replicated"], ".0%"),
            _mean(row["parameters"], ",.0f"),
            formatted(row["seconds_per_step"]["mean"], ".4g"),
        ]
        for row in rows
    ]


def memory(rows: Rows) -> Table:
    """Return the bytes of every method."""
    return ["method", *BYTES.values(), "together, maximum", "peak, maximum"], [
        [
            row["method"],
            *(number(float(np.mean(row["bytes"][name]["seeds"])) / MIB) for name in BYTES),
            *(number(max(row["bytes"][name]["largest"]) / MIB) for name in ("stored_bytes", "peak_bytes")),
        ]
        for row in rows
    ]


def agents(by_name: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the distinct layers, reward and error of Q of every agent.

    With one value Q of all states and actions, the error is |reward| - .01 |Q|: all of |reward| for untrained values, and 0 for
    those that solve the equation of a constant reward. The last column is the mean of `value_error`.
    """
    rows = []
    for name, agent in by_name.items():
        last = slice(-max(1, len(agent["episode"]) // LAST_PART), None)
        distinct, reward, squared = (np.array(agent[part], float)[:, last] for part in ("distinct", "reward", "q_loss"))
        error = np.sqrt(squared)
        errors = float((error / np.abs(reward)).mean()), float(np.mean(np.array(agent["value_error"], float)))
        rows.append([
            name, str(len(agent["episode"])), f"{distinct.mean():.1f}",
            formatted(reward.mean(), ".3f"), formatted(error.mean(), ".3f"),
            *("-" if math.isnan(value) else share(value) for value in errors),
        ])  # fmt: skip
    columns = ["agent", "episodes", "distinct layers", "reward", "error of Q", "error / |reward|", "|Q - return| / |return|"]
    return columns, rows


def by_seed(rows: Rows, seeds: Sequence[int]) -> Table:
    """Return perplexities, steps and layers of every model."""
    names = _perplexities_of(rows)
    return ["method", "seed", *names.values(), "its step", "best step", "distinct", "in training"], [
        [
            row["method"],
            str(seed),
            *(perplexity(row[name]["seeds"][index]) for name in names),
            f"{row['equal_time_step'][index]:,}",
            f"{row['best_step'][index]:,}",
            str(row["distinct"][index]),
            formatted(row["distinct_in_training"][index], ".1f"),
        ]
        for row in rows
        for index, seed in enumerate(seeds)
    ]


def maps(rows: Rows, seeds: Sequence[int]) -> Table:
    """Return the final owner map of every method, of each seed if they differ."""
    final = []
    for row in rows:
        owners = row["final_owner"]
        if all(owner == owners[0] for owner in owners):
            final.append([row["method"], *map(str, owners[0])])
        else:
            final += [[f"{row['method']}, seed {seed}", *map(str, owner)] for seed, owner in zip(seeds, owners, strict=True)]
    return ["layer", *map(str, range(len(final[0]) - 1))], final


def continuations(generated: Mapping[str, Any]) -> dict[str, Table]:
    """Return a table for each prompt with the continuations of all methods, as code, with line ends as `\\n`."""

    def code(text: str) -> str:
        return "`" + visible(text).replace("`", "'") + "`"

    def row(name: str, found: Mapping[str, Any], prompt: int) -> list[str]:
        if "problem" in found:
            return [name, "-", code(f"none: {found['problem']}")]
        return [name, share(found["distinct"]), code(found["continuations"][prompt])]

    writers = {"the text itself": generated["text"], **generated["methods"]}
    how = f"by models of seed {generated['seed']} at temperature {generated['temperature']}, which test no claim"
    return {
        f"Continuations of prompt {place + 1} {how}": (
            ["method", "share of distinct tokens", f"continuation of {code(prompt)}"],
            [row(name, found, place) for name, found in writers.items()],
        )
        for place, prompt in enumerate(generated["prompts"])
    }


def perplexity(value: int | float | None) -> str:
    """Format a perplexity."""
    return formatted(value, ",.2f" if value is not None and value < 100 else ",.1f")


def _mean(values: Sequence[int | float | None], form: str) -> str:
    return formatted(float(np.mean(np.array(values, dtype=float))), form)


def _over_seeds(values: Mapping[str, Any]) -> str:
    if values["interval"] is None:
        return perplexity(values["mean"])
    return f"{perplexity(values['mean'])} [{', '.join(map(perplexity, values['interval']))}]"
