"""A stand-in for Weights & Biases that appends what it receives to $STAND_IN, a file of JSON lines.

As the service does, it drops rows whose number is not above the last one of the run. $STAND_IN_FAILS: the number of rows after
which the network is gone.
"""

import json
import os
from pathlib import Path

FILE = Path(os.environ["STAND_IN"])


class Settings(dict):
    pass


def _note(**line):
    with FILE.open("a") as file:
        file.write(json.dumps(line) + "\n")


class Run:
    def __init__(self, id):
        self.id, self.summary = id, self
        lines = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []
        self._last = max((line["row"] for line in lines if line.get("run") == id and "row" in line), default=-1)

    def define_metric(self, name, **options):
        pass

    def log(self, values, step):
        if step >= int(os.environ.get("STAND_IN_FAILS", "1000000")):
            raise ConnectionError("no route to host\nTraceback ...")
        if step > self._last:
            self._last = step
            _note(run=self.id, row=step, values=values)

    def update(self, values):
        _note(run=self.id, summary=values)

    def finish(self):
        _note(run=self.id, finished=True)


def init(*, id, resume, config, **options):
    assert resume == "allow"
    _note(run=id, config=config)
    return Run(id)
