"""The number of cores of a process: its affinity and the CPU quotas of its control groups."""

import os

import pytest
from corpora import ROOT
from processes import end, start_python

from tiejax.system.processors import cores


@pytest.mark.parametrize(
    ("cgroup", "limits", "expected"),
    [
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/a/b", {"a/cpu.max": "max 100000", "a/b/cpu.max": "150000 100000"}, 2),
        ("0::/", {"cpu.max": "1000 100000"}, 1),
        ("0::/", {"cpu.max": "6400000 100000"}, 8),
        ("0::/", {"cpu.max": "nonsense"}, 8),
        ("0::/", {"cpu.max": "200000 0"}, 8),
        ("0::/not/seen/from/here", {"cpu.max": "400000 100000"}, 4),
        ("2:cpu:/a", {"cpu/a/cpu.cfs_quota_us": "200000", "cpu/a/cpu.cfs_period_us": "100000"}, 2),
        ("2:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "10000"}, 5),
        ("2:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("2:cpuset:/", {"cpuset/cpu.cfs_quota_us": "200000", "cpuset/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_cpu_quotas_of_control_groups(tmp_path, monkeypatch, cgroup, limits, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"{cgroup}\n")
    for name, text in limits.items():
        file = tmp_path / "sys" / "fs" / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert cores(tmp_path) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_a_process_with_one_core_uses_one():
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); from tiejax.system.processors import cores; "
    ended = end(start_python("-c", f"{code}print(cores())", env={"PYTHONPATH": str(ROOT)}))
    assert (ended.status, ended.out, ended.err) == (0, "1\n", "")
