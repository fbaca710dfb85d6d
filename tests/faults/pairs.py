"""Two processes in one directory, with every pair of commands: the second is refused in one line, the first is unaffected."""

import collections
import contextlib
import shutil
import signal
import subprocess
import time
from pathlib import Path

from processes import EXPERIMENTS, end, start, tree, wait_until

from faults.runs import Run, assert_one_line, assert_same_result, environment, go

SECOND = {"new": [], "--resume": ["--resume"], "--overwrite": ["--overwrite"]}


def pause(process: subprocess.Popen[str]) -> None:
    """Pause all threads of a process, so that it is alive but does not write."""
    process.send_signal(signal.SIGSTOP)
    while process.poll() is None:
        threads = Path(f"/proc/{process.pid}/task").glob("*/stat")
        if all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads):
            return
        time.sleep(0.01)


def committed(out: Path) -> set[tuple[str, int]]:
    """Return the complete checkpoints with their times."""
    with contextlib.suppress(FileNotFoundError):  # one may be removed meanwhile
        return {(str(path), path.stat().st_mtime_ns) for path in (out / "checkpoints").rglob("commit_success.txt")}
    return set()


def pairs(runs: list[Run], folder: Path) -> collections.Counter[str]:
    """Start a second command in the directory of a run that trains; count the pairs."""
    found, tried = collections.Counter[str](), 0
    for run in runs:
        env = environment(run.out.parent)
        for first, second in ((one, two) for one in ("new", "--resume", "--overwrite") for two in (*SECOND, "diagnose")):
            if second == "diagnose" and run.study not in ("exor", "untying", "text_mlm"):
                continue
            tried += 1
            out = folder / f"{run.study}-{first}-{second}"
            if first != "new":
                shutil.copytree(run.half, out)
            before = committed(out)
            writer = start(*run.argv, "--out", out, *SECOND[first], script=run.script, env=env)
            wait_until(lambda out=out, before=before: committed(out) - before, writer, timeout=600)
            running = writer.poll() is None
            pause(writer)
            before = tree(out)
            if second == "diagnose":
                ended = end(start(out, "--out", folder / "d", "--overwrite", script=EXPERIMENTS / "diagnose.py", env=env))
                assert_one_line(ended, (0,))  # it has an undamaged checkpoint
            else:
                ended = go(run, out, *SECOND[second])
                if running:
                    assert_one_line(ended, (2,))
            if running:
                changed = [name for name, what in tree(out).items() if before.get(name) != what]
                assert not changed, (run.study, first, second, changed)
                found[f"{first} and {second}"] += 1
            writer.send_signal(signal.SIGCONT)
            whole = end(writer, timeout=900)
            if running:
                assert whole.status == 0, whole.err
                assert_same_result(out, run)
            shutil.rmtree(out)
    # Not a pair if the first process has ended before the second starts.
    assert sum(found.values()) >= tried / 2, f"{sum(found.values())} pairs of {tried}"
    return found
