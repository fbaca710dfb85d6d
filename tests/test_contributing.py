"""CONTRIBUTING.md says where is what, and that is there; every settings module loads no jax."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TABLE = re.findall(r"^\| [^|]+ \| `([^`]+)` \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
STUDIES = sorted(path.parent.name for path in (ROOT / "tiejax" / "lab" / "studies").glob("*/settings.py"))
HEAVY = ("jax", "jaxlib", "flax", "optax", "orbax", "matplotlib", "tensorflow_datasets")


def loaded_by(statement: str) -> set[str]:
    """Which of the heavy packages a fresh process loads with this statement."""
    code = f"import sys\n{statement}\nprint(*({set(HEAVY)!r} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    return set(ended.stdout.split())


def test_every_file_of_the_table_exists():
    assert len(TABLE) >= 15
    assert [file for file in TABLE if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("study", STUDIES)
def test_settings_of_a_study_load_no_jax(study):
    assert loaded_by(f"import tiejax.lab.studies.{study}.settings") == set()


def test_lists_of_all_studies_name_all():
    from tiejax.lab.commands import studies
    from tiejax.lab.settings.study import function_of

    assert sorted(studies.NAMES) == STUDIES
    assert {name: studies.load(name).name for name in studies.NAMES} == {name: name for name in STUDIES}
    for study in map(studies.load, STUDIES):  # every entry point is the name of a function
        for entry in (study.run, *filter(None, [study.prepare]), *study.answers.values()):
            assert callable(function_of(entry))


def test_the_version_stands_once_and_is_cited():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()
    assert (ROOT / "CHANGELOG.md").read_text().startswith(f"# Changes\n\n## {project['version']}\n")


def test_the_face_of_the_library_loads_no_jax_until_it_is_used():
    assert loaded_by("import tiejax; from tiejax import lab, tying, training, models") == set()
    assert "jax" in loaded_by(
        "from tiejax import Tie, store, view, untie, retie; from tiejax.lab import Ensemble, train, diagnose"
    )


def test_ties_need_jax_and_numpy_alone():
    """A process in which nothing else can be imported ties two leaves."""
    blocked = ("flax", "optax", "orbax", "scipy", "tensorflow_datasets", "matplotlib", "grain")
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import numpy as np
from tiejax import Tie, store, view
params = {{"a": np.ones((2, 3)), "b": np.zeros((3, 2))}}
ties = [Tie("a", "b", transform="transpose")]
stored = store(params, ties)
assert stored["b"] is None
assert view(stored, ties)["b"].shape == (3, 2) and view(stored, ties)["b"].sum() == 6
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_workflows_run_the_readme_test_command_and_scripts_that_exist():
    steps = {name: steps_of(name) for name in ("ci", "release", "docs")}
    first, core, *others = steps["ci"]
    assert first in map(str.strip, (ROOT / "README.md").read_text().splitlines())
    assert others == [".ci/run", ".ci/newest"]
    assert all(os.access(ROOT / script, os.X_OK) for script in others)
    assert first == steps["release"][0]
    files = re.findall(r"(?:tests|\.ci)/\w+\.py", " ".join([core, *steps["release"]]))
    assert set(files) == {"tests/ties_alone.py", ".ci/release.py", "tests/test_wheel.py"}
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_ci_tries_every_python_of_the_classifiers_a_newer_one_and_the_oldest_jax():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    jobs = read_yaml(".github/workflows/ci.yml")["jobs"]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == [*pythons, "3.14"]
    (oldest,) = (line.removeprefix("jax>=") for line in project["dependencies"] if line.startswith("jax>="))
    core = jobs["core"]["strategy"]["matrix"]["include"]
    assert [(entry["python"], entry["jax"]) for entry in core] == [(pythons[0], f"jax=={oldest}"), ("3.14", "jax")]


def test_a_release_needs_its_tag_its_changes_and_an_address():
    problems = runpy.run_path(str(ROOT / ".ci" / "release.py"))["problems"]
    changes = "# Changes\n\n## 1.0.0\n\nText.\n\n## 0.9.0\n\nText.\n"

    def found(tag="v1.0.0", changes=changes, url="https://host/tiejax"):
        return problems(tag, {"project": {"version": "1.0.0", "urls": {"Repository": url}}}, changes)

    assert found() == []
    assert found(tag="1.0.0") == ["the tag is 1.0.0, the version in pyproject.toml 1.0.0"]
    for missing in (changes.replace("1.0.0", "1.0.1"), changes.replace("Text.\n", "", 1)):
        assert found(changes=missing) == ["CHANGELOG.md does not begin with an entry of 1.0.0"]
    (placeholder,) = found(url="https://example.org/tiejax")
    assert placeholder == "the URL Repository in pyproject.toml is the placeholder https://example.org/tiejax"


def steps_of(workflow: str) -> list[str]:
    jobs = read_yaml(f".github/workflows/{workflow}.yml")["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_hooks_are_checks_of_ci():
    hooks = [hook for repository in read_yaml(".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    checks = [line.removesuffix(" &") for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert len(hooks) == 4
    for hook in hooks:
        files = "" if hook.get("pass_filenames") is False else " ."
        assert hook["entry"] + files in checks


def test_job_of_slurm_is_a_script_whose_options_exist():
    script = ROOT / "experiments" / "slurm" / "exor.sh"
    assert subprocess.run(["bash", "-n", script], capture_output=True).returncode == 0
    text = script.read_text()
    command = re.search(r"srun \S+ (experiments/\S+) (.*)$", text, re.MULTILINE)
    assert command is not None
    asked = [sys.executable, ROOT / command[1], "--help-all"]
    shown = subprocess.run(asked, capture_output=True, text=True, timeout=120).stdout
    for option in re.findall(r"--\w+", command[2] + " --resume"):
        assert re.search(rf"{option}\b", shown), option
    named = re.search(r"STOPPED=(\d+)", text)
    assert named is not None
    assert f"status {named[1]}" in (ROOT / "docs" / "devices.md").read_text()


def read_yaml(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / path).read_text()))
