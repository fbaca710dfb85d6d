"""Limits on the size of files, which act like a full disk, at every stage of every study."""

import collections
import shutil
from pathlib import Path

from processes import end, start_python

from faults.runs import Run, assert_one_line, assert_same_result, environment, go, saying

LIMITED = """
import resource, runpy, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Bytes, from a limit that no file fits to one that all files fit except the largest.
LIMITS = (50, 1_000, 8_000, 30_000, 60_000, 120_000)


def without_disk_space(runs: list[Run], folder: Path, limits: tuple[int, ...] = LIMITS) -> collections.Counter[str]:
    """Start every study under every limit, then finish it without; count the first exit statuses."""
    found = collections.Counter[str]()
    for run in runs:
        for limit in limits:
            out = folder / f"{run.study}-{limit}"
            # Compiled programs are not part of a run: they are read, but failures to store them would print warnings.
            env = environment(run.out.parent) | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1000000"}
            ended = end(start_python("-c", LIMITED, limit, run.script, *run.argv, "--out", out, env=env), timeout=900)
            with saying(f"{run.study} with files of at most {limit} bytes"):
                assert_one_line(ended, (0, 4))
                if ended.status == 4:
                    assert str(folder) in ended.err, ended.err
                again = go(run, out, *(["--resume"] if (out / "config.yaml").exists() else []))
                assert again.status == 0, again.err
                assert_same_result(out, run)
            found[f"status {ended.status}"] += 1
            shutil.rmtree(out)
    return found
