"""What contenders train in the tests: nothing, at a rate that their job says."""

import os
import time

from experiments.bench.contender import Work


def at_rate(job):
    """Train: as many tokens a second as the job says, or as many as an environment variable that it names."""
    rate = int(os.environ[job]) if isinstance(job, str) else job

    def train(seconds):
        time.sleep(seconds)
        return Work(round(rate * seconds), seconds)

    return train


def failing(job):
    raise SystemExit(job)
