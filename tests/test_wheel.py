"""The wheel, where no checkout is, installed, in a zip archive or read-only: the command, and configurations by name."""

import email
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from hub_checkpoints import checkpoint, values
from processes import ended_with

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
TINY = shlex.split("--seeds 1 --steps 20 --record_every 10 --exact_every 10 --half_period 10 --bits 4 --quiet")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the sdist, which so holds all that a wheel needs."""
    folder = tmp_path_factory.mktemp("dist")
    pytest.importorskip("build")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_the_usual_checks_pass(wheel):
    files = [str(file) for file in wheel.parent.iterdir()]
    assert len(files) == 2
    ended = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout


def test_the_wheel_holds_the_package_and_its_configurations(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    of_package = {str(path.relative_to(ROOT)) for path in (ROOT / "tiejax").rglob("*") if path.suffix in (".py", ".pyi", ".j2")}
    of_configs = {f"tiejax/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    assert of_package | of_configs | {"tiejax/py.typed"} <= names
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"tiejax"}


def test_the_sdist_has_no_figures(wheel):
    """They take several MB; the README links to them in the repository."""
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert any(name.endswith("/tests/test_wheel.py") for name in names)
    assert [name for name in names if name.endswith(".png")] == []
    assert sdist.stat().st_size < 3e6


def test_links_of_the_description_are_absolute(wheel):
    """And lead to files of the checkout, at the tag of the version."""
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    metadata = email.message_from_bytes(archive.read(name))
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", metadata.get_payload()) if not link.startswith("#")]
    assert [link for link in links if not link.startswith("https://")] == []
    at_tag = re.compile(rf"{re.escape(urls['Repository'])}/(?:blob|raw)/v{re.escape(metadata['Version'])}/([^#]+)")
    files = [match[1] for match in map(at_tag.match, links) if match]
    assert len(files) > 20
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert not re.search(r"(?:src|href)=", metadata.get_payload())  # which are not rewritten


def environment_with(folder, *requested):
    """Create an environment into which the pip of the tests' environment installs; return its interpreter."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, *requested], check=True, timeout=600)
    return python


def test_the_command_runs_where_no_checkout_is(wheel, tmp_path):
    """In an environment of its own, to which the packages that tiejax needs are lent."""
    python = environment_with(tmp_path / "venv", "--no-deps", wheel)
    lent = tmp_path / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages" / "lent.pth"
    lent.write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def tiejax(*argv):
        command = [tmp_path / "venv" / "bin" / "tiejax", *map(str, argv)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)

    where = subprocess.run(
        [python, "-c", "import tiejax; print(tiejax.__file__)"], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert str(tmp_path / "venv") in where.stdout
    ended = tiejax("exor", "--config", "exor/dh", *TINY, "--out", "run")
    assert ended_with(ended.returncode, "", ended.stderr)[:3] == (0, "", "")  # apart from warnings
    assert "variant: dh" in (tmp_path / "run" / "config.yaml").read_text()
    assert '"command": "tiejax exor --config exor/dh' in (tmp_path / "run" / "environment.json").read_text()
    listed = tiejax("runs", "run").stdout
    assert listed.startswith("run  exor, finished\n")
    refused = tiejax("exor", "--config", "exor/none")
    assert refused.returncode == 2
    assert "among the configurations exor/bits_10" in refused.stderr


def assert_all_works_from(place, tmp_path, *before):
    """Import the package from this entry of the path, check a checkpoint and diagnose it, run a named configuration.

    before: a command that starts these commands.
    """
    tensors = {"model.embed_tokens.weight": values(), "lm_head.weight": values(seed=1)}
    folder = checkpoint(tmp_path / "c", tensors, {"model_type": "llama"})
    environment = {**os.environ, "PYTHONPATH": str(place)}

    def run(*argv):
        command = [*before, sys.executable, *map(str, argv)]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
        assert ended_with(ended.returncode, "", ended.stderr)[:3] == (0, "", "")  # apart from warnings
        return ended.stdout

    where = run("-W", "error", "-c", "import tiejax; from tiejax import lab; print(tiejax.__file__, tiejax.Tie, lab.Ensemble)")
    assert where.startswith(str(place / "tiejax"))
    assert ": agrees: " in run("-m", "tiejax", "check", folder)
    run("-m", "tiejax", "diagnose", folder, "--out", "diagnosed")
    run("-m", "tiejax", "exor", "--config", "exor/dh", *TINY, "--out", "run")
    assert "variant: dh" in (tmp_path / "run" / "config.yaml").read_text()
    for out in ("diagnosed", "run"):
        assert "<style>" in (tmp_path / out / "report.html").read_text()
    assert "exor/dh" in run("-m", "tiejax", "--print-completion", "bash")


def test_the_package_works_from_a_zip_archive(wheel, tmp_path):
    archive = shutil.copy(wheel, tmp_path / "tiejax.zip")
    assert_all_works_from(archive, tmp_path)


def test_the_package_works_from_a_folder_that_cannot_be_written(wheel, tmp_path):
    """In a mount of its own, since permissions do not bind the administrator."""
    site, mounted = tmp_path / "site", "mount --bind {0} {0} && mount -o remount,ro,bind {0} && "
    zipfile.ZipFile(wheel).extractall(site)
    in_mount = ["unshare", "--mount", "sh", "-c", mounted.format(shlex.quote(str(site))) + '"$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*in_mount, "true"], capture_output=True).returncode:
        pytest.skip("this user cannot mount folders")
    assert subprocess.run([*in_mount, "touch", site / "file"], capture_output=True).returncode
    assert_all_works_from(site, tmp_path, *in_mount)


def test_ties_need_few_packages(wheel, tmp_path):
    """In an environment into which pip installs what the wheel asks for, and no more."""
    python = environment_with(tmp_path / "venv", wheel)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*argv):
        return subprocess.run([*argv], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)

    ended = run(python, ROOT / "tests" / "ties_alone.py")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int(ended.stdout) < 12
    everything = """import pydoc; from tiejax import *; import tiejax, tiejax.lab
assert pydoc.render_doc("tiejax") and not hasattr(tiejax, "Ensemble") and not hasattr(tiejax.lab, "diagnose")"""
    ended = run(python, "-W", "error", "-c", everything)
    assert (ended.returncode, ended.stderr) == (0, "")
    asked = run(tmp_path / "venv" / "bin" / "tiejax", "exor")
    assert asked.returncode == 2
    assert len(asked.stderr.splitlines()) == 1
    assert "pip install 'tiejax[lab]'" in asked.stderr
