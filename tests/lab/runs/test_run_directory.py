"""Run directories: states, locking, resumption, and files that are never touched."""

import dataclasses
import hashlib
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import yaml
from directories import here, make_run, read, refused
from processes import assert_refused, command_here, end, start, start_python, tree, wait_until

from tiejax.lab.runs import manifest, resume, run_directory
from tiejax.lab.runs.manifest import Manifest
from tiejax.lab.runs.run_directory import RunDirectory
from tiejax.lab.settings.command_line import BadInput
from tiejax.lab.studies.exor.settings import STUDY, Settings

__all__ = ["here", "refused"]  # fixtures

HOLD = (
    "import filelock, sys; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('held', flush=True); sys.stdin.read()"
)


def test_unfinished_run_needs_resume_or_overwrite(here, refused):
    make_run(here / "run")
    refused(["--out", "run"], "run", "unfinished", "--resume", "--overwrite")


def test_finished_run_is_not_overwritten(here, refused):
    make_run(here / "run", finished=True)
    refused(["--out", "run"], "run", "finished", "--overwrite")


def test_default_run_directory_is_checked(here, refused):
    make_run(here / "runs/exor/dh-lstm-small")
    refused(["--variant", "dh", "--model", "lstm"], "runs/exor/dh-lstm-small", "unfinished")


@pytest.mark.parametrize("text", ["lr: 3\n", "just words\n", "steps: [1\n", "steps: many\n"])
def test_overwrite_does_not_touch_a_directory_with_a_foreign_config(here, refused, text):
    """A config.yaml is not a run: other programs write such files, and folders `figures` and `checkpoints`."""
    for name in ("figures", "checkpoints"):
        (here / "other" / name).mkdir(parents=True)
    (here / "other/config.yaml").write_text(text)
    (here / "other/checkpoints/weights.bin").write_bytes(b"years of work")
    refused(["--out", "other", "--overwrite"], "other", "no usable run of exor")


def test_overwrite_replaces_only_the_run(here):
    path = make_run(here / "run", finished=True, steps=5)
    (path / "notes.txt").write_text("mine")
    config = Settings(steps=7, out="run").resolved()
    RunDirectory.reserve(STUDY, config, False, True).release()
    assert {entry.name for entry in path.iterdir()} - {".lock"} == {"config.yaml", "run.json", "notes.txt"}
    assert yaml.safe_load((path / "config.yaml").read_text()) == dataclasses.asdict(config)


def test_a_killed_overwrite_leaves_an_unfinished_run(here, monkeypatch):
    path = make_run(here / "run", finished=True)

    def killed(target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_directory, "shutil", type("Killed", (), {"rmtree": staticmethod(killed)}))
        with pytest.raises(KeyboardInterrupt):
            RunDirectory.reserve(STUDY, Settings(out=str(path)).resolved(), False, True)
    assert not (path / "results.json").exists()
    assert RunDirectory.state(path) == "unfinished"


def test_overwrite_leaves_files_that_run_json_does_not_list(here):
    path = make_run(here / "run")
    run = RunDirectory.reserve(STUDY, Settings(out=str(path)).resolved(), True, False)
    for name in ("figures/a.png", "models/small/weights.bin", "data.json", "environment.json"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("of the run")
    run.add([path / "figures", path / "models", path / "data.json"])
    (path / "events/seed 0").mkdir(parents=True)
    (path / "events/seed 0/events.out.tfevents.1").write_text("of the run")
    mine = ["figures/mine.png", "models/small/notes/mine.txt", "events/mine.txt", "finished/mine.npz", "tokenizer.json"]
    for name in mine:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
    # A hostile list of files may name others, directly or through a link.
    (here / "outside").mkdir()
    (here / "outside/file").write_text("mine")
    (path / "models/link").symlink_to(here / "outside")
    hostile = dict.fromkeys(("../outside/file", "models/link/file", str(here / "outside/file"), "models"), "0" * 64)
    dataclasses.replace(run.manifest, files=run.manifest.files | hostile).write(path)
    run.release()
    RunDirectory.reserve(STUDY, Settings(out="run").resolved(), False, True).release()
    left = {entry.relative_to(path).as_posix() for entry in path.rglob("*") if entry.is_file()} - {".lock"}
    assert left - {"models/link/file"} == {"config.yaml", "run.json", *mine}
    assert all((path / name).read_text() == "mine" for name in mine)
    assert (here / "outside/file").read_text() == "mine"


def test_a_directory_with_only_the_lock_is_new(here):
    """A process that is killed before it writes its configuration leaves one."""
    (here / "run").mkdir()
    (here / "run/.lock").touch()
    (here / "run/.config.yaml.part").write_text("steps")
    RunDirectory.reserve(STUDY, Settings(out="run").resolved(), False, False).release()
    assert RunDirectory.state(here / "run") == "unfinished"


@pytest.mark.parametrize("finished", [False, True])
def test_second_process(here, refused, finished):
    """A directory that another process has locked is refused, until that process is killed."""
    path = make_run(here / "run", finished=finished)
    other = start_python("-c", HOLD, path / ".lock")
    assert other.stdout.readline() == "held\n"
    for switch in ("--overwrite",) if finished else ("--overwrite", "--resume"):
        refused(["--out", "run", switch], "--out run", "another process")
    other.send_signal(signal.SIGKILL)
    end(other)
    RunDirectory.reserve(STUDY, Settings(out=str(path)).resolved(), not finished, finished).release()


@pytest.mark.slow
def test_a_second_process_is_refused_during_a_run(here, refused):
    """Of two processes that start at the same time in a new directory, one runs; the other and all later ones are refused."""
    both = [start("--seeds", 1, "--steps", 100_000, "--out", "run", cwd=here) for _ in range(2)]
    try:
        wait_until(lambda: any(process.poll() is not None for process in both), both[0])
        assert [process.poll() for process in both].count(None) == 1, "one of the two must go on"
        loser, winner = sorted(both, key=lambda process: process.poll() is None)
        assert_refused(end(loser), "--out run")
        wait_until((here / "run/config.yaml").exists, winner)
        winner.send_signal(signal.SIGSTOP)  # alive, but not writing while `refused` compares files
        for switch in ("--overwrite", "--resume"):
            refused(["--out", "run", switch], "--out run", "another process")
        refused(["--out", "run"], "--out run")
    finally:
        for process in both:
            process.kill()
            process.communicate()


def test_jax_is_imported_after_the_checks_and_before_anything_is_written(here):
    """A refused command line needs no jax, and what jax refuses, such as an environment variable, leaves no run directory."""
    code = """
import sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "flax", "optax", "orbax"):
            print(name)
            raise SystemExit(7)

sys.meta_path.insert(0, Watch())
from tiejax.lab.runs.entry import open_study
from tiejax.lab.studies.exor.settings import STUDY
open_study(STUDY)
"""
    ended = end(start_python("-c", code, "--seeds", "[3,7]", "--steps", "-5", "--out", "run", cwd=here))
    assert (ended.status, ended.out) == (2, ""), ended.err
    assert "error: --steps" in ended.err
    ended = end(start_python("-c", code, "--seeds", "[3,7]", "--steps", "5", "--out", "run", cwd=here))
    assert (ended.status, ended.out.split()) == (7, ["jax"]), ended.err
    assert not (here / "run").exists()


def test_an_address_space_too_small_for_jax_is_refused(here):
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
from tiejax.lab.runs.entry import open_study
from tiejax.lab.studies.exor.settings import STUDY
open_study(STUDY)
"""
    ended = end(start_python("-c", code, "--seeds", "2", "--steps", "5", "--out", "run", cwd=here))
    assert ended.status == 2, ended
    (line,) = ended.err.splitlines()
    assert "ulimit -v: jax needs an address space of 2.1 GiB" in line
    assert not (here / "run").exists()


def test_resume_takes_the_configuration_of_the_run(here):
    make_run(here / "run", steps=50, bits=4, seeds=[3, 7], variant="dh")
    # The current path: a run directory may have been moved.
    started = dataclasses.replace(Settings(steps=50, bits=4, seeds=[3, 7], variant="dh").resolved(), out="run")
    assert read("--out", "run", "--resume") == started
    assert read("--out", "run", "--resume", "--bits", "4", "--variant=dh") == started
    # null resolves to the default with which the run was started.
    Path("nulls.yaml").write_text("heads: null\nexact_every: null\nlearning_rate: null\n")
    assert read("--out", "run", "--resume", "--config", "nulls.yaml") == started
    # Settings that do not affect results may differ.
    free = {"checkpoint_every": 5.0, "records_on": "memory"}
    flags = [f"--{name}={value}" for name, value in free.items()]
    assert read("--out", "run", "--resume", *flags) == dataclasses.replace(started, **free)


@pytest.mark.parametrize(
    ("line", "differences"),
    [
        ("--steps 60 --bits 5", ["steps: 50 -> 60", "bits: 4 -> 5"]),
        ("--seeds 3", ["seeds: [3, 7] -> 3"]),
        ("--model lstm", ["model: transformer -> lstm"]),
        ("--zero [.5,.5]", ["zero: None -> [0.5, 0.5]"]),
        ("--config files/good.yaml", ["steps: 50 -> 5", "seeds: [3, 7] -> 2"]),
        ("--config steps.yaml", ["steps: 50 -> 150000"]),
        ("--learning_rate .001 --width 8 --heads 2", ["learning_rate: 0.0005 -> 0.001", "width: 4 -> 8", "heads: 1 -> 2"]),
    ],
)
def test_resume_with_other_settings_lists_the_differences(here, refused, line, differences):
    make_run(here / "run", steps=50, bits=4, seeds=[3, 7])
    Path("steps.yaml").write_text("steps: null\n")
    argv = ["--out", "run", "--resume", *line.split()]
    refused(argv, "--resume", "run", "other settings", *differences)
    with pytest.raises(BadInput) as error:
        resume.read(STUDY, argv)
    assert str(error.value).count(" -> ") == len(differences)


def test_resume_with_an_invalid_configuration_names_the_file(here, refused):
    path = make_run(here / "run")
    (path / "config.yaml").write_text("steps: [1\n")
    refused(["--out", "run", "--resume"], "run/config.yaml", "invalid YAML")


def test_resume_of_a_finished_run_reports_that(here, monkeypatch, capsys):
    make_run(here / "run", finished=True)
    before = tree(here)
    ended = command_here(["--out", "run", "--resume"], monkeypatch, capsys)
    assert (ended.status, ended.err) == (0, "")
    assert len(ended.out.splitlines()) == 1
    assert "finished" in ended.out
    assert tree(here) == before


# Runs of other studies and formats.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("run.json is missing", "early version")),
        ("{", ("run.json", "damaged")),
        ('["exor", 2]', ("run.json", "damaged")),
        ('{"study": "exor"}', ("run.json", "damaged")),
        ('{"study": "exor", "format": 2}', ("format 2", "format 3")),
        ('{"study": "exor", "format": 3, "settings": {}, "text": null, "files": {}}', ("run.json", "damaged")),
        ("of text", ("made by text_mlm", "no usable run of exor")),
    ],
)
@pytest.mark.parametrize("switch", ["--resume", "--overwrite"])
def test_a_run_of_another_study_or_format_is_not_touched(here, refused, content, words, switch):
    path = make_run(here / "run")
    (path / "run.json").unlink()
    if content == "of text":
        Manifest("text_mlm", {}).write(path)
    elif content is not None:
        (path / "run.json").write_text(content)
    refused(["--out", "run", switch], switch, "run", *words)


def test_a_manifest_names_study_settings_and_files(here):
    """Settings that do not affect results are left out."""
    path = make_run(here / "run", finished=True, steps=50)
    found = json.loads((path / "run.json").read_text())
    assert (found["study"], found["format"], found["text"], found["settings"]["steps"]) == ("exor", 3, None, 50)
    assert not {"out", *STUDY.may_change} & found["settings"].keys()
    results = hashlib.sha256((path / "results.json").read_bytes()).hexdigest()
    assert found["files"] == {"results.json": results}


def test_a_directory_without_a_configuration_is_new(here):
    make_run(here / "run")
    for entry in (here / "run").iterdir():
        if entry.name not in ("run.json", ".lock"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    assert RunDirectory.state(here / "run") == "new"


def test_metrics_are_named_arrays_without_pickles(tmp_path):
    run = RunDirectory(tmp_path, None, Manifest("exor", {}))
    arrays = {"distance": np.arange(6.0).reshape(2, 3), "splits": np.array(["train", "test"])}
    run.write_metrics(arrays)
    with np.load(tmp_path / "metrics.npz", allow_pickle=False) as found:
        assert set(found) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)


def test_results_refuse_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        RunDirectory(tmp_path, None, Manifest("exor", {})).write_results({"x": float("nan")})
    assert not (tmp_path / "results.json").exists()


# Manifest and content belong together.


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def claimed(**fields):
    return RunDirectory.reserve(STUDY, Settings(**fields, out="run").resolved(), True, False)


def test_an_edited_configuration_is_not_resumed(here, refused):
    path = make_run(here / "run", steps=50)
    edit(path / "config.yaml", "weight_decay: 0.1", "weight_decay: 0.2")
    refused(["--out", "run", "--resume"], "--resume: run", "weight_decay: 0.1 -> 0.2", "edited")


def test_a_run_that_another_process_has_restarted_is_not_resumed(here):
    """The directory may change between reading its settings and locking it, for example while text is prepared."""
    make_run(here / "run", steps=50)
    RunDirectory.reserve(STUDY, Settings(steps=60, out="run").resolved(), False, True).release()
    with pytest.raises(BadInput, match=r"steps: 60 -> 50.*another process"):
        claimed(steps=50)


def test_free_settings_may_be_edited(here):
    path = make_run(here / "run", steps=50)
    edit(path / "config.yaml", "checkpoint_every: 20.0", "checkpoint_every: 5.0")
    claimed(steps=50, checkpoint_every=5.0).release()


def test_a_run_on_another_text_is_not_resumed(here):
    make_run(here / "run", steps=50)
    run = claimed(steps=50)
    identity = run.manifest.identity_in("checkpoints")
    run.bind("a" * 64)
    assert run.manifest.identity_in("checkpoints") != identity
    assert run.manifest.identity_in("checkpoints/a") != run.manifest.identity_in("checkpoints/b")
    run.release()
    run = claimed(steps=50)
    run.bind("a" * 64)
    with pytest.raises(BadInput, match="--resume: run was started on another text"):
        run.bind("b" * 64)


def test_results_that_are_not_listed_do_not_finish_a_run(here):
    path = make_run(here / "run", steps=50)
    (path / "results.json").write_text("junk")
    assert RunDirectory.state(path) == "unfinished"
    run = claimed(steps=50)
    assert not run.holds("results.json")
    run.write_results({"claims": []})
    assert RunDirectory.state(path) == "finished"


@pytest.mark.parametrize("damage", [None, b"", b"{", b'{"claims": [1]}'])
def test_damage_to_a_listed_file_is_found(here, damage):
    path = make_run(here / "run", finished=True)
    assert RunDirectory.damage(path) == []
    (path / "results.json").unlink()
    if damage is not None:
        (path / "results.json").write_bytes(damage)
    assert RunDirectory.damage(path) == ["results.json"]
    assert RunDirectory.state(path) == "finished"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"resumed": 3}'])
def test_a_damaged_environment_is_reported(here, content):
    make_run(here / "run", steps=50)
    run = claimed(steps=50)
    run.write_environment({}, "a command")
    (run.path / "environment.json").write_bytes(content)
    with pytest.raises(BadInput, match=r"environment.json is damaged; remove it"):
        run.write_environment({}, "a command")
    (run.path / "environment.json").unlink()
    run.write_environment({}, "a command")
    assert run.environment["command"] == "a command"


def test_files_of_earlier_starts_are_checked(here):
    make_run(here / "run", steps=50)
    run = claimed(steps=50)
    assert run.keep("data.json", b"{}") == b"{}"
    assert run.keep("data.json", b"{ }") == b"{}"
    (run.path / "data.json").write_bytes(b"[]")
    with pytest.raises(BadInput, match=r"data.json is damaged; remove it, and it is written again"):
        run.keep("data.json", b"{}")
    (run.path / "data.json").unlink()
    assert run.keep("data.json", b"{ }") == b"{ }"


def test_the_order_of_a_mapping_is_part_of_the_identity(tmp_path):
    """For example, it decides which twin has which row of a table."""
    one, other = Manifest("text_mlm", {"twins": {".5": 1, ".9": 2}}), Manifest("text_mlm", {"twins": {".9": 2, ".5": 1}})
    assert one.identity_in("checkpoints") != other.identity_in("checkpoints")
    assert len(manifest.differences(one.settings, other.settings)) == 1
    one.write(tmp_path)
    assert list(manifest.read(tmp_path).settings["twins"]) == [".5", ".9"]


def test_files_of_another_length_are_not_read(tmp_path):
    """A sparse file of 1 TB has taken the place of a file: reading it would take hours."""
    config = Settings(out=str(tmp_path / "run")).resolved()
    run = RunDirectory.reserve(STUDY, config, False, False)
    run.write("data.json", b"{}")
    (tmp_path / "run/models").mkdir()
    (tmp_path / "run/models/a.bin").write_bytes(b"weights")
    run.add([tmp_path / "run/models"])
    run.release()
    assert RunDirectory.opened(run.path).lengths == {"data.json": 2, "models/a.bin": 7}
    for name in ("data.json", "models/a.bin"):
        with (run.path / name).open("r+b") as file:
            file.truncate(10**12)
    assert sorted(RunDirectory.damage(run.path)) == ["data.json", "models/a.bin"]
    assert not run.intact("data.json")
    with pytest.raises(BadInput, match=r"data\.json is damaged"):
        run.read("data.json", "it is written again")


def test_a_run_without_listed_lengths_can_be_resumed(tmp_path):
    """Runs were written without them before."""
    config = Settings(out=str(tmp_path / "run")).resolved()
    run = RunDirectory.reserve(STUDY, config, False, False)
    run.write("data.json", b"{}")
    dataclasses.replace(run.manifest, lengths={}).write(run.path)
    run.release()
    assert "lengths" not in json.loads((run.path / "run.json").read_text())
    again = RunDirectory.reserve(STUDY, config, True, False)
    assert RunDirectory.damage(run.path) == []
    assert again.read("data.json", "") == b"{}"
    (run.path / "data.json").write_text("[]")
    assert RunDirectory.damage(run.path) == ["data.json"]
    again.release()
