"""Several variants of EXor in one run: each is an ordinary run in a folder of the run directory, then one page across them.

    OUT/main, OUT/dh, ...       run directories, trained in this order; finished ones are kept when the run is resumed. With
                                --rates, folders of several runs: see `best_rates`
    OUT/results.json, ...       claims across variants, made from the results of all

A process that is killed at any point leaves finished runs, at most one unfinished run, and none of the others.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tiejax.lab.reporting.words import counted
from tiejax.lab.runs.console import Console
from tiejax.lab.runs.finish import write_outputs
from tiejax.lab.runs.launched import Launched, prepare, reserve
from tiejax.lab.runs.parts import InSeries, Looks, facts_of, looks_done, value_of_first
from tiejax.lab.runs.rates import Tried, rate_lines, tuning_rows
from tiejax.lab.runs.resume import Request
from tiejax.lab.runs.run_directory import CONFIG, RESULTS, RunDirectory, check_contents
from tiejax.lab.runs.train import begin, write_environment
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.exor import best_rates, study, variants_page
from tiejax.lab.studies.exor.settings import STUDY, Settings
from tiejax.lab.studies.exor.variants import claims_of_all, of_first
from tiejax.statistics.arms import ARMS
from tiejax.statistics.claims import Claim, assess_in_looks
from tiejax.system.json_values import plain
from tiejax.training import cluster

Stop = Callable[[], bool]


def start(launched: Launched, console: Console) -> int:
    """Run the study, of several variants or of one; return the exit status."""
    return run(launched, console) if launched.settings.variants else study.run(launched, console)


def run(launched: Launched, console: Console) -> int:
    """Train all variants that are not finished, then write the page across them; return the exit status."""
    stop = begin(launched, console)
    settings, directory = launched.settings, launched.run
    if directory is not None and launched.switches["overwrite"]:
        empty([run for own in settings.by_variant.values() for run in (best_rates.begun(own) if settings.rates else [own])])
    try:
        bodies, outs, tuning = _train_all(launched, console, stop)
    except _Stopped:
        return 130
    looks = looks_done(launched, [settings.number_of_seeds])  # by all processes
    if directory is None:
        return 0

    with console.stage("analysis"):
        results = plain(summarise(bodies, settings.variants, settings.arms, looks) | tuning)
    # The results of a variant are files of this run too: it is not whole if they change.
    directory.add([Path(out, RESULTS) for out in outs])
    report = write_outputs(console, directory, settings, results, variants_page.plot_all(results), variants_page.page)
    launched.tracker.end(results["claims"])
    console.claims(results["claims"])
    console.result(f"report: {report}")
    return 0


class _Stopped(Exception):
    """The run was asked to stop, which has been announced."""


def _train_all(launched: Launched, console: Console, stop: Stop) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """Train the runs that are not finished; return results by variant and arm, run directories, and the fields on tuning.

    With rates to choose from, the runs that choose them come first. Raises _Stopped.
    """
    settings, by_variant = launched.settings, launched.settings.by_variant
    bodies, outs, chosen = dict[str, dict[str, Any]](), list[str](), dict[str, dict[str, Tried]]()

    def trained(own: Settings, place: InSeries) -> dict[str, Any]:
        if not value_of_first(lambda: is_finished(own)):
            if any(asked for (asked,) in cluster.agree([stop()])):
                console.result(f"stopped before {place.label}; continue with the same command and --resume")
                raise _Stopped
            if _train(launched, own, console, stop, place):
                raise _Stopped
        outs.append(own.out or "")
        body: dict[str, Any] = value_of_first(lambda: results_of(own))
        return body

    def at_rate(own: Settings) -> dict[str, Any]:
        place = Path(own.out or "").relative_to(settings.out or "")
        tried = "tried " if place.name.startswith("tuning-") else ""
        label = f"{place.parent}, {tried}learning rate {own.learning_rate:g}"
        left = sum(best_rates.seeds_left(each, {*outs, own.out}, chosen.get(name)) for name, each in by_variant.items())
        # The claims of both kinds of models at one rate are not those of this run, which compares them at their best rates.
        return trained(own, InSeries(label, left / len(own.seed_list), show_claims=False))

    if not settings.rates:
        left = value_of_first(lambda: [name for name, own in by_variant.items() if not is_finished(own)])
        console.say(f"{counted(len(by_variant), 'run')} of EXor in {settings.out}, {len(left)} to be trained")
        for number, (name, own) in enumerate(by_variant.items(), 1):
            later = len(left) - left.index(name) - 1 if name in left else 0
            bodies[name] = trained(own, InSeries(f"{name}, run {number} of {len(by_variant)}", later))
        return bodies, outs, {}
    for name, own in by_variant.items():
        chosen[name] = best = best_rates.choose(own, at_rate)
        for line in rate_lines({f"{arm} {name}": each for arm, each in best.items()}):
            console.say(line)
        bodies[name] = best_rates.joined({arm: at_rate(at) for arm, at in best_rates.reported(own, best).items()})
    tried = {f"{name}, {arm}": each for name, best in chosen.items() for arm, each in best.items()}
    return bodies, list(dict.fromkeys(outs)), {"tuning": tuning_rows(tried), "tuning_seeds": settings.tuning_seeds}


def empty(runs: Sequence[Settings]) -> None:
    """Delete the runs with these settings, each of which is then an unfinished run that has not begun to train.

    Raises BadInput if one of the folders contains something else, or if another process is running there.
    """
    for own in runs:
        out = Path(own.out or "")
        if RunDirectory.state(out) != "new":
            check_contents(out, overwrite=True)
            RunDirectory.check_study(out, STUDY.name, "overwrite")
            RunDirectory.reserve(STUDY, own, resume=False, overwrite=True).release()


def is_finished(own: Settings) -> bool:
    """Return whether the run of a variant has finished, with these seeds, and its files are as they were written."""
    out = Path(own.out or "")
    if RunDirectory.state(out) != "finished":
        return False
    return not RunDirectory.grows(STUDY, out, own) and not RunDirectory.damage(out)


def results_of(own: Settings) -> dict[str, Any]:
    """Return the results of the finished run of a variant; raises BadInput if they are damaged or of other settings."""
    out = Path(own.out or "")
    # Reserved for a moment, which checks that the run was made with these settings and that no process is changing it.
    directory = RunDirectory.reserve(STUDY, own, resume=True, overwrite=False)
    directory.release()
    found = RunDirectory.results(out, directory.manifest)
    if found is None:
        raise BadInput(f"{out}: the run has not finished; continue with the same command and --resume")
    return found


def _train(launched: Launched, own: Settings, console: Console, stop: Stop, series: InSeries) -> int:
    """Train the run of a variant to its end, from its last checkpoint if there is one; return the exit status."""
    out = Path(own.out or "")
    begun = value_of_first(lambda: RunDirectory.state(out) != "new")
    if launched.first:
        check_contents(out, overwrite=False)
        if (out / CONFIG).exists():
            RunDirectory.check_study(out, STUDY.name, "resume")
    switches = launched.switches | {"resume": begun, "overwrite": False}
    request = Request(own, switches, out, argv=())
    ready = prepare(STUDY, request, launched.first, alone=jax.process_count() == 1)._replace(command=launched.command)
    if launched.first:
        ready = reserve(STUDY, ready)
    with ready:
        write_environment(ready)
        return study.train_and_report(ready, console, stop, study.kind_of(own), series)


def summarise(
    bodies: Mapping[str, Mapping[str, Any]], variants: Sequence[str], arms: Sequence[str], looks: Looks
) -> dict[str, Any]:
    """Return the content of results.json; bodies: that of each run, by `run_name`; looks: of the claims across runs."""
    some = next(iter(bodies.values()))

    def claims_on(seeds: int) -> list[Claim]:
        return claims_of_all({name: of_first(body, seeds) for name, body in bodies.items()}, variants, arms)

    return {
        "experiment": "exor",
        "variants": list(bodies),
        **{name: some[name] for name in ("bits", "model", "steps", "seeds", "solving_window")},
        "excluded_seeds": sorted({seed for body in bodies.values() for seed in body["excluded_seeds"]}),
        "non_finite": [{"variant": name, **row} for name, body in bodies.items() for row in body["non_finite"]],
        "runs": {name: _summary(body) for name, body in bodies.items()},
        "claims": assess_in_looks(claims_on, *looks.or_one(len(some["seeds"]))),
        **facts_of(looks, []),
        "timing": _timing([body["timing"] for body in bodies.values()]),
    }


def _summary(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page across variants shows of a run: final losses on the training split, and who solved the task."""
    risks = {arm: body["final"][arm]["exact_cross_entropy"] for arm in ARMS}
    return {
        "zero": body["zero"],
        "one": body["one"],
        "bayes_cross_entropy": body["bayes"]["splits"]["train"]["cross_entropy"],
        "cross_entropy": None if None in risks.values() else {arm: risk["train"] for arm, risk in risks.items()},
        "solved": body["solved"],
    }


def _timing(timings: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the seconds of all runs; the rate of those that this process trained is their mean by time."""
    seconds = np.array([timing["train_s"] for timing in timings])
    steps = sum(second * (timing["model_steps_per_s"] or 0) for second, timing in zip(seconds, timings, strict=True))
    return {
        "compile_s": float(sum(timing["compile_s"] for timing in timings)),
        "train_s": float(seconds.sum()),
        "model_steps_per_s": float(steps / seconds.sum()) if seconds.sum() else None,
    }
