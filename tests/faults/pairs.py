"""Two processes on one directory, in every pair of commands: the second is refused in one line, the first never notices."""

import collections
import shutil
import signal
from pathlib import Path

from processes import EXPERIMENTS, end, start, tree, wait_until

from faults.runs import Run, assert_one_line, assert_same_result, environment, go

SECOND = {"anew": [], "--resume": ["--resume"], "--overwrite": ["--overwrite"]}


def pairs(runs: list[Run], folder: Path) -> collections.Counter[str]:
    """Let a second command meet a run while it trains; return how many of each there were."""
    found = collections.Counter[str]()
    for run in runs:
        env = environment(run.out.parent)
        for first, second in ((one, two) for one in ("anew", "--resume", "--overwrite") for two in (*SECOND, "diagnose")):
            if second == "diagnose" and run.study not in ("exor", "untying", "text_mlm"):
                continue
            out = folder / f"{run.study}-{first}-{second}"
            if first != "anew":
                shutil.copytree(run.half, out)
            writer = start(*run.argv, "--out", out, *SECOND[first], script=run.script, env=env)
            wait_until(lambda out=out: any((out / "checkpoints").rglob("commit_success.txt")), writer, timeout=600)
            running = writer.poll() is None
            writer.send_signal(signal.SIGSTOP)  # alive, and writing nothing while the other looks
            before = tree(out)
            if second == "diagnose":
                ended = end(start(out, "--out", folder / "d", "--overwrite", script=EXPERIMENTS / "diagnose.py", env=env))
                assert_one_line(ended, (0, 2))
            else:
                ended = go(run, out, *SECOND[second])
                if running:
                    assert_one_line(ended, (2,))
            if running:
                assert tree(out) == before, (run.study, first, second)
                found[f"{first} and {second}"] += 1
            writer.send_signal(signal.SIGCONT)
            whole = end(writer, timeout=900)
            if running:
                assert whole.status == 0, whole.err
                assert_same_result(out, run)
            shutil.rmtree(out)
    return found
