"""`tiejax runs`: what is said of run directories of every state, and that other folders are left out."""

import json
import os

import pytest
from claim_rows import CLAIM
from directories import make_run
from processes import end, start_python

from tiejax.lab.commands import runs as listing
from tiejax.lab.runs import manifest
from tiejax.lab.settings.command_line import BadInput


def listed(folder, capsys):
    assert listing.main([str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


def test_runs_are_listed_with_what_is_special_about_them(tmp_path, capsys):
    (tmp_path / "no run" / "deep").mkdir(parents=True)
    finished = make_run(tmp_path / "deep" / "dh", finished=True, results={"claims": [CLAIM, CLAIM]}, variant="dh", bits=4)
    unfinished = make_run(tmp_path / "usual")
    damaged = make_run(tmp_path / "damaged", finished=True)
    (damaged / "results.json").write_text("{")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "run.json").write_text("[")
    assert listed(tmp_path, capsys) == [
        f"{damaged}  exor, finished",
        "    results.json is damaged; the run's command and --resume make it again",
        f"{finished}  exor, finished",
        '    settings: variant "dh", bits 4',
        "    Of 2 claims, 2 supported.",
        f"{tmp_path / 'foreign'}  run.json, which says which study made it, is damaged",
        f"{unfinished}  exor, unfinished",
    ]


def test_what_somebody_else_put_in_a_runs_place_is_told(tmp_path):
    """A named pipe, which would be waited for, and contents of other types under a right digest."""
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
    damaged = "run.json, which says which study made it, is damaged"
    expected = [f"{tmp_path / name}  {damaged}" for name in ("lacks", "pipe", "types")]
    assert ended.out.splitlines() == [f"{tmp_path / 'claims'}  exor, finished", *expected]


def test_nothing_to_list(tmp_path, capsys):
    assert listed(tmp_path, capsys) == [f"no run directory under {tmp_path}"]
    with pytest.raises(BadInput, match="is no folder"):
        listing.main([str(tmp_path / "none")])
