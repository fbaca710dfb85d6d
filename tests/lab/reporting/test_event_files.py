"""Event files as read by TensorBoard, also after a run was killed and resumed."""

import struct
import subprocess
import sys

import numpy as np
import pytest
from corpora import ROOT
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event, SessionLog

from tiejax.lab.reporting.event_files import EventFiles
from tiejax.statistics.arms import ARMS


def events(path):
    """Read an event file: length, its checksum, bytes, their checksum; https://www.tensorflow.org/tutorials/load_data/tfrecord."""

    def masked(data):
        crc = crc32c(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    content, found = path.read_bytes(), []
    while content:
        (length, length_crc), content = struct.unpack("<QI", content[:12]), content[12:]
        data, (data_crc,), content = content[:length], struct.unpack("<I", content[length : length + 4]), content[length + 4 :]
        assert (masked(struct.pack("<Q", length)), masked(data)) == (length_crc, data_crc)
        found.append(Event.FromString(data))
    return found


def points(folder):
    """Return step -> {tag: value} as TensorBoard shows a folder: file after file, each start purging what it rewrites."""
    shown = {}
    for path in sorted(folder.iterdir()):
        for event in events(path):
            if event.session_log.status == SessionLog.START:
                shown = {step: values for step, values in shown.items() if step < event.step}
            elif event.summary.value:
                shown[event.step] = {value.tag: value.simple_value for value in event.summary.value}
    return shown


def scalars(records):
    """Return two quantities `[record, seed, arm]` whose values encode their position."""
    place = np.arange(records)[:, None, None] * 100 + np.arange(2)[:, None] * 10 + np.arange(2)
    return {"validation/loss": place + 0.5, "norm/input": np.where(place == 111, np.nan, -place)}


def test_event_files_contain_the_points_of_every_member(tmp_path):
    files = EventFiles(tmp_path / "events", [3, 8], ARMS)
    files.write({name: values[:2] for name, values in scalars(3).items()}, np.array([0, 50]))
    folders = {path.name: path for path in (tmp_path / "events").iterdir()}
    assert set(folders) == {"untied-seed-3", "tied-seed-3", "untied-seed-8", "tied-seed-8"}
    assert set(points(folders["tied-seed-8"])) == {0, 50}  # before it is closed, as TensorBoard watches a run
    files.write({name: values[2:] for name, values in scalars(3).items()}, np.array([100]))
    files.close()
    for seed, name in enumerate((3, 8)):
        for arm, arm_name in enumerate(("untied", "tied")):
            found = points(folders[f"{arm_name}-seed-{name}"])
            assert list(found) == [0, 50, 100]
            for record, step in enumerate(found):
                for tag, values in scalars(3).items():
                    np.testing.assert_equal(found[step][tag], values[record, seed, arm])
    assert all("tfevents" in path.name for path in folders["tied-seed-3"].iterdir())


@pytest.mark.parametrize("seconds", [0, 5])
def test_event_files_of_a_resumed_run_replace_those_of_a_killed_run(tmp_path, seconds):
    """Resume from a checkpoint at step 50, within the same second or later, and write the later records again."""
    killed = EventFiles(tmp_path, [0, 1], ARMS)
    killed.write(scalars(3), np.array([0, 50, 100]))
    killed.close()
    for path in tmp_path.rglob("*tfevents*"):
        began = path.name.split(".")[3]
        path.rename(path.with_name(path.name.replace(began, str(int(began) - seconds))))
    resumed = EventFiles(tmp_path, [0, 1], ARMS)
    resumed.write({name: values[:2] + 1000 for name, values in scalars(3).items()}, np.array([0, 50]))
    resumed.write({name: values[2:] + 2000 for name, values in scalars(3).items()}, np.array([150]))
    resumed.close()
    shown = points(tmp_path / "untied-seed-1")
    assert {step: values["validation/loss"] for step, values in shown.items()} == {0: 1010.5, 50: 1110.5, 150: 2210.5}


def test_event_files_do_not_import_tensorflow():
    code = "import sys, tiejax.lab.reporting.event_files; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
