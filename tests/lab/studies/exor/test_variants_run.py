"""Several variants in one run: ordinary runs in folders, claims across them, stops, kills and refusals."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from damage import steps
from processes import EXPERIMENTS, assert_refused, command_here, end, run_here, start, tree, wait_until

from tiejax.lab.runs import entry, manifest, resume
from tiejax.lab.runs.parts import InSeries, _part
from tiejax.lab.runs.rates import choose_rates
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.exor.best_rates import begun, seeds_left
from tiejax.lab.studies.exor.settings import STUDY, Settings
from tiejax.lab.studies.exor.variants_page import finding, tables

pytestmark = pytest.mark.slow

TINY = ["--bits", "3", "--layers", "1", "--steps", "20", "--record_every", "10", "--quiet"]


def results(out):
    return json.loads((out / "results.json").read_text())


def arrays(out):
    with np.load(out / "metrics.npz", allow_pickle=False) as found:
        return {name: array.tobytes() for name, array in found.items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("variants") / "run"
    assert entry.main(STUDY, [*TINY, "--seeds", "2", "--variants", "main,dh", "--out", str(out)]) == 0
    return out


def test_each_variant_is_an_ordinary_run(finished, tmp_path):
    alone = tmp_path / "alone"
    assert entry.main(STUDY, [*TINY, "--seeds", "2", "--variant", "dh", "--out", str(alone)]) == 0
    assert arrays(finished / "dh") == arrays(alone)
    found, expected = results(finished / "dh"), results(alone)
    assert {**found, "timing": None} == {**expected, "timing": None}
    before = tree(finished / "dh")
    assert entry.main(STUDY, ["--out", str(finished / "dh"), "--resume"]) == 0
    assert tree(finished / "dh") == before


def test_claims_across_variants_are_paired_by_seed(finished):
    found = results(finished)
    by_id = {row["id"]: row for row in found["claims"]}
    assert list(by_id) == ["tying-costs/main", "tying-free/dh", "interaction/main-dh"]
    losses = {
        name: {
            arm: np.array(results(finished / name)["final"][arm]["exact_cross_entropy"]["train"]) for arm in ("untied", "tied")
        }
        for name in ("main", "dh")
    }
    prices = {name: of["tied"] - of["untied"] for name, of in losses.items()}
    np.testing.assert_allclose(by_id["interaction/main-dh"]["differences"], prices["main"] - prices["dh"])
    np.testing.assert_allclose(by_id["tying-costs/main"]["differences"], prices["main"])
    assert (found["variants"], found["seeds"], found["format"]) == (["main", "dh"], [0, 1], 3)
    ((_, (headings, rows)),) = tables(found).items()
    assert [row[:2] for row in rows] == [
        [name, f"{results(finished / name)['bayes']['splits']['train']['cross_entropy']:.4f}"] for name in ("main", "dh")
    ]
    assert rows[0][headings.index("mean, tied")] == f"{losses['main']['tied'].mean():.4f}"


def test_the_page_starts_with_the_registered_claims(finished):
    assert '"Tying costs cross-entropy in main, where DH fails for a pair" is not decided' in finding(results(finished))[0]
    page = (finished / "report.html").read_text()
    for words in ("dh/report.html", "DH fails for the zero pair", "DH fails for no pair of spellings", "interaction/main-dh"):
        assert words in page


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned") / "run"
    more = ["--variants", "main", "--rates", "[0.001, 0.002]", "--rate_seeds", "2"]
    assert entry.main(STUDY, [*TINY, "--seeds", "2", *more, "--out", str(out)]) == 0
    return out


def losses_in(folder):
    return {arm: results(folder)["final"][arm]["exact_cross_entropy"]["train"] for arm in ("untied", "tied")}


def test_each_kind_of_models_is_compared_at_its_best_rate(tuned):
    found = results(tuned)
    tried = {float(folder.name.removeprefix("tuning-")): losses_in(folder) for folder in (tuned / "main").glob("tuning-*")}
    assert set(results(tuned / "main" / "tuning-0.001")["seeds"]) == {2000, 2001}
    assert len(tried) > 2  # one of two rates is the best, at an edge
    best = {arm: min(sorted(tried), key=lambda rate: np.mean(tried[rate][arm])) for arm in ("untied", "tied")}
    assert {name: row["best"] for name, row in found["tuning"].items()} == {f"main, {arm}": rate for arm, rate in best.items()}
    ends = {arm: np.array(losses_in(tuned / "main" / f"rate-{best[arm]!r}")[arm]) for arm in best}
    (price,) = (row for row in found["claims"] if row["id"] == "tying-costs/main")
    np.testing.assert_allclose(price["differences"], ends["tied"] - ends["untied"])
    assert found["seeds"] == [0, 1]
    headings, rows = tables(found)["Numbers: learning rates, on seeds 2000 to 2001 only"]
    assert headings == ["models", "rate", "mean loss"]
    assert len(rows) == sum(len(row["rates"]) for row in found["tuning"].values())
    assert f"main/rate-{best['tied']!r}/report.html" in (tuned / "report.html").read_text()


def test_runs_that_chose_a_rate_are_kept_and_overwritten(tuned, tmp_path, capsys):
    out = shutil.copytree(tuned, tmp_path / "run")
    before = tree(out / "main")
    (out / "results.json").unlink()
    assert entry.main(STUDY, ["--out", str(out), "--resume"]) == 0
    assert tree(out / "main") == before
    assert results(out) | {"timing": None} == results(tuned) | {"timing": None}
    spoken = [argument for argument in TINY if argument != "--quiet"]
    other = [*spoken, "--variants", "main", "--rates", "[0.001, 0.002]", "--rate_seeds", "1", "--seeds", "1"]
    capsys.readouterr()
    assert entry.main(STUDY, [*other, "--out", str(out), "--overwrite"]) == 0
    printed = capsys.readouterr().out
    assert "tying-costs/main" in printed
    assert "input-semantic" not in printed  # a claim of both kinds at one rate, which its own report tests
    assert results(out)["seeds"] == [0]
    assert results(out / "main" / "tuning-0.001")["seeds"] == [2000]


def test_time_left_counts_the_runs_that_have_not_begun(tuned):
    """Two rates on two seeds, then two runs of two seeds: 8 in all; one reported run if both kinds have the same best rate."""
    (own,) = resume.read(STUDY, ["--out", str(tuned), "--resume"]).settings.by_variant.values()
    assert seeds_left(own, [], None) == 8
    assert seeds_left(own, [f"{own.out}/tuning-0.001", f"{own.out}/tuning-0.004"], None) == 6
    same = choose_rates([0.001, 0.002, 0.004], lambda pairs: np.array([[abs(rate - 0.002)] * 2 for rate, _ in pairs]))
    other = choose_rates([0.001, 0.002, 0.004], lambda pairs: np.array([[abs(rate - 0.004)] * 2 for rate, _ in pairs]))
    assert seeds_left(own, [], {"untied": same, "tied": same}) == 2
    assert seeds_left(own, [], {"untied": same, "tied": other}) == 4
    assert seeds_left(own, [f"{own.out}/rate-0.002"], {"untied": same, "tied": other}) == 2


REFUSED_RATES = {
    "one run": (["--rates", "[0.001, 0.002]"], "needs --variants"),
    "order": (["--variants", "main", "--rates", "[0.002, 0.001]"], "ascending order"),
    "seeds": (["--variants", "main", "--rates", "[0.001, 0.002]", "--seeds", "2000-2003"], "2000"),
}


@pytest.mark.parametrize(("argv", "words"), REFUSED_RATES.values(), ids=REFUSED_RATES)
def test_rates_that_cannot_be_tried_are_refused(argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert_refused(command_here(argv, monkeypatch, capsys, STUDY), words, script=EXPERIMENTS / "exor.py")
    assert tree(tmp_path) == {}


def test_finished_variants_are_kept_and_changed_ones_are_noticed(finished, tmp_path, capsys):
    out = shutil.copytree(finished, tmp_path / "run")
    before = tree(out)
    command = [*TINY, "--seeds", "2", "--variants", "main,dh", "--out", str(out), "--resume"]
    assert entry.main(STUDY, command) == 0
    assert "the run is finished" in capsys.readouterr().out
    assert tree(out) == before
    (out / "main" / "results.json").write_text("{}")
    assert entry.main(STUDY, command) == 0
    assert "damaged or missing, to be written again: main/results.json" in capsys.readouterr().err
    assert results(out / "main")["final"] == results(finished / "main")["final"]
    assert results(out)["claims"] == results(finished)["claims"]
    assert (out / "dh" / "results.json").stat().st_mtime_ns == before["dh/results.json"][0]


@pytest.mark.slow
def test_appended_seeds_train_in_every_variant(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "run")
    assert entry.main(STUDY, [*TINY, "--seeds", "3", "--out", str(out), "--resume"]) == 0
    found = results(out)
    assert found["seeds"] == results(out / "dh")["seeds"] == [0, 1, 2]
    assert {row["n"] for row in found["claims"]} == {3}
    np.testing.assert_allclose(
        found["claims"][0]["differences"][:2], results(finished)["claims"][0]["differences"], rtol=1e-4, atol=1e-5
    )
    # The claims had been tested with 2 seeds.
    assert found["looks"] == results(out / "dh")["looks"] == {"planned": [2, 3], "done": [2, 3], "appended": True}
    levels = {row["adjusted_level"] for row in found["claims"] if row["family"] == "registered"}
    assert levels == {1 - 0.05 / 2 / 2}  # two looks at two claims
    assert "seeds were appended to a finished run" in (out / "report.html").read_text()


def test_variants_and_arms_can_be_added(finished, tmp_path):
    """The claims are then about all of them; what was finished is not trained again."""
    out = shutil.copytree(finished, tmp_path / "run")
    before = tree(out)
    command = ["--out", str(out), "--resume", "--quiet"]
    assert resume.read(STUDY, [*command, "--variants", "half,main,dh"]).settings.variants == ["half", "main", "dh"]
    assert entry.main(STUDY, [*command, "--arms", "published,bias"]) == 0
    rows = {row["id"]: row for row in results(out)["claims"]}
    for row in results(finished)["claims"]:
        assert rows[row["id"]]["differences"] == row["differences"]
    costs = {}
    for name in ("main", "main-bias"):
        losses = results(out / name)["final"]
        untied, tied = (np.array(losses[arm]["exact_cross_entropy"]["train"]) for arm in ("untied", "tied"))
        costs[name] = tied - untied
    np.testing.assert_allclose(rows["price/main-bias"]["differences"], costs["main-bias"] - costs["main"], rtol=1e-12)
    assert (out / "dh" / "results.json").stat().st_mtime_ns == before["dh/results.json"][0]
    assert manifest.read(out).settings["arms"] == ["published", "bias"]
    (out / "config.yaml").write_text((out / "config.yaml").read_text().replace("- bias\n", ""))
    with pytest.raises(BadInput, match=r"its config\.yaml has been edited"):
        entry.main(STUDY, command)


def test_a_run_of_a_version_without_variants_is_resumed(finished, tmp_path):
    out = shutil.copytree(finished / "dh", tmp_path / "run")
    found = manifest.read(out)
    earlier = {name: value for name, value in found.settings.items() if name not in ("variants", "arms")}
    dataclasses.replace(found, settings=earlier).write(out)
    lines = (out / "config.yaml").read_text().splitlines(keepends=True)
    (out / "config.yaml").write_text("".join(line for line in lines if not line.startswith(("variants:", "arms:"))))
    before = tree(out)
    assert entry.main(STUDY, ["--out", str(out), "--resume", "--quiet"]) == 0
    assert tree(out) == before


def test_variants_and_arms_cannot_be_removed(finished):
    before = tree(finished)
    with pytest.raises(BadInput, match=r"other settings \(variants: .*\); variants can only be added"):
        entry.main(STUDY, [*TINY, "--variants", "dh,half", "--out", str(finished), "--resume"])
    with pytest.raises(BadInput, match=r"other settings \(arms: .*\); arms can only be added"):
        entry.main(STUDY, [*TINY, "--arms", "bias", "--out", str(finished), "--resume"])
    with pytest.raises(BadInput, match=r"variants can only be added, to a run of several variants"):
        entry.main(STUDY, [*TINY, "--variants", "main,dh", "--out", str(finished / "dh"), "--resume"])
    assert tree(finished) == before


@pytest.mark.slow
def test_overwriting_starts_every_variant_from_scratch(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "run")
    command = [*TINY, "--seeds", "2", "--variants", "dh", "main", "--steps", "10", "--out", str(out)]
    with pytest.raises(BadInput, match="contains a finished run"):
        entry.main(STUDY, command)
    assert entry.main(STUDY, [*command, "--overwrite"]) == 0
    assert [results(out / name)["steps"] for name in ("main", "dh")] == [10, 10]
    assert results(out)["variants"] == ["dh", "main"]


@pytest.mark.slow
def test_a_variant_of_other_settings_is_not_taken_over(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "run")
    (out / "results.json").unlink()
    argv = [*TINY, "--seeds", "2", "--variant", "dh", "--steps", "10", "--out", str(out / "dh"), "--overwrite"]
    assert entry.main(STUDY, argv) == 0
    with pytest.raises(BadInput, match=r"run/dh contains a run with other settings \(steps: 10 -> 20"):
        entry.main(STUDY, ["--out", str(out), "--resume", "--quiet"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Arguments and an uninterrupted run of three variants, on one device as in other processes below."""
    out = tmp_path_factory.mktemp("whole") / "run"
    # Dense records make short chunks with a checkpoint after each.
    argv = ["--bits", "3", "--layers", "1", "--steps", "1000", "--record_every", "2", "--exact_every", "500"]
    argv += ["--seeds", "2", "--variants", "main,dh,no-dh"]
    assert run_here(STUDY, *argv, "--out", out).status == 0
    return argv, out


def test_a_killed_run_continues_with_the_first_unfinished_variant(whole, tmp_path):
    argv, complete = whole
    out = tmp_path / "run"
    process = start(*argv, "--checkpoint_every", "0.01", "--out", out, env={"JAX_NUM_CPU_DEVICES": "1"})
    assert wait_until(lambda: len(steps(out / "dh")) > 1, process)
    process.kill()
    end(process)
    assert (out / "main" / "results.json").exists()
    assert not (out / "dh" / "results.json").exists()
    assert not (out / "no-dh").exists()
    kept = tree(out / "main")

    ended = run_here(STUDY, "--out", out, "--resume")
    assert (ended.status, ended.err) == (0, "")
    assert "3 runs of EXor" in ended.out
    assert "2 to be trained" in ended.out
    assert "dh, run 2 of 3: resuming at step" in ended.out
    assert tree(out / "main") == kept
    for name in ("main", "dh", "no-dh"):
        assert arrays(out / name) == arrays(complete / name), name
    assert {**results(out), "timing": None} == {**results(complete), "timing": None}


REFUSED = {
    "--variants main,other": ("--variants", "expected some of main, dh, no-dh, half, got 'other'"),
    "--variants main dh main": ("--variants", "main is repeated"),
    "--variants main,dh --variant dh": ("--variants", "cannot be combined with --variant"),
    "--variants main --doses [.1,.2]": ("--variants", "cannot be combined"),
    "--variants main,dh --until decided --max_seeds 64": ("--variants", "--until"),
    "--variants main,dh --bits 1": ("--bits", "2 and 16"),
}


@pytest.mark.parametrize("argv", REFUSED)
def test_refused_settings(argv, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert_refused(command_here(argv.split(), monkeypatch, capsys), *REFUSED[argv])
    assert list(tmp_path.iterdir()) == []


def test_settings_of_each_variant():
    resolved = Settings(variants=["main,dh", "half"], output_bias=True, steps=7).resolved()
    assert resolved.variants == ["main", "dh", "half"]
    assert resolved.resolved() == resolved
    own = resolved.by_variant
    assert own["half"].tasks[0].probability == (0.5, 0.5, 0.5, 0.5)
    assert {settings.out for settings in own.values()} == {
        f"runs/exor/main-dh-half-transformer-small/{name}" for name in ("main", "dh", "half")
    }
    # Nothing is left to fill in: the settings are those of a run of this variant alone.
    assert all(settings == settings.resolved() for settings in own.values())
    assert {(settings.output_bias, settings.steps, settings.variants == []) for settings in own.values()} == {(True, 7, True)}


def test_estimates_include_the_variants_that_follow():
    settings = Settings(seeds=8).resolved()
    assert _part(settings, 0, [8], InSeries("main, run 1 of 3", 2)) == (0, "main, run 1 of 3", 2)
    assert _part(settings, 0, [8], InSeries()) == (0, "", 0)
    # 2 of 8 seeds in the first part: 3 such parts in this run, and 4 in each of two more runs.
    assert _part(settings, 0, [2, 6], InSeries("dh", 2)) == (0, "dh, part 1 of 2", 3 + 8)


def test_runs_at_a_rate_of_many_digits_are_found(tmp_path):
    settings = Settings(variants=["main"], rates=[0.001, 0.00316227766], out=str(tmp_path)).resolved()
    (own,) = settings.by_variant.values()
    for rate in own.rates:
        (tmp_path / "main" / f"tuning-{rate!r}").mkdir(parents=True)
    assert [(run.learning_rate, run.out) for run in begun(own)] == [
        (rate, f"{tmp_path}/main/tuning-{rate!r}") for rate in (0.001, 0.00316227766)
    ]
    assert seeds_left(own, [run.out for run in begun(own)], None) == 2 * own.number_of_seeds
