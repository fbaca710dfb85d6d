"""`kill -9` at random moments of every study, then `--resume` to the bits of an uninterrupted run."""

import random
import shutil
import time
from pathlib import Path

from processes import end, start

from faults.runs import Run, assert_nothing_half_written, assert_same_result, environment, go

IN_A_CHAIN = 5


def chain(run: Run, out: Path, rng: random.Random, most: int) -> int:
    """Kill a run and its resumptions at random moments, at most `most` times, then finish it; return the number of kills."""
    killed = 0
    for _ in range(most):
        resume = ["--resume"] if (out / "config.yaml").exists() else []
        process = start(*run.argv, "--out", out, *resume, script=run.script, env=environment(run.out.parent))
        time.sleep(rng.uniform(0, 1.1 * run.seconds))
        process.kill()
        ended = end(process)
        assert "Traceback" not in ended.err, ended.err
        killed += ended.status not in (0, None)
        assert_nothing_half_written(out)
        if ended.status == 0:
            break
    resume = ["--resume"] if (out / "config.yaml").exists() else []
    ended = go(run, out, *resume)
    assert ended.status == 0, ended.err
    assert_same_result(out, run)
    shutil.rmtree(out)
    return killed


def kills(runs: list[Run], folder: Path, number: int, rng: random.Random) -> dict[str, int]:
    """Kill runs of all studies in turn, `number` times; return the number of kills of each study."""
    hit = {run.study: 0 for run in runs}
    turn = 0
    while (left := number - sum(hit.values())) > 0:
        run = runs[turn % len(runs)]
        hit[run.study] += chain(run, folder / f"killed-{turn}", rng, min(IN_A_CHAIN, left))
        turn += 1
    return hit
