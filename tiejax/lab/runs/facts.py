"""environment.json: versions, machine and command of a run and of each of its resumptions."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiejax.lab.runs.manifest import MOST_BYTES, digest_of_json
from tiejax.lab.settings.command_line import BadInput
from tiejax.system.files import read_own_file, replace
from tiejax.system.visible import cut

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy", "matplotlib")


def write(path: Path, devices: Mapping[str, Any], command: str, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Write and return versions, machine, devices, git commit, command and date; those of a resumption under `resumed`.

    flags: those of XLA that may decide numbers. Raises BadInput if the existing file is damaged, or has other flags.
    """
    now = {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "xla_flags": flags,
        **devices,
        "git_commit": _git_commit(),
    }
    facts = _before(path)
    if facts and (before := facts.get("xla_flags", list(flags))) != list(flags):
        was, is_now = (" ".join(some) or "none" for some in (before, flags))
        raise BadInput(f"--resume: XLA_FLAGS: the run was started with {cut(was)}, now given: {cut(is_now)}; give the same")
    facts = {**facts, "resumed": [*facts.get("resumed", []), now]} if facts else now
    replace(path, json.dumps({**facts, "digest": digest_of_json(facts)}, indent=2).encode())
    return facts


def _before(path: Path) -> dict[str, Any] | None:
    """Return the content of environment.json, None if there is none; raises BadInput if it is damaged."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        try:
            facts: dict[str, Any] = dict(json.loads(read_own_file(path, MOST_BYTES)))
        except FileNotFoundError:
            return None
        if facts.pop("digest", None) == digest_of_json(facts) and isinstance(facts.get("resumed", []), list):
            return facts
    raise BadInput(f"--resume: {path} is damaged; remove it, and it is written again")


def _git_commit() -> str | None:
    """Return the git commit of this code, with `+` if the working tree has changes; None outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.SubprocessError):
        return None
