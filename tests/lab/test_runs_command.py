"""`tiejax runs`: run directories in every state are listed, other folders are left out."""

import dataclasses
import json
import os

import pytest
from claim_rows import CLAIM, EXPLORATORY
from directories import make_run
from processes import end, start_python

from tiejax.lab.commands import runs as listing
from tiejax.lab.comparison.settings import settings_of
from tiejax.lab.runs import manifest
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.exor.settings import STUDY, Settings


def listed(folder, capsys):
    assert listing.main([str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def runs(tmp_path):
    """A finished, an unfinished and two damaged runs, and a folder without a run."""
    (tmp_path / "no run" / "deep").mkdir(parents=True)
    results = {"claims": [CLAIM, CLAIM, EXPLORATORY]}
    finished = make_run(tmp_path / "deep" / "dh", finished=True, results=results, variant="dh", bits=4)
    unfinished = make_run(tmp_path / "usual")
    damaged = make_run(tmp_path / "damaged", finished=True)
    (damaged / "results.json").write_text("{")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "run.json").write_text("[")
    return finished, unfinished, damaged


def test_runs_are_listed_with_settings_and_claims(tmp_path, runs, capsys):
    finished, unfinished, damaged = runs
    assert listed(tmp_path, capsys) == [
        f"{damaged}  exor, finished",
        "    results.json: damaged; the command of the run with --resume writes it again",
        f"{finished}  exor, finished",
        '    settings: variant "dh", bits 4',
        "    Of 2 claims, 2 supported. 1 more claim is exploratory.",
        f"{tmp_path / 'foreign'}  run.json is damaged",
        f"{unfinished}  exor, unfinished",
    ]


def test_runs_are_listed_as_json(tmp_path, runs, capsys):
    finished, unfinished, damaged = runs
    assert listing.main([str(tmp_path), "--json"]) == 0
    usual = {"study": "exor", "state": "finished", "settings": {}, "parts": None, "looks": None}
    usual |= {"claims": None, "damage": None, "name": None}
    assert json.loads(capsys.readouterr().out) == [
        {"path": str(damaged)}
        | usual
        | {"damage": "results.json: damaged; the command of the run with --resume writes it again"},
        {"path": str(finished)}
        | usual
        | {
            "settings": {"variant": "dh", "bits": 4},
            "claims": {"supported": 2, "contradicted": 0, "undecided": 0, "exploratory": 1},
        },
        {"path": str(tmp_path / "foreign")} | usual | {"study": None, "state": None, "damage": "run.json is damaged"},
        {"path": str(unfinished)} | usual | {"state": "unfinished"},
    ]


def test_results_of_other_formats_are_reported(tmp_path, capsys):
    """The claims of other formats are tested by other rules."""
    runs = [make_run(tmp_path / f"{form}", finished=True, results={"format": form, "claims": [CLAIM]}) for form in (2, 4)]
    for line, run, form in zip(listed(tmp_path, capsys)[1::2], runs, (2, 4), strict=True):
        words = f"results.json: expected format 3, got {form}; use the version of tiejax that wrote it"
        assert (line, run.name) == (f"    {words}", str(form))


def test_seeds_in_parts_are_listed(tmp_path, capsys):
    """Seeds that were appended by hand, and those of the second of three looks."""
    grown = make_run(tmp_path / "grown", seeds=4)
    run = RunDirectory.reserve(STUDY, Settings(seeds=6, out=str(grown)).resolved(), True, False)
    run.release()
    looking = make_run(tmp_path / "looking", until="decided", max_seeds=200)
    run = RunDirectory.reserve(STUDY, Settings(until="decided", max_seeds=200, out=str(looking)).resolved(), True, False)
    run.append_part(list(range(64, 128)))
    run.release()
    assert listed(tmp_path, capsys) == [
        f"{grown}  exor, unfinished",
        "    settings: seeds 6",
        "    parts: 4 + 2 seeds",
        f"{looking}  exor, unfinished",
        '    settings: seeds 200, until "decided", max_seeds 200',
        "    look 2 of 3 (64, 128, 200 seeds): 128 seeds",
    ]
    assert listing.main([str(tmp_path), "--json"]) == 0
    found = [(run["parts"], run["looks"]) for run in json.loads(capsys.readouterr().out)]
    assert found == [([4, 2], None), ([64, 64], [64, 128, 200])]


def test_comparisons_are_told_apart(tmp_path, capsys):
    """By the names of their models, and by the settings of their scripts: their studies are not known here."""
    for name, steps in (("gpt", 60), ("lstm", 80)):
        settings = settings_of({"steps": steps, "rates": [0.1]}, str(tmp_path / name))().resolved()
        study = dataclasses.replace(STUDY, name="comparison", may_change=("checkpoint_every", "tracker"))
        run = RunDirectory.reserve(study, settings, False, False)
        run.keep("script.json", b"{}")
        if name == "gpt":
            run.write_results({"claims": [CLAIM], "name": "my GPT"})
        run.release()
    assert listed(tmp_path, capsys) == [
        f"{tmp_path / 'gpt'}  comparison of my GPT, finished",
        "    settings: steps 60, rates [0.1]",
        "    The one claim is supported.",
        f"{tmp_path / 'lstm'}  comparison, unfinished",
        "    settings: steps 80, rates [0.1]",
    ]
    assert listing.main([str(tmp_path), "--json"]) == 0
    found = [(run["name"], run["settings"]["steps"]) for run in json.loads(capsys.readouterr().out)]
    assert found == [("my GPT", 60), (None, 80)]


def test_a_hostile_name_in_json_is_escaped(tmp_path, capsys):
    """A folder that was renamed after its run: ``--out`` itself has to be UTF-8."""
    run = make_run(tmp_path / "run").rename(tmp_path / "\x1b]0;gone\x07\u202e\udcff")
    assert listing.main([str(tmp_path), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert all(line.isprintable() for line in out.splitlines())
    assert json.loads(out)[0]["path"] == str(run)


def test_manifests_that_tiejax_did_not_write_are_reported(tmp_path):
    """A named pipe, on which a read would block, and content of wrong types with a valid digest."""
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "run.json")
    content = {"study": "exor", "format": manifest.FORMAT, "settings": {}}
    for name, more in (("lacks", {}), ("types", {"text": None, "files": 3})):
        (tmp_path / name).mkdir()
        whole = content | more
        (tmp_path / name / "run.json").write_text(json.dumps(whole | {"digest": manifest.digest_of_json(whole)}))
    make_run(tmp_path / "claims", finished=True, results={"claims": 3})
    ended = end(start_python("-m", "tiejax", "runs", tmp_path), timeout=60)
    assert (ended.status, ended.err) == (0, "")
    damaged = "run.json is damaged"
    expected = [f"{tmp_path / name}  {damaged}" for name in ("lacks", "pipe", "types")]
    assert ended.out.splitlines() == [f"{tmp_path / 'claims'}  exor, finished", *expected]


def test_nothing_to_list(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # messages show the first characters of a long path
    assert listed(tmp_path, capsys) == [f"no run directory under {tmp_path}"]
    assert listing.main([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    with pytest.raises(BadInput, match=r"^none: not found; name a folder that holds run directories"):
        listing.main(["none"])
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"^file: is not a directory; name"):
        listing.main(["file"])
