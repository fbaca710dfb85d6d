"""Contenders for tests of `experiments.bench.contender`, which run in spawned processes: they train nothing."""

import os
import time

from experiments.bench.contender import Work


def at_rate(job):
    """Return a `Train` at a fixed rate in tokens per second: the job itself, or the environment variable that it names."""
    rate = int(os.environ[job]) if isinstance(job, str) else job

    def train(seconds):
        time.sleep(seconds)
        return Work(round(rate * seconds), seconds)

    return train


def failing(job):
    """Exit instead of returning a `Train`."""
    raise SystemExit(job)
