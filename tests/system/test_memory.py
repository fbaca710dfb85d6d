"""The memory limit of a process: installed memory, control groups and the address space limit."""

import os
import resource
from pathlib import Path

import pytest
from corpora import ROOT
from processes import end, start_python

from tiejax.system.memory import machine_memory


def test_limit_is_at_most_the_installed_memory():
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < machine_memory() <= physical


def machine(root: Path, cgroup: str, limits: dict[str, str]) -> Path:
    for path, text in {"proc/self/cgroup": cgroup, **{f"sys/fs/cgroup/{name}": text for name, text in limits.items()}}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/", {"memory.max": "1048576"}, 2**20),
        ("0::/", {"memory.max": "max"}, None),
        ("0::/a/b", {"a/memory.max": "2097152", "a/b/memory.max": "max"}, 2**21),
        ("0::/a/b", {"a/memory.max": "2097152", "a/b/memory.max": "1048576"}, 2**20),
        ("0::/not/seen/from/here", {"memory.max": "4096"}, 4096),
        (
            "3:memory:/a\n2:cpu:/b",
            {"memory/a/memory.limit_in_bytes": "8192", "memory/memory.limit_in_bytes": "9223372036854771712"},
            8192,
        ),
        ("3:cpu:/a", {"memory.max": "1"}, None),
    ],
)  # fmt: skip
def test_limits_of_control_groups(tmp_path, cgroup, limits, expected):
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine_memory(machine(tmp_path, cgroup, limits)) == (installed if expected is None else expected)


def test_installed_memory_without_control_groups(tmp_path):
    assert machine_memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_address_space_limit(tmp_path):
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2**30, resource.RLIM_INFINITY))
from tiejax.system.memory import machine_memory
print(machine_memory())
"""
    ended = end(start_python("-c", code, env={"PYTHONPATH": str(ROOT)}))
    assert (ended.status, ended.err) == (0, "")
    assert int(ended.out) <= 2**30
